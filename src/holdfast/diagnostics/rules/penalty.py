"""A penalty that does nothing: PEN001."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnostics.log import Log, finite
from holdfast.diagnostics.rules.rule import Check, Rows, Rule, Signal
from holdfast.trailing import Truths, Values, highest

ACTIVE, PRESERVED, TERM = "penalty/active_fraction", "penalty/preserved_fraction", "loss/penalty"
K = "optimizer_steps_per_rollout"
RATIO, DROP, REWARD, MIXED = "ratio/max", "penalty/mean_decrease", "reward/mean", "rollout/mixed_group_fraction"

FEWEST_BATCHES = 3
"""Rollout batches that show a penalty of one optimizer step per batch: it is 0 for good."""
BATCHES_AT_SEVERAL_STEPS = 10
"""Rollout batches for which a penalty that can act has to be 0: it is 0 while all it preserves becomes likelier."""

ONE_STEP = ": with one optimizer step per rollout batch the policy always equals the old one"


def has_penalty(log: Log) -> bool:
    return ACTIVE in log.series or TERM in log.series


@dataclass(frozen=True, slots=True)
class Zeros:
    """Where a penalty has been 0 since the start, in rows enough."""

    where: Truths
    steps: Values
    """[N]: optimizer steps per rollout batch; NaN where they are not logged."""
    batches: NDArray[np.int64]
    """[N]: rollout batches so far that count."""
    by_moves: Truths
    """[N]: whether only rows count in which the policy had moved."""


def always_zero(rows: Rows) -> Zeros | None:
    """None where the penalty acts in the first row.

    With one optimizer step per rollout batch a penalty is 0 for good, and a few batches show it. With several it is
    0 on the first of them, and wherever nothing that it preserves has become less likely: then only rows count in which
    the policy had moved, where the log has that, and more batches of them.

    Rows in which there was nothing to preserve, or nothing to learn, prove nothing.
    """
    value, *preserved = rows.columns
    if value[0] != 0:
        return None
    steps = rows.latest(K)
    moved = policy_moved(rows)
    by_moves = (steps > 1) & ~np.isnan(moved)
    counts = np.where(by_moves, moved == 1, True) & (rows.latest(MIXED) != 0)
    if preserved:
        counts &= preserved[0] > 0
    batches = batches_among(rows, counts)
    enough = batches >= np.where(by_moves, BATCHES_AT_SEVERAL_STEPS, FEWEST_BATCHES)
    return Zeros(enough & counts & (np.cumsum(value != 0) == 0), steps, batches, by_moves)


def is_zero_at_one_step(rows: Rows) -> Signal | None:
    """Or where the log does not have the number of steps."""
    zeros = always_zero(rows)
    if zeros is None:
        return None
    return Signal(
        zeros.where & ~(zeros.steps > 1),
        lambda: {rows.names[0]: np.zeros(len(rows.steps)), K: zeros.steps},
        lambda: {"why": np.where(np.isnan(zeros.steps), "", ONE_STEP)},
    )


def is_zero_at_several_steps(rows: Rows) -> Signal | None:
    zeros = always_zero(rows)
    if zeros is None:
        return None
    return Signal(
        zeros.where & (zeros.steps > 1),
        lambda: {rows.names[0]: np.zeros(len(rows.steps)), K: zeros.steps},
        lambda: {"batches": zeros.batches, "that": np.where(zeros.by_moves, " in which the policy moved", "")},
    )


def policy_moved(rows: Rows) -> Values:
    """[N]: 1 where the policy differed from the one that made the rollouts, 0 where not, NaN where neither series is
    logged."""
    result = np.full(len(rows.steps), np.nan)
    for name, still in ((RATIO, 1.0), (DROP, 0.0)):
        if name in rows.log.series:
            logged = finite(rows.log.series[name])
            at = np.isin(rows.steps, logged.steps, assume_unique=True)
            differs = logged.values[np.searchsorted(logged.steps, rows.steps[at])] > still
            result[at] = np.fmax(result[at], differs)
    return result


def batches_among(rows: Rows, counts: Truths) -> NDArray[np.int64]:
    """[N]: rollout batches so far that have a row that counts. A batch begins where a reward is logged: TRL logs every
    optimizer step, and the reward on those that begin with new rollouts. Without rewards every row is one."""
    logged = rows.log.series[REWARD].steps if REWARD in rows.log.series else np.empty(0, np.int64)
    rewards = np.searchsorted(logged, rows.steps, side="right")
    batch = np.cumsum((rewards == 0) | (np.diff(rewards, prepend=0) > 0))
    counted = highest(np.where(counts, batch, 0))
    return np.cumsum(counts & (batch > np.append(0, counted)[:-1]))


def inert_checks(series: tuple[str, ...], better: tuple[tuple[str, ...], ...]) -> tuple[Check, Check]:
    """By the number of optimizer steps per rollout batch: the advice is another."""
    at_one = Check(
        series=series,
        signal=is_zero_at_one_step,
        message="The penalty has been exactly 0 since the start{why}.",
        better=better,
        look_at=series[:1],
    )
    at_several = Check(
        series=series,
        signal=is_zero_at_several_steps,
        message="The penalty has been exactly 0 since the start, in {batches} rollout batches{that}.",
        better=better,
        look_at=series[:1],
        remedy={
            "holdfast": "Lower `loss.penalty.threshold` (LLDS) or raise `loss.penalty.tau` (SAPO), or let "
            "`loss.penalty.preserve` select more rollouts.",
            "trl": "Lower `threshold` of LLDS or raise `tau` of SAPO, or let `preserve` select more rollouts.",
            "verl": "Lower `actor_rollout_ref.actor.policy_loss.penalty_threshold` (LLDS) or raise "
            "`actor_rollout_ref.actor.policy_loss.penalty_tau` (SAPO), or let "
            "`actor_rollout_ref.actor.policy_loss.penalty_preserve` select more rollouts.",
            "unknown": "Lower the penalty's threshold, or let it preserve more rollouts.",
        },
    )
    return at_one, at_several


PEN001 = Rule(
    code="PEN001",
    title="penalty inert",
    needs=((ACTIVE,), (TERM,)),
    applies=has_penalty,
    checks=(
        *inert_checks((ACTIVE, PRESERVED), better=()),
        *inert_checks((ACTIVE,), better=((ACTIVE, PRESERVED),)),
        *inert_checks((TERM,), better=((ACTIVE,),)),
    ),
    meaning="The likelihood-preserving penalty has been exactly 0 since the start.",
    impact="Such a penalty compares the policy with the one that made the rollouts. With one optimizer step per "
    "rollout batch they are always equal: the run is plain GRPO under another name.",
    remedy={
        "holdfast": "Set `train.optimizer_steps_per_rollout` to 2 or more; the published runs took 10.",
        "trl": "Set `steps_per_generation` to at least twice `gradient_accumulation_steps`, or `num_iterations` "
        "to 2 or more.",
        "verl": "Set `actor_rollout_ref.actor.ppo_mini_batch_size` to at most half of `data.train_batch_size`, or "
        "`actor_rollout_ref.actor.ppo_epochs` to 2 or more.",
        "unknown": "Take two or more optimizer steps per rollout batch.",
    },
    limitations="With recomputed log-probs in half precision old and new differ by rounding, and the penalty acts on "
    "noise: it is then not exactly 0, and this rule is silent. With several optimizer steps per rollout batch it "
    "takes ten batches in which the policy moved, and the advice is another: a threshold that nothing passes, or "
    "nothing to preserve.",
)
