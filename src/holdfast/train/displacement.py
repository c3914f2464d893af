"""What one update did to its own rollouts: the step's metrics, a number for each rollout, and one for each token of the
episodes that are written down for people to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from holdfast.batch import TokenBatch
from holdfast.metrics import displacement_metrics, per_token_mean, rows_to_probe
from holdfast.search.tokens import char_lengths
from holdfast.train.update import Forward, plan_update, token_change
from holdfast.trajectory import Group, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class TurnChange:
    """The tokens of one turn, by what the update did to them."""

    chars: tuple[int, ...]
    """Characters of the turn's text that each token completes; they sum to its length. 0 for a token that ends inside a
    character, and for one that is not in the text (the end of the sequence)."""
    changes: tuple[float, ...]
    """New minus old log-prob of each token, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Displacement:
    """Change of log-likelihood by the whole update of a step."""

    correct: tuple[float, ...]
    """Of each measured rollout that is correct, in nats per sampled token."""
    incorrect: tuple[float, ...]
    shown: Mapping[int, tuple[TurnChange, ...]] = field(default_factory=dict)
    """Number of the question in its batch -> the turns of its first episode."""


def measure(
    batch: TokenBatch,
    groups: Sequence[Group],
    forward: Forward,
    tokenizer: PreTrainedTokenizerBase,
    *,
    rows: int,
    shown: int,
    micro_batch_tokens: int,
    generator: torch.Generator,
) -> tuple[dict[str, float], Displacement]:
    """The rollouts of `batch` under the new weights minus under the old: at most `rows`, right ones first.

    The first episodes of the first `shown` questions are measured too, but count in no mean unless they were drawn.
    `batch` must be the learnable rows of `groups`, with the old log-probs of this model: the displacement of the
    policy, not of the sampler.
    """
    drawn = rows_to_probe(batch.correct, rows, generator)
    first = _rows_of_first(groups, shown)
    measured = drawn + [row for row in first.values() if row not in drawn]
    part = batch.select(measured)
    plan = plan_update(part.lengths.tolist(), 1, micro_batch_tokens, torch.Generator())
    changes = token_change(part, plan, forward)
    means = per_token_mean(changes, part.loss_mask)[: len(drawn)]
    correct = part.correct[: len(drawn)]
    return displacement_metrics(means, correct), Displacement(
        correct=tuple(means[correct].tolist()),
        incorrect=tuple(means[~correct].tolist()),
        shown={
            question: _by_turn(groups[question].trajectories[0], changes[at][part.loss_mask[at]].tolist(), tokenizer)
            for question, row in first.items()
            for at in [measured.index(row)]
        },
    )


def _rows_of_first(groups: Sequence[Group], count: int) -> dict[int, int]:
    """Question -> the row of its first episode in the learnable batch, for the first `count` questions; failed episodes
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
        own = tuple(changes[start : start + len(tokens)])
        turns.append(TurnChange(tuple(char_lengths(tokens, turn.text, tokenizer)), own))
        start += len(tokens)
    return tuple(turns)
