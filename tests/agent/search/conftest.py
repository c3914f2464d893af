"""A real byte-level BPE tokenizer, learned in memory. As in Qwen's, punctuation takes the newlines after it."""

from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "<search> the lake of Orsa </search>\n\n",
    "<search> Orsa </search>\n",
    "<answer> Orsa </answer>\n\n",
    "<answer> a town </answer>.\n",
    "\n\n<information>Doc 1(Title: Orsa) the lake, the town.\n</information>\n\n",
    "<think> 漢字 café </think>\n",
    "so <answer> or <search>",
] * 30


@pytest.fixture
def own_tokenizer(learn_tokenizer: Callable[..., Any]) -> PreTrainedTokenizerFast:
    """A tokenizer that a test may change."""
    return learn_tokenizer(TEXTS, 400, ["<|end|>", "<|begin|>"], eos_token="<|end|>")


@pytest.fixture(scope="session")
def tokenizer(learn_tokenizer: Callable[..., Any]) -> PreTrainedTokenizerFast:
    return learn_tokenizer(TEXTS, 400, ["<|end|>", "<|begin|>"], eos_token="<|end|>")
