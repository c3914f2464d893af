"""Rollouts by other weights than those that learn."""

from __future__ import annotations

import torch

from holdfast.recipe import Faults
from holdfast.train.sampler_faults import SamplerWeights, to_8_bits


def test_rollouts_come_from_the_weights_of_batches_ago() -> None:
    model = torch.nn.Linear(3, 2)
    sampler, seen = SamplerWeights(Faults(stale_batches=2), model), []
    for step in range(5):
        with torch.no_grad():
            model.weight.fill_(float(step))
        for _ in range(2):  # two rounds of rollouts are of one batch
            with sampler.in_place(step):
                seen.append(model.weight[0, 0].item())
        assert (model.weight == step).all(), "what learns is as it was"
    assert seen[::2] == seen[1::2] == [0.0, 0.0, 0.0, 1.0, 2.0]


def test_an_update_goes_to_the_weights_that_learn() -> None:
    model = torch.nn.Linear(3, 2)
    sampler, optimizer = SamplerWeights(Faults(sampler_8_bits=True), model), torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.weight.detach().clone()
    with sampler.in_place(0):
        rounded = model.weight.detach().clone()
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before - 1.0)
    assert 0 < (rounded - before).abs().max() < 0.04 * before.abs().max()


def test_eight_bits_are_three_bits_behind_the_leading_one() -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 500)
    rounded = to_8_bits(weight)
    large = weight.abs() > weight.abs().amax(-1, keepdim=True) / 2**12  # smaller ones lose bits
    relative = ((rounded - weight) / weight).abs()[large]
    assert 0.03 < relative.max() <= 2**-4 + 1e-6
    assert torch.equal(to_8_bits(rounded), rounded) and not to_8_bits(torch.zeros(2, 3)).any()
