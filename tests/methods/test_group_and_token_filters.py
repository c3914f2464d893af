"""The variance filter and Clip-Cov: which groups and tokens they leave out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Answer, Group
from holdfast.base.errors import ConfigError
from holdfast.methods.operations import OPERATIONS, Operation, weight_percentiles
from holdfast.methods.registry import IPO, M2PO, ClipCov, Method, SamplerWeights, VarianceFilter
from holdfast.recipe import load

from ..rollouts import rollout, turn


def group(name: str, *rewards: float, tokens: int = 3) -> Group:
    said = turn(Answer("x"), tokens, logprobs=tuple(-k / 2 for k in range(tokens)))
    return Group(name, tuple(rollout(said, right=reward) for reward in rewards))


def operation(settings: Method) -> Operation:
    return OPERATIONS[type(settings)](settings)


GROUPS = [group("a", 0.0, 0.1), group("b", 1.0, 0.0), group("c", 1.0, 1.0), group("d", 0.0, 0.5)]


@pytest.mark.parametrize(
    ("share", "kept"),
    # standard deviations of .071, .707, 0 and .354; the sum is 1.131, and .01 of a share may be missing
    [(0.5, [0, 1, 0, 0]), (0.63, [0, 1, 0, 0]), (0.65, [0, 1, 0, 1]), (1.0, [1, 1, 0, 1])],
)
def test_the_groups_that_vary_most_are_learned_from(share: float, kept: list[int]) -> None:
    assert operation(VarianceFilter(share=share)).select(GROUPS) == [bool(k) for k in kept]


def test_groups_without_contrast_are_never_chosen() -> None:
    assert operation(VarianceFilter()).select([group("a", 1.0, 1.0), group("b", 0.0)]) == [False, False]


def test_together_with_further_rounds_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="would sample new questions for them forever"):
        load(overrides=["--loss.methods.variance_filter.on", "--loss.methods.dynamic_sampling.on"])


def test_clip_cov_leaves_out_a_share_and_repeats_its_draw() -> None:
    batch = TokenBatch.from_trajectories([group("q", 1.0, 0.0, tokens=40)], pad_token_id=0)
    batch.advantages[:] = batch.rewards[:, None] * 2 - 1
    now = batch.rollout_logprobs * 0.9  # the policy as it is, not the sampler
    dropped = batch.loss_mask & ~operation(ClipCov(share=0.1, low=1.0, high=5.0)).keeps(batch, now)
    cov = batch.advantages * (now - now[batch.loss_mask].mean())
    assert int(dropped.sum()) == 8
    assert bool((cov[dropped] > 1).all()) and bool((cov[dropped] < 5).all())
    assert torch.equal(dropped, batch.loss_mask & ~operation(ClipCov(share=0.1)).keeps(batch, now))
    assert int((batch.loss_mask & ~operation(ClipCov()).keeps(batch, now)).sum()) == 1, "at least one"


def test_ipo_leaves_out_what_moved_and_needs_the_sampler_s_tokens() -> None:
    batch = TokenBatch.from_trajectories([group("q", 1.0)], pad_token_id=0)  # probabilities 1, 0.61 and 0.37
    micro = replace(batch, sampler_logprobs=batch.rollout_logprobs, old_logprobs=batch.rollout_logprobs + 1.0)
    weights = operation(IPO()).on_old_policy(micro).policy_weights[batch.loss_mask]
    torch.testing.assert_close(weights, torch.full_like(weights, math.e))
    now = torch.where(batch.loss_mask, batch.rollout_logprobs - 0.6, 0.0)
    assert operation(IPO(eps=0.25)).keeps(micro, now)[batch.loss_mask].tolist() == [False, False, True]
    with pytest.raises(ConfigError, match="the truncated sampler draws from fewer tokens than this loss covers"):
        load(overrides=["--loss.methods.ipo.on", "--sampling.top_p", "0.9"])
    load(overrides=["--loss.methods.ipo.on", "--sampling.top_k", "64", "--sampling.mask_logprobs"])


def test_m2po_judges_the_micro_batches_of_an_optimizer_step_together() -> None:
    """Squares 0.01 and 1 in one, 0.09 and 0.25 in the other, whose advantage is negative: the mean of all is 0.34, of
    all but 1 it is 0.12, and of the two smallest 0.05. What moved against its advantage never counts."""
    micros, logprobs = [], []
    for advantage, changes in ((1.0, (0.1, 1.0, -3.0)), (-1.0, (-0.3, -0.5, 3.0, 3.0))):
        batch = TokenBatch.from_trajectories([group("q", 1.0, tokens=len(changes))], pad_token_id=0)
        batch.advantages[:] = advantage
        micros.append(replace(batch, old_logprobs=batch.rollout_logprobs))
        moved = batch.rollout_logprobs.clone()
        moved[batch.loss_mask] += torch.tensor(changes)
        logprobs.append(moved)
    for bound, kept in (
        (0.35, [[True, True, True], [True, True, True, True]]),
        (0.13, [[True, False, True], [True, True, True, True]]),
        (0.06, [[True, False, True], [True, False, True, True]]),
    ):
        m2po = operation(M2PO(bound=bound))
        judged = m2po.on_step(micros, logprobs)
        keeps = [m2po.keeps(m, now)[m.loss_mask].tolist() for m, now in zip(judged, logprobs, strict=True)]
        assert keeps == kept
        assert [m.learned_mask.sum() for m in judged] == [3, 4], "the divisor of the loss stays"


def test_the_percentiles_of_the_sampler_s_weights_are_those_before_their_bounds() -> None:
    """Weights of 0.00, 0.01, ... 1.00 over the sampled tokens of two micro-batches."""
    batch = TokenBatch.from_trajectories([group("q", 0.0, tokens=101)], pad_token_id=0)
    ratios = torch.zeros(batch.loss_mask.shape)
    ratios[batch.loss_mask] = torch.linspace(0, 1, 101).log()
    micro = replace(batch, old_logprobs=ratios, sampler_logprobs=torch.zeros_like(ratios))
    found = weight_percentiles(SamplerWeights(low=0.4, high=0.6), [micro, micro])
    assert found == {"sampler/weight_p05": pytest.approx(0.05), "sampler/weight_p95": pytest.approx(0.95)}


def test_bounds_that_leave_nothing_between_them_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"clip_cov\.low = 5.0 with .*clip_cov\.high = 2.0: nothing is left between"):
        load(overrides=["--loss.methods.clip_cov.low", "5", "--loss.methods.clip_cov.high", "2"])
