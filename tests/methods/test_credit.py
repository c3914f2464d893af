"""Credit of GiGPO, which compares actions where rollouts of a question were in the same state, and of IGPO, which
rewards a turn for what it tells of the golden answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Answer, Group, Search, Trajectory, Turn
from holdfast.base.errors import ConfigError
from holdfast.methods.credit import action_credit, gain_credit
from holdfast.methods.registry import IGPO, GiGPO, Methods
from holdfast.recipe import Loss, load
from holdfast.train.objective import Objective
from holdfast.train.rollouts import training_batch

# ---- GiGPO

TEXTS = {4: "Oslo is a city", 5: "Elephants never forget", 6: "no passage", 7: "Oslo is a city."}


def rollout(reward: float, *observations: int) -> Trajectory:
    """Searches whose observations are single tokens, then an answer; two tokens a turn."""
    search = (
        Turn(tokens=(7, 8), logprobs=(-1.0,) * 2, observation=(o,), observation_text=TEXTS[o], action=Search("q"))
        for o in observations
    )
    turns = (*search, Turn(tokens=(9, 8), logprobs=(-1.0, -1.0), action=Answer("x")))
    return Trajectory(example_id="q", prompt=(1, 2), turns=turns, reward=reward, reward_parts={"em": reward})


# Two rollouts find passage 4, and one of them answers right; a third finds 5 and searches again.
GROUP = Group("q", (rollout(1.0, 4), rollout(0.0, 4), rollout(1.0, 5, 6)))


def credit_of(method: GiGPO) -> tuple[TokenBatch, torch.Tensor]:
    batch = TokenBatch.from_trajectories([GROUP], pad_token_id=0)
    return batch, action_credit(method, batch, [GROUP])


def test_first_actions_and_answers_behind_the_same_passage_are_compared() -> None:
    batch, credit = credit_of(GiGPO(gamma=0.5, scale=False, weight=2.0))
    returns = [0.5, 0.0, 0.25]  # of the first actions
    mean = sum(returns) / 3
    for row, value in enumerate(returns):
        assert credit[row, batch.action_ids[row] == 1].tolist() == pytest.approx([2 * (value - mean)] * 2)
    assert credit[0, batch.action_ids[0] == 2].tolist() == [1.0, 1.0], "1 against a mean of 0.5, times 2"
    assert credit[1, batch.action_ids[1] == 2].tolist() == [-1.0, -1.0]
    alone = batch.action_ids[2] > 1
    assert int(alone.sum()) == 4 and bool((credit[2, alone] == 0).all())
    assert bool((credit[~batch.loss_mask] == 0).all())


def test_nearly_the_same_passage_is_the_same_state() -> None:
    near = Group("q", (rollout(1.0, 4), rollout(0.0, 7)))
    batch = TokenBatch.from_trajectories([near], pad_token_id=0)
    answers = batch.action_ids == 2
    assert bool((action_credit(GiGPO(), batch, [near])[answers] != 0).all())
    assert bool((action_credit(GiGPO(similarity=1.0), batch, [near])[answers] == 0).all())


def test_other_questions_are_not_the_same_state() -> None:
    other = Group("r", (rollout(0.0, 4), rollout(0.0, 4)))
    batch = TokenBatch.from_trajectories([GROUP, other], pad_token_id=0)
    credit = action_credit(GiGPO(), batch, [GROUP, other])
    assert bool((credit[3:] == 0).all())
    torch.testing.assert_close(credit[:3], credit_of(GiGPO())[1])


def test_the_batch_has_the_sum_of_both_advantages() -> None:
    made = {
        on: training_batch([GROUP], Objective(Loss(methods=methods)), pad_token_id=0, device=torch.device("cpu"))
        for on in (True, False)
        for methods in [Methods(gigpo=GiGPO(on=on))]
    }
    _, credit = credit_of(GiGPO())
    assert made[False].advantages.shape == (3, 1)
    torch.testing.assert_close(made[True].advantages, made[False].advantages + credit)


def test_a_method_that_needs_the_advantage_of_rollouts_is_refused_beside_it() -> None:
    with pytest.raises(ConfigError, match=r"off_policy_mask.*but gigpo gives each action its own advantage"):
        load(overrides=["--loss.methods.gigpo.on", "--loss.methods.off_policy_mask.on"])


# ---- IGPO


def searching(reward: float, searches: int) -> Trajectory:
    search = [Turn(tokens=(7,), logprobs=(-1.0,), observation=(4, k), action=Search("q")) for k in range(searches)]
    answer = Turn(tokens=(9,), logprobs=(-1.0,), action=Answer("x"))
    return Trajectory(example_id="q", prompt=(1, 2), turns=(*search, answer), reward=reward)


GAINING = Group("q", (searching(1.0, 2), searching(0.0, 1), searching(0.0, 0)))
PROBABILITIES = [0.25, 0.25, 0.75, 0.1, 0.2, 0.1]  # of the golden answer, before each turn of each rollout
GAINS = [[0.0, 0.5], [0.1], []]


def gold(asked: Sequence[tuple[str, tuple[int, ...]]]) -> list[float]:
    """Behind the prompt and behind every turn but the last."""
    assert [(name, list(context)) for name, context in asked] == [
        ("q", [1, 2]), ("q", [1, 2, 7, 4, 0]), ("q", [1, 2, 7, 4, 0, 7, 4, 1]),
        ("q", [1, 2]), ("q", [1, 2, 7, 4, 0]),
        ("q", [1, 2]),
    ]  # fmt: skip
    return [math.log(p) for p in PROBABILITIES]


@pytest.mark.parametrize(("gamma", "weight"), [(1.0, 1.0), (0.5, 2.0)])
def test_a_turn_gets_the_gains_from_it_on(gamma: float, weight: float) -> None:
    batch = TokenBatch.from_trajectories([GAINING], pad_token_id=0)
    batch.advantages[:] = torch.tensor([[1.0], [-0.5], [-0.5]])
    credit = gain_credit(IGPO(gamma=gamma, weight=weight), batch, [GAINING], gold)
    mean, deviation = 0.3, 0.2  # of 0.5 and 0.1; the turn that gains nothing counts in neither
    for row, (gains, outcome) in enumerate(zip(GAINS, (1.0, -0.5, -0.5), strict=True)):
        turns = len(gains) + 1
        for k in range(turns):
            normalised = [(gain - mean) / deviation if gain else 0.0 for gain in gains]
            ahead = sum(gamma ** (j - k) * normalised[j] for j in range(k, len(gains)))
            wanted = weight * ahead + gamma ** (turns - 1 - k) * outcome
            (got,) = (credit + batch.advantages)[row, batch.action_ids[row] == k + 1].tolist()
            assert got == pytest.approx(wanted, abs=1e-6)
    assert bool((credit[~batch.loss_mask] == 0).all())
