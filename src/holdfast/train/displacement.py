"""Displacement by one update of its own rollouts: metrics of the step, a number for each rollout, and a number for each
token of the rollouts that are logged for people to read. And displacement per sample: by an update on one question
alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.agent.metrics import displacement_metrics, likelihood_rows, rows_to_probe
from holdfast.agent.trajectory import Group, Trajectory
from holdfast.model.tokens import char_lengths
from holdfast.train.learner import Learner
from holdfast.train.listener import Displacement, TurnChange
from holdfast.train.optimizer import borrowed_weights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def measure_displacement(
    learner: Learner,
    batch: TokenBatch,
    groups: Sequence[Group],
    *,
    rows: int,
    logged_questions: int,
    generator: torch.Generator,
) -> tuple[dict[str, float], Displacement]:
    """Metrics, and log-probs of at most `rows` rollouts of `batch`, new minus old, in nats. Correct ones come first.

    The first rollouts of the first `logged_questions` questions are measured too, but they count in a mean only if
    drawn. `batch` must have the learnable rows of `groups`, with the old log-probs of this learner. So the displacement
    is that of the policy, not of the sampler.
    """
    drawn = rows_to_probe(batch.correct, rows, generator)
    first = _rows_of_first(groups, logged_questions)
    measured = drawn + [row for row in first.values() if row not in drawn]
    part = batch.select(measured)
    changes = learner.token_change(part, learner.plan(part, torch.Generator(), steps=1))
    by_action = likelihood_rows(changes, part.loss_mask, part.action_ids)[: len(drawn)]
    means, correct = by_action[:, 0], part.correct[: len(drawn)]
    tokenizer = learner.language_model.tokenizer
    return displacement_metrics(by_action, correct), Displacement(
        correct=tuple(means[correct].tolist()),
        incorrect=tuple(means[~correct].tolist()),
        by_turn={
            question: _by_turn(groups[question].trajectories[0], changes[at][part.loss_mask[at]].tolist(), tokenizer)
            for question, row in first.items()
            for at in [measured.index(row)]
        },
    )


def update_alone(
    learner: Learner, batch: TokenBatch, *, mean_searches: float, seed: int
) -> tuple[Tensor, dict[str, float]]:
    """One update on `batch`, undone at the end, but for the optimizer: the change of each rollout's log-likelihood,
    float [B], in nats, and the metrics of the update. It takes `train.optimizer_steps_per_rollout` optimizer steps, but
    at most one for each rollout."""
    with borrowed_weights(learner.language_model.model):
        plan = learner.plan(batch, torch.Generator().manual_seed(seed))
        old_pass = learner.old_pass(batch, plan)
        metrics = learner.step(old_pass.minibatches, mean_searches=mean_searches)
        return learner.token_change(old_pass.batch, plan).sum(-1), metrics


def measure_per_sample(
    learner: Learner, batch: TokenBatch, *, questions: int, mean_searches: float, seed: int
) -> dict[str, float]:
    """Displacement by updates on one question alone, each from the present weights and with a fresh optimizer: means
    over rollouts of all questions, in nats per token, and the share of questions whose correct rollouts fell. All
    updates are undone.

    At most `questions` questions are drawn from those that have a correct rollout and one with another reward; without
    any there are no metrics.

    Source: Figure 3 of arXiv 2512.04220, for a few questions of a step.
    """
    of_question: dict[int, list[int]] = {}
    for row, group in enumerate(batch.group_ids.tolist()):
        of_question.setdefault(group, []).append(row)
    correct, rewards = batch.correct.tolist(), batch.rewards.tolist()
    usable = [
        rows
        for rows in of_question.values()
        if any(correct[row] for row in rows) and len({rewards[row] for row in rows}) > 1
    ]
    order = torch.randperm(len(usable), generator=torch.Generator().manual_seed(seed)).tolist()
    parts = [batch.select(usable[k]).trim() for k in order[:questions]]
    if not parts:
        return {}
    changes = [update_alone(learner.fresh(), part, mean_searches=mean_searches, seed=seed)[0] for part in parts]
    displaced = sum(float(change[part.correct].mean()) < 0 for change, part in zip(changes, parts, strict=True))
    by_token = torch.cat([change / part.loss_mask.sum(-1) for change, part in zip(changes, parts, strict=True)])
    right = torch.cat([part.correct for part in parts])
    metrics = {
        "displacement/per_sample/questions": float(len(parts)),
        "displacement/per_sample/fraction": displaced / len(parts),
        "displacement/per_sample/correct": float(by_token[right].mean()),
    }
    if not bool(right.all()):
        metrics["displacement/per_sample/incorrect"] = float(by_token[~right].mean())
    return metrics


def _rows_of_first(groups: Sequence[Group], count: int) -> dict[int, int]:
    """Question -> row of its first rollout in the learnable batch, for the first `count` questions. Failed rollouts
    have no row."""
    rows, row = {}, 0
    for question, group in enumerate(groups[:count]):
        for k, trajectory in enumerate(group.trajectories):
            if any(trajectory.loss_mask):
                if k == 0:
                    rows[question] = row
                row += 1
    return rows


def _by_turn(
    trajectory: Trajectory, changes: Sequence[float], tokenizer: PreTrainedTokenizerBase
) -> tuple[TurnChange, ...]:
    turns, start = [], 0
    for turn in trajectory.turns:
        tokens = turn.tokens or ()
        chars = char_lengths(tokens, turn.text, tokenizer)
        turns.append(TurnChange(tuple(chars), tuple(changes[start : start + len(tokens)])))
        start += len(tokens)
    return tuple(turns)
