"""Credit of GiGPO, which compares actions where rollouts of a question were in the same state."""

from __future__ import annotations

import pytest
import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Answer, Group, Search, Trajectory
from holdfast.base.errors import ConfigError
from holdfast.methods.credit import action_credit
from holdfast.methods.registry import GiGPO, Methods
from holdfast.recipe import Loss, load
from holdfast.train.objective import Objective
from holdfast.train.rollouts import training_batch

from ..rollouts import rollout, turn

TEXTS = {4: "Oslo is a city", 5: "Elephants never forget", 6: "no passage", 7: "Oslo is a city."}


def searching(reward: float, *observations: int) -> Trajectory:
    """Searches whose observations are single tokens, then an answer; two tokens a turn."""
    searches = (turn(Search("q"), observation=(o,), observation_text=TEXTS[o]) for o in observations)
    return rollout(*searches, turn(Answer("x")), right=reward)


# Two rollouts find passage 4, and one of them answers right; a third finds 5 and searches again.
GROUP = Group("q", (searching(1.0, 4), searching(0.0, 4), searching(1.0, 5, 6)))


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
    near = Group("q", (searching(1.0, 4), searching(0.0, 7)))
    batch = TokenBatch.from_trajectories([near], pad_token_id=0)
    answers = batch.action_ids == 2
    assert bool((action_credit(GiGPO(), batch, [near])[answers] != 0).all())
    assert bool((action_credit(GiGPO(similarity=1.0), batch, [near])[answers] == 0).all())


def test_other_questions_are_not_the_same_state() -> None:
    other = Group("r", (searching(0.0, 4), searching(0.0, 4)))
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
