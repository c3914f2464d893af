"""A tokenizer and a tiny Qwen2 model, built from the bundled world. Nothing is downloaded.

The tokenizer is byte-level BPE with the pre-tokenizer of the Qwen2 family, so it reads any text. The tags of the
protocol are ordinary text of several tokens, and a closing bracket merges with the newline after it, as in real models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.agent.protocol import SearchProtocol
from holdfast.recipe.world import World as Settings
from holdfast.tasks.demonstrations import Text
from holdfast.tasks.world.facts import ATTRIBUTES, INTERCHANGEABLE, RELATIONS, World, build_world
from holdfast.tasks.world.scripted import build_filler

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

# The split rule of the Qwen2 tokenizers: a word takes one leading non-letter, punctuation takes the newlines after it.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# `from_pretrained` treats the tokenizer of a Qwen2 model as the original one, which composes characters (NFC) and has
# the token <|endoftext|>. This one does both too, or a loaded tokenizer would differ from the saved one.
PAD, EOS = "<|pad|>", "<|endoftext|>"


def build_tokenizer(texts: list[str], words: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """Byte-level BPE learned from `texts`; each of `words` becomes one token when it follows a space."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=16_384,  # more than there is to merge: training ends when every word is one token
        min_frequency=2,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    spaced = " " + " ".join(words)
    tokenizer.train_from_iterator([*texts, spaced, spaced], trainer=trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False
    )


def build_model(
    tokenizer: PreTrainedTokenizerFast, *, seed: int = 0, hidden: int = 96, layers: int = 3, heads: int = 4
) -> Qwen2ForCausalLM:
    """A randomly initialised Qwen2 model (rotary positions, RMSNorm, gated MLP, tied embeddings) for `tokenizer`."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=hidden * 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        attention_dropout=0.0,
        initializer_range=hidden**-0.5,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def world_tokenizer(settings: Settings, demonstrations: Sequence[Text], protocol: SearchProtocol) -> Any:
    """A tokenizer that knows every word of the world, of its filler and of the protocol."""
    world, filler = build_world(settings), build_filler(settings)
    samples = [
        protocol.prompt.replace("{question}", question) + "".join(f"{text}{observation}" for text, observation in turns)
        for question, turns in demonstrations[:2000]
    ]
    relations = " " + " ".join(name for pair in RELATIONS + ATTRIBUTES for name in pair)
    passages = [f" {fact.sentence}" for facts in world.facts.values() for fact in facts]
    texts = [*samples, *[protocol.invalid_note] * 2, *passages, *[relations] * 2]
    return build_tokenizer(texts, (*world.names, *(filler.words if filler else ())))


def interchangeable_tokens(world: World, tokenizer: Any) -> list[list[int]]:
    """Pools of token ids whose words can be exchanged: given names, family names, towns, and so on."""
    pools = []
    for words in (*world.name_pools, *INTERCHANGEABLE):
        encoded = [tokenizer.encode(f" {word}", add_special_tokens=False) for word in words]
        pools.append([ids[0] for ids in encoded if len(ids) == 1])
    return pools
