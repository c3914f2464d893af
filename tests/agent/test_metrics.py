"""Metrics of a step against numbers worked out by hand, and what is absent when there is nothing to say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.metrics import (
    advantage_metrics,
    displacement_metrics,
    likelihood_metrics,
    likelihood_rows,
    per_token_mean,
    retrieval_metrics,
    rollout_metrics,
    sampler_metrics,
)
from holdfast.agent.searching import RolloutStats
from holdfast.agent.trajectory import Action, Answer, Group, Invalid, Search, Status, Trajectory, Turn
from holdfast.base.glossary import METRICS, glossary_entry
from holdfast.model.sampling import SamplingMask


def turn(action: Action, said: int, heard: int = 0, **more: object) -> Turn:
    return Turn(
        tokens=tuple(range(2, 2 + said)),
        logprobs=(-1.0,) * said,
        observation=(9,) * heard,
        action=action,
        **more,  # type: ignore[arg-type]
    )


def rollout(*turns: Turn, reward: float | None = 0.0, em: float = 0.0, f1: float = 0.0, **more: object) -> Trajectory:
    parts = {} if reward is None else {"em": em, "f1": f1}
    return Trajectory(example_id="q", prompt=(1,), turns=turns, reward=reward, reward_parts=parts, **more)  # type: ignore[arg-type]


RIGHT = rollout(turn(Search("a"), 3, 2, hits=("d1",)), turn(Answer("x"), 2), reward=1.0, em=1.0, f1=1.0)
WRONG_LATER = rollout(
    turn(Search("a"), 1, 2, hits=("d1",), observation_truncated=True),
    turn(Invalid("neither"), 5, 1),
    turn(Search("b"), 1),
    status=Status.TRUNCATED,
    f1=0.5,
)
OUTAGE = rollout(turn(Search("c"), 7), reward=None, status=Status.RETRIEVAL_FAILED)
WRONG_AT_ONCE = rollout(turn(Answer("y"), 4))
FOUND_NOTHING = rollout(turn(Search("a"), 2, 1), turn(Answer("z"), 1))
GROUPS = [Group("q1", (RIGHT, WRONG_LATER, OUTAGE)), Group("q2", (WRONG_AT_ONCE, FOUND_NOTHING))]


def test_rollout_metrics() -> None:
    assert rollout_metrics(GROUPS) == pytest.approx(
        {
            "reward/mean": 1 / 4,  # the outage is in no mean
            "reward/em": 1 / 4,
            "reward/f1": 1.5 / 4,
            "rollout/length": (5 + 7 + 4 + 3) / 4,
            "rollout/searches": (1 + 2 + 0 + 1) / 4,
            "rollout/invalid_fraction": 1 / 8,  # of 2 + 3 + 1 + 2 turns
            "rollout/truncated_fraction": 1 / 4,
            "rollout/failed_fraction": 1 / 5,
            "rollout/answered_fraction": 3 / 4,
            "retrieval/empty_fraction": 1 / 3,  # of the searches that came back: a with d1 twice, a with nothing
            "rollout/truncated_observation_fraction": 1 / 4,  # of the turns that heard something
            "rollout/first_action_match_fraction": 1.0,  # q1: they began alike; q2 has none correct
            "rollout/mixed_group_fraction": 1 / 2,
            "sampler/mask_mass": 1.0,
            "retrieval/duplicate_fraction": 1 - 2 / 4,  # a, a, b, a
        }
    )


def test_a_first_search_that_found_nothing_matches_nothing() -> None:
    lucky = replace(FOUND_NOTHING, reward=1.0, reward_parts={"em": 1.0, "f1": 1.0})
    assert "rollout/first_action_match_fraction" not in rollout_metrics([Group("q", (lucky, FOUND_NOTHING))])
    metrics = rollout_metrics([Group("q", (RIGHT, FOUND_NOTHING, WRONG_LATER))])
    assert metrics["rollout/first_action_match_fraction"] == 1 / 2


def test_an_outage_has_no_reward() -> None:
    """Absent, not 0: nobody may take it for a collapse."""
    metrics = rollout_metrics([Group("q", (OUTAGE, OUTAGE))])
    assert metrics == {"rollout/failed_fraction": 1.0, "rollout/mixed_group_fraction": 0.0, "sampler/mask_mass": 1.0}


def test_rollouts_without_a_search_have_no_search_metrics() -> None:
    metrics = rollout_metrics([Group("q", (WRONG_AT_ONCE,))])
    assert not {
        "retrieval/duplicate_fraction",
        "rollout/truncated_observation_fraction",
        "rollout/first_action_match_fraction",
    } & set(metrics)
    assert metrics["rollout/searches"] == 0
    assert retrieval_metrics(RolloutStats()) == {}


def test_retrieval_metrics() -> None:
    stats = RolloutStats(searches=8, failed_searches=2, calls=4, retrieval_seconds=0.1)
    assert retrieval_metrics(stats) == pytest.approx({"retrieval/latency_ms": 25, "retrieval/error_fraction": 0.25})


def a_batch() -> TokenBatch:
    batch = TokenBatch.from_trajectories([Group("q", (RIGHT, WRONG_LATER, OUTAGE))], pad_token_id=0)
    old = torch.zeros_like(batch.rollout_logprobs)
    old[0][batch.action_ids[0] == 1] = torch.tensor([-1.0, -2.0, -3.0])
    old[0][batch.action_ids[0] == 2] = torch.tensor([-4.0, -5.0])
    old[1][batch.action_ids[1] == 1] = -0.5
    old[1][batch.action_ids[1] == 2] = -1.5
    old[1][batch.action_ids[1] == 3] = -2.5
    return replace(batch, old_logprobs=old, advantages=torch.tensor([[1.0], [-0.5], [0.0]]))


def likelihoods(batch: TokenBatch) -> dict[str, float]:
    assert batch.old_logprobs is not None
    rows = likelihood_rows(batch.old_logprobs, batch.loss_mask, batch.action_ids)
    return likelihood_metrics(rows, batch.correct)


def test_likelihood_metrics() -> None:
    assert likelihoods(a_batch()) == pytest.approx(
        {
            "likelihood/correct": -(1 + 2 + 3 + 4 + 5) / 5,
            "likelihood/correct/action_1": -2.0,
            "likelihood/correct/action_2": -4.5,
            "likelihood/incorrect": -(0.5 + 5 * 1.5 + 2.5) / 7,
            "likelihood/incorrect/action_1": -0.5,
            "likelihood/incorrect/action_2": -1.5,
            "likelihood/incorrect/action_3": -2.5,
        }
    )


def test_advantage_metrics() -> None:
    batch = a_batch()
    assert advantage_metrics(batch.advantages, batch.loss_mask) == {
        "advantage/token_mean": pytest.approx((5 * 1.0 - 7 * 0.5) / 12)
    }


def test_likelihood_is_a_mean_of_rollouts_not_of_tokens() -> None:
    short = rollout(turn(Answer("x"), 1), reward=1.0, em=1.0, f1=1.0)
    batch = TokenBatch.from_trajectories([Group("q", (RIGHT, short))], pad_token_id=0)
    old = torch.where(batch.loss_mask, torch.tensor([[-1.0], [-3.0]]), 0.0)
    assert likelihoods(replace(batch, old_logprobs=old))["likelihood/correct"] == -2.0
    assert "likelihood/incorrect" not in likelihoods(replace(batch, old_logprobs=old))


def test_sampler_gap_of_an_untruncated_sampler_is_that_of_the_log_probs() -> None:
    """All rollout log-probs are −1. Old ones: −15 over 5 tokens and −10.5 over 7."""
    gap = sampler_metrics([a_batch()], [Group("q", (RIGHT, WRONG_LATER, OUTAGE))])
    assert gap["sampler/logprob_gap"] == pytest.approx((15 - 5 + 10.5 - 7) / 12)


def test_sampler_gap_of_a_truncated_sampler_counts_the_mass_it_kept() -> None:
    """log q = log π − log mass: with log-probs that agree the gap is −log(0.8) on two of the three tokens."""
    cut = turn(Answer("x"), 3, mask_mass=(0.8, 1.0, 0.8))
    group = Group("q", (rollout(cut),))
    batch = TokenBatch.from_trajectories([group], pad_token_id=0)
    batch = replace(batch, old_logprobs=batch.rollout_logprobs)
    assert sampler_metrics([batch], [group]) == {"sampler/logprob_gap": pytest.approx(-2 * math.log(0.8) / 3)}
    # Where the old log-probs of the loss are over what was kept, the two agree.
    kept = batch.rollout_logprobs.clone()
    kept[batch.loss_mask] -= torch.tensor(cut.mask_mass).log()
    masked = replace(batch, old_logprobs=kept, sampling_mask=SamplingMask((torch.zeros(3, 5, dtype=torch.int32),)))
    found = sampler_metrics([masked], [group])
    assert found == {"sampler/logprob_gap": pytest.approx(0.0, abs=1e-6), "sampler/mask_in_loss": 1.0}
    assert rollout_metrics([group])["sampler/mask_mass"] == pytest.approx(2.6 / 3)


def test_displacement_metrics() -> None:
    nan = float("nan")  # a rollout without a second action
    rows = [[0.2, 0.3, 0.1], [-0.1, -0.1, nan], [0.5, 0.6, -0.2], [-0.3, -0.3, nan]]
    metrics = displacement_metrics(torch.tensor(rows), torch.tensor([True, True, True, False]))
    assert metrics == pytest.approx(
        {
            "displacement/rollouts": 4,
            "displacement/correct": 0.2,
            "displacement/correct/action_1": 0.8 / 3,
            "displacement/correct/action_2": -0.05,
            "displacement/fraction": 1 / 3,
            "displacement/action_fraction": 2 / 5,
            "displacement/incorrect": -0.3,
            "displacement/incorrect/action_1": -0.3,
        }
    )
    assert set(displacement_metrics(torch.tensor([[0.1, 0.1]]), torch.tensor([False]))) == {
        "displacement/rollouts",
        "displacement/incorrect",
        "displacement/incorrect/action_1",
    }


def test_per_token_mean_ignores_what_is_masked() -> None:
    values = torch.tensor([[1.0, 3.0, float("nan")], [float("inf")] * 3])
    mask = torch.tensor([[True, True, False], [False] * 3])
    assert per_token_mean(values, mask).tolist() == [2.0, 0.0]


def test_the_glossary_has_one_text_for_numbered_names() -> None:
    assert glossary_entry("likelihood/incorrect/action_12") == METRICS["likelihood/incorrect/action_<k>"]
    assert glossary_entry("likelihood/correct") == METRICS["likelihood/correct"]
    assert glossary_entry("likelihood/corect") is None
