"""The saving forward pass against the plain one: values and gradients, whatever the padding, model and precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.model.logprobs import token_logprobs


def plain(model: Any, ids: Tensor, mask: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Row by row without padding: log_softmax over all positions, then what the mask asks for."""
    logprobs, entropies = torch.zeros(ids.shape), torch.zeros(ids.shape)
    for row, (tokens, sampled) in enumerate(zip(ids, mask, strict=True)):
        length = int(sampled.nonzero().max()) + 1 if bool(sampled.any()) else 1
        logits = model(input_ids=tokens[None, :length], use_cache=False).logits[0].double() / temperature
        every = logits.log_softmax(-1)
        for t in range(1, length):
            if sampled[t]:
                logprobs[row, t] = every[t - 1, tokens[t]]
                entropies[row, t] = -(every[t - 1].exp() * every[t - 1]).sum()
    return logprobs, entropies


def ragged(vocabulary: int = 280) -> tuple[Tensor, Tensor]:
    """Three rows: two turns around an observation; one short turn, then padding; nothing sampled at all."""
    ids = torch.randint(2, vocabulary, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.zeros(3, 12, dtype=torch.bool)
    mask[0, 3:6] = mask[0, 9:12] = mask[1, 2:4] = True
    ids[1, 4:] = ids[2, 7:] = 0
    return ids, mask


MODELS = {
    "qwen2": ("Qwen2", {}),
    "tied": ("Qwen2", {"tie_word_embeddings": True}),
    "soft-capped": ("Gemma2", {"final_logit_softcapping": 5.0, "head_dim": 8, "attention": "eager"}),
    "scaled logits": ("Cohere", {"logit_scale": 0.25}),
}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kind", MODELS)
def test_equals_the_plain_forward(make_model: Callable[..., Any], kind: str, temperature: float) -> None:
    family, settings = MODELS[kind]
    model = make_model(family, **settings)
    ids, mask = ragged()
    with torch.no_grad():
        logprobs, entropies = token_logprobs(model, ids, mask, temperature=temperature, entropy=True)
        expected, expected_entropies = plain(model, ids, mask, temperature)
    assert entropies is not None
    assert float(expected.min()) < -3  # the model has opinions, so that equality says something
    torch.testing.assert_close(logprobs, expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, expected_entropies, atol=2e-5, rtol=1e-5)
    assert bool((logprobs[~mask] == 0).all()) and bool((entropies[~mask] == 0).all())


def test_gradients_equal_the_plain_forwards(make_model: Callable[..., Any]) -> None:
    ids, mask = ragged()
    weights = torch.linspace(-1, 2, ids.numel()).view(ids.shape)
    grads = []
    for forward in (lambda m: token_logprobs(m, ids, mask, entropy=True), lambda m: plain(m, ids, mask, 1.0)):
        model = make_model()
        logprobs, entropies = forward(model)
        (weights * logprobs + weights.flip(0) * entropies).sum().backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][name], atol=1e-4, rtol=1e-4, msg=name)


def test_padding_changes_nothing(make_model: Callable[..., Any]) -> None:
    model = make_model()
    ids, mask = ragged()
    wide = torch.full((3, 20), 7)
    wide[:, :12] = ids
    wide_mask = torch.zeros(3, 20, dtype=torch.bool)
    wide_mask[:, :12] = mask
    with torch.no_grad():
        narrow, _ = token_logprobs(model, ids, mask)
        padded, _ = token_logprobs(model, wide, wide_mask)
    torch.testing.assert_close(padded[:, :12], narrow, atol=1e-5, rtol=1e-5)


def test_the_output_layer_sees_sampled_positions_only(make_model: Callable[..., Any]) -> None:
    model = make_model()
    ids, mask = ragged()
    seen = []
    hook = model.get_output_embeddings().register_forward_hook(lambda _, args, out: seen.append(out.shape))
    token_logprobs(model, ids, mask)
    hook.remove()
    assert seen == [(1, 8, model.config.vocab_size)]  # 3 + 3 + 2 sampled tokens of 36 positions


def test_the_hook_goes_even_when_the_model_fails(make_model: Callable[..., Any]) -> None:
    model = make_model()
    ids, mask = ragged()
    with pytest.raises(IndexError):
        token_logprobs(model, ids + 10_000, mask)
    assert model(input_ids=ids).logits.shape == (3, 12, model.config.vocab_size)


def test_nothing_sampled_is_zero_with_a_gradient(make_model: Callable[..., Any]) -> None:
    model = make_model()
    ids, _ = ragged()
    logprobs, entropies = token_logprobs(model, ids, torch.zeros_like(ids, dtype=torch.bool), entropy=True)
    assert entropies is not None
    (logprobs.sum() + entropies.sum()).backward()
    assert not logprobs.any() and not entropies.any()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_half_precision_is_float32_after_the_logits(make_model: Callable[..., Any]) -> None:
    model = make_model()
    ids, mask = ragged()
    with torch.no_grad():
        exact, _ = token_logprobs(model, ids, mask)
        rough, entropies = token_logprobs(model, ids, mask, entropy=True, autocast_dtype=torch.bfloat16)
    assert entropies is not None
    assert rough.dtype == entropies.dtype == torch.float32
    assert not torch.equal(rough, exact)  # autocast was on
    torch.testing.assert_close(rough, exact, atol=0.3, rtol=0.05)
