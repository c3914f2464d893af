"""`holdfast_research.pages.leak`: the flow of probability that a truncated sampler makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast_research.pages import leak


def test_the_flow_is_the_gradient_of_the_loss_over_what_is_sampled() -> None:
    logits = torch.linspace(1.0, -2.0, 9, dtype=torch.float64, requires_grad=True)
    p = logits.detach().softmax(-1)
    q = torch.where(torch.arange(9) < 4, p, 0.0)  # of the first five, three have 0.797 and four 0.917
    q = q / q.sum()
    advantage = -0.3
    (advantage * q * logits.log_softmax(-1)).sum().backward()
    change, mass = leak.flow(logits.detach(), 0.8, 5, advantage)
    torch.testing.assert_close(change, logits.grad)
    assert mass == pytest.approx(float(p[:4].sum()))


@pytest.mark.parametrize("name", list(leak.SAMPLERS))
def test_only_a_mismatch_moves_anything_and_its_sign_is_the_advantages(name: str) -> None:
    def entropies(advantage: float) -> list[float]:
        return [row["entropy/mean"] for row in leak.trace(*leak.SAMPLERS[name], advantage, steps=30)]

    down, up = np.diff(entropies(-leak.SIZE)), np.diff(entropies(leak.SIZE))
    if name.startswith("untruncated"):
        assert max(abs(down).max(), abs(up).max()) < 1e-12
    else:
        assert (down > 0).all() and up.sum() < 0


def test_a_top_p_sampler_follows_what_leaks_and_a_top_k_sampler_does_not() -> None:
    last = {name: leak.trace(*sampler, -leak.SIZE)[-1]["sampler/mask_mass"] for name, sampler in leak.SAMPLERS.items()}
    assert last["top-p 0.9"] == pytest.approx(0.9, abs=0.01) and last["top-p 0.95"] == pytest.approx(0.95, abs=0.01)
    assert last["top-k 64"] < 0.6 and last["top-p 0.9 and top-k 64"] < 0.4
