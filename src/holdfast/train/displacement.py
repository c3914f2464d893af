"""Displacement by one update of its own rollouts: metrics of the step, a number for each rollout, and a number for each
token of the rollouts that are logged for people to read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.metrics.rollouts import displacement_metrics, likelihood_rows, rows_to_probe
from holdfast.agent.trajectory import Group, Trajectory
from holdfast.model.text.tokens import Tokenizer, char_lengths
from holdfast.train.learner import Learner
from holdfast.train.listener import Displacement, TurnChange


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
    changes = learner.token_change(part, learner.plan_whole(part))
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


def _by_turn(trajectory: Trajectory, changes: Sequence[float], tokenizer: Tokenizer) -> tuple[TurnChange, ...]:
    turns, start = [], 0
    for turn in trajectory.turns:
        tokens = turn.tokens or ()
        chars = char_lengths(tokens, turn.text, tokenizer)
        turns.append(TurnChange(tuple(chars), tuple(changes[start : start + len(tokens)])))
        start += len(tokens)
    return tuple(turns)
