"""The last layer where it is read: the same log-probs and gradients, and none of the other work."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.model import last_layer, logprobs
from holdfast.model.logprobs import token_logprobs

ROWS, WIDTH = 4, 48


def a_model(kind: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    config, model = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}[kind]
    torch.manual_seed(0)
    return model(
        config(
            vocab_size=60,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2 if kind == "llama" else 4,
        )
    ).double()


def a_batch(per_row: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Token ids and a loss mask with so many sampled tokens in each row."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.zeros(ROWS, WIDTH, dtype=torch.bool)
    for row, count in enumerate(per_row):
        mask[row, 1 + torch.randperm(WIDTH - 1, generator=generator)[:count]] = True
    return torch.randint(0, 60, (ROWS, WIDTH), generator=generator), mask


def results(model: Any, per_row: tuple[int, ...]) -> list[Tensor]:
    """Log-probs, then the gradient of each weight."""
    model.zero_grad()
    found, entropy = token_logprobs(model, *a_batch(per_row), entropy=True)
    assert entropy is not None
    (found.sum() + entropy.sum()).backward()
    return [found.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("per_row", [(3, 12, 0, 7), (40, 2, 1, 0), (1, 1, 1, 1)])
def test_what_is_read_and_its_gradient_are_those_of_the_whole_layer(
    kind: str, per_row: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = a_model(kind)
    picked = results(model, per_row)
    monkeypatch.setattr(logprobs, "last_layer_where", lambda *_: nullcontext())
    for ours, whole in zip(picked, results(model, per_row), strict=True):
        torch.testing.assert_close(ours, whole, atol=1e-5, rtol=1e-6)  # the model rounds norms to float32
    assert picked[0].abs().sum() > 1


def test_only_what_is_read_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (ids, mask) = a_model("qwen2"), a_batch((3, 12, 0, 7))
    queries, tokens = [], []
    attention = last_layer.sdpa_attention_forward
    monkeypatch.setattr(
        last_layer,
        "sdpa_attention_forward",
        lambda module, query, *args, **kwargs: (
            queries.append(query.shape[2]) or attention(module, query, *args, **kwargs)
        ),
    )
    layers = model.model.layers
    for layer in layers:
        layer.mlp.down_proj.register_forward_hook(lambda _, args, __: tokens.append(args[0][..., 0].numel()))
    token_logprobs(model, ids, mask)
    assert queries == [12] and tokens == [ROWS * WIDTH, 3 + 12 + 7]

    queries.clear()
    token_logprobs(model, *a_batch((40, 2, 1, 0)))  # most of a row is read: causal attention over all is cheaper
    assert queries == [] and tokens[2:] == [ROWS * WIDTH, 43]


def test_a_mixture_of_experts_is_computed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    torch.manual_seed(0)
    model = Qwen2MoeForCausalLM(
        Qwen2MoeConfig(
            vocab_size=60,
            hidden_size=32,
            intermediate_size=48,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            num_experts=4,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
    )
    picked, _ = token_logprobs(model, *a_batch((3, 12, 0, 7)))
    monkeypatch.setattr(logprobs, "last_layer_where", lambda *_: nullcontext())
    torch.testing.assert_close(picked, token_logprobs(model, *a_batch((3, 12, 0, 7)))[0], atol=0, rtol=0)


def test_a_batch_in_which_nothing_is_read() -> None:
    found, _ = token_logprobs(a_model("qwen2"), *a_batch((0, 0, 0, 0)))
    assert found.abs().sum() == 0


def test_the_model_is_as_before_also_after_an_error() -> None:
    model = a_model("qwen2")
    layer = model.model.layers[-1]
    config = layer.self_attn.config
    with pytest.raises(RuntimeError, match="in between"), last_layer.last_layer_where(model, a_batch((1, 1, 1, 1))[1]):
        assert layer.self_attn.config is not config and layer.mlp._forward_hooks
        raise RuntimeError("in between")
    assert layer.self_attn.config is config and not layer.mlp._forward_hooks and not layer.mlp._forward_pre_hooks


def test_layers_that_are_computed_again_in_the_backward_pass_are_computed_whole() -> None:
    model = a_model("qwen2")
    expected = results(model, (3, 12, 0, 7))
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for ours, whole in zip(results(model.train(), (3, 12, 0, 7)), expected, strict=True):
        torch.testing.assert_close(ours, whole, atol=1e-5, rtol=1e-6)
