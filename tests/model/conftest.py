"""A byte-level tokenizer, tiny random models, and models that follow a script: all made in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedTokenizerFast

from holdfast.model.sampler.policy import Request

TEXTS = ["<search> lake </search>\n\n", "<answer> town </answer>\n", "<think> über 漢字 </think>\n"] * 20


@pytest.fixture(scope="session")
def tokenizer(learn_tokenizer: Callable[..., Any]) -> PreTrainedTokenizerFast:
    return learn_tokenizer(TEXTS, 300, ["<|pad|>", "<|end|>"], pad_token="<|pad|>", eos_token="<|end|>")


@pytest.fixture(scope="session")
def make_model(random_model: Callable[..., Any]) -> Callable[..., Any]:
    """make_model("Qwen2", vocab_size=300, **config): random weights, spread out so that log-probs differ by nats."""
    options = {"vocab_size": 300, "max_position_embeddings": 2048, "initializer_range": 0.25}
    options |= {"pad_token_id": 0, "eos_token_id": 1}
    return lambda family="Qwen2", **settings: random_model(family, **(options | settings))


@pytest.fixture(scope="session")
def make_chain() -> Callable[[dict[int, int]], Any]:
    """make_chain({a: b, b: c}): a Qwen2 model that always goes on from token a with b, from b with c."""

    def make(successor: dict[int, int], vocabulary: int = 300) -> Any:
        config = transformers.Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=vocabulary + vocabulary % 4,
            intermediate_size=4,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=False,
            eos_token_id=None,
            bos_token_id=None,
        )
        config._attn_implementation = "sdpa"
        model = transformers.Qwen2ForCausalLM(config).eval()
        with torch.no_grad():
            # One-hot embeddings and layers that add nothing: the head sees which token came last, and nothing else.
            model.model.embed_tokens.weight.copy_(torch.eye(vocabulary, config.hidden_size))
            model.model.layers[0].self_attn.o_proj.weight.zero_()
            model.model.layers[0].mlp.down_proj.weight.zero_()
            model.lm_head.weight.zero_()
            for token, following in successor.items():
                model.lm_head.weight[following, token] = 5.0
        return model

    return make


def request(id: str, ids: Any, new: int = 8, *, stop: tuple[str, ...] = (), seed: int = 0) -> Request:
    return Request(id=id, token_ids=tuple(ids), max_new_tokens=new, stop=stop, seed=seed)


def logprobs_without_cache(model: Any, context: Sequence[int], start: int, temperature: float = 1.0) -> torch.Tensor:
    """Log-probs of context[start:] from one plain, unpadded forward pass."""
    with torch.no_grad():
        logits = model(torch.tensor([list(context)]), use_cache=False).logits[0].float() / temperature
    rows = torch.arange(start, len(context))
    return logits.log_softmax(-1)[rows - 1, torch.tensor(context[start:])]


@pytest.fixture(scope="session")
def reference() -> Callable[..., torch.Tensor]:
    return logprobs_without_cache
