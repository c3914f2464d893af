"""PEN001: a penalty that does nothing.

Meaning: The likelihood-preserving penalty has been exactly 0 since the start of the run.

Impact: The penalty compares the policy with the policy that generated the rollouts. With one optimizer step per rollout
batch, the two are always equal. The run is then plain GRPO.

Limitations: In half precision, old and new log-probs differ by rounding. The penalty then acts on noise and is not
exactly 0, so the rule does not find it. With several optimizer steps per rollout batch, the rule needs ten batches in
which the policy changed. The penalty is then 0 because no token exceeds the threshold, or because no rollout is
preserved.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from holdfast.diagnose.log import Log
from holdfast.diagnose.log.trailing import Values
from holdfast.diagnose.rules._parts import MIXED, K
from holdfast.diagnose.rules._parts.moves import policy_moved
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal, from_start

ACTIVE = "penalty/active_fraction"
TERM = "loss/penalty"
PRESERVED = "penalty/preserved_fraction"


def has_penalty(log: Log) -> bool:
    """Whether the log has a series of a penalty."""
    return ACTIVE in log.series or TERM in log.series


def zero_since_start(rows: Rows, *columns: Values, several: bool) -> Signal | None:
    """The penalty has been 0 in every row so far. None if it is positive in the first row.

    `several` chooses rows with several optimizer steps per batch; otherwise rows with one, or with an unknown number.

    With one optimizer step per rollout batch a penalty stays 0, and a few batches prove it. With several steps it is 0
    on the first of them, and whenever no preserved token has become less likely. Then a row counts only if the policy
    had moved, as far as the log shows it, and more batches are needed.

    A row is a rollout batch (`diagnose.log.batches`), or several of them. A row without preserved tokens, or without
    contrast in its groups, does not count.
    """
    value, *preserved = columns
    if not rows.is_zero(rows.names[0])[0]:
        return None
    steps = rows.latest(K)
    moved = policy_moved(rows)
    by_moves = (steps > 1) & ~np.isnan(moved)
    counts = np.where(by_moves, moved == 1, True) & (rows.latest(MIXED) != 0)
    if preserved:
        counts &= preserved[0] > 0
    batches = np.cumsum(counts)
    enough = batches >= np.where(by_moves, BATCHES_AT_SEVERAL_STEPS, BATCHES_AT_ONE_STEP)
    zero = enough & counts & (np.cumsum(value != 0) == 0)
    return Signal(
        zero & ((steps > 1) == several),
        lambda: {rows.names[0]: np.zeros(len(rows.steps)), K: steps},
        lambda: {
            "why": np.where(np.isnan(steps), "", ONE_STEP),
            "batches": batches,
            "that": np.where(by_moves, " in which the policy changed", ""),
        },
        began=from_start,
    )


BATCHES_AT_ONE_STEP = 3
"""Rollout batches with a penalty of 0 before a finding. With one optimizer step per batch it is always 0."""
BATCHES_AT_SEVERAL_STEPS = 10
"""The same with several steps per batch: the penalty can be 0 while all preserved tokens become more likely."""
ONE_STEP = ": with one optimizer step per rollout batch the policy always equals the old policy"


def inert_checks(series: tuple[str, ...], better: tuple[tuple[str, ...], ...]) -> tuple[Check, Check]:
    """Two checks, because the advice depends on the number of optimizer steps per rollout batch."""
    at_one = Check(
        series=series,
        signal=partial(zero_since_start, several=False),
        message="The penalty has been exactly 0 since the start{why}.",
        better=better,
        look_at=series[:1],
    )
    at_several = replace(
        at_one,
        signal=partial(zero_since_start, several=True),
        message="The penalty has been exactly 0 since the start, in {batches} rollout batches{that}.",
        remedy=advise(
            "Let the penalty act on more tokens: lower the [threshold] of LLDS, or raise the [tau] of SAPO. Or let it "
            "[preserve more rollouts]."
        ),
    )
    return at_one, at_several


RULE = Rule(
    title="penalty has no effect",
    kind="logged cause",
    needs=((ACTIVE,), (TERM,)),
    applies=has_penalty,
    checks=(
        *inert_checks((ACTIVE, PRESERVED), better=()),
        *inert_checks((ACTIVE,), better=((ACTIVE, PRESERVED),)),
        *inert_checks((TERM,), better=((ACTIVE,),)),
    ),
    remedy=advise(
        "Take two or more [optimizer steps per rollout batch]. The published runs used ten.",
        also={
            "trl": "With one iteration, `steps_per_generation` must be at least twice `gradient_accumulation_steps`.",
            "verl": "With one epoch, `data.train_batch_size` must be at least twice "
            "`actor_rollout_ref.actor.ppo_mini_batch_size`.",
        },
    ),
)
