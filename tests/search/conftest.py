"""A real byte-level BPE tokenizer, learned in memory. As in Qwen's, punctuation takes the newlines after it."""

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXTS = [
    "<search> the lake of Orsa </search>\n\n",
    "<search> Orsa </search>\n",
    "<answer> Orsa </answer>\n\n",
    "<answer> a town </answer>.\n",
    "\n\n<information>Doc 1(Title: Orsa) the lake, the town.\n</information>\n\n",
    "<think> 漢字 café </think>\n",
    "so <answer> or <search>",
] * 30


def bpe(**kwargs) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>", "<|begin|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer=trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", **kwargs)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return bpe()


@pytest.fixture
def own_tokenizer() -> PreTrainedTokenizerFast:
    """One that a test may change."""
    return bpe()
