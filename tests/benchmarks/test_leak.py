"""`benchmarks/leak.py`: the flow of probability that a truncated sampler makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import leak


def test_the_flow_is_the_gradient_of_the_loss_over_what_is_sampled() -> None:
    logits = torch.linspace(1.0, -2.0, 9, dtype=torch.float64, requires_grad=True)
    p = leak.softmax(logits.detach().numpy())
    inside = leak.top_k_then_p(p, 5, 0.8)
    q = np.where(inside, p, 0.0) / p[inside].sum()
    advantage = -0.3
    (advantage * torch.tensor(q) * logits.log_softmax(-1)).sum().backward()
    assert logits.grad is not None
    assert logits.grad.numpy() == pytest.approx(advantage * (q - p))


def test_what_samplers_keep() -> None:
    p = np.array([0.5, 0.3, 0.15, 0.04, 0.01])
    assert leak.top_k(p, 2).tolist() == [True, True, False, False, False]
    assert leak.top_p(p, 0.8).tolist() == [True, True, False, False, False]
    assert leak.top_p(p, 0.81).tolist() == [True, True, True, False, False]
    assert leak.top_k_then_p(p, 3, 0.8).tolist() == [True, True, False, False, False]  # of 0.95: 0.76 is reached by two


@pytest.mark.parametrize("name", list(leak.SAMPLERS))
def test_only_a_mismatch_moves_anything_and_its_sign_is_the_advantages(name: str) -> None:
    def entropies(advantage: float) -> list[float]:
        return [row["entropy/mean"] for row in leak.trace(leak.SAMPLERS[name], advantage, steps=30)]

    down, up = np.diff(entropies(-leak.SIZE)), np.diff(entropies(leak.SIZE))
    if name.startswith("untruncated"):
        assert max(abs(down).max(), abs(up).max()) < 1e-12
    else:
        assert (down > 0).all() and up.sum() < 0


def test_a_top_p_sampler_follows_what_leaks_and_a_top_k_sampler_does_not() -> None:
    last = {name: leak.trace(kept, -leak.SIZE)[-1]["sampler/mass_kept"] for name, kept in leak.SAMPLERS.items()}
    assert last["top-p 0.9"] == pytest.approx(0.9, abs=0.01) and last["top-p 0.95"] == pytest.approx(0.95, abs=0.01)
    assert last["top-k 64"] < 0.6 and last["top-p 0.9 and top-k 64"] < 0.4
