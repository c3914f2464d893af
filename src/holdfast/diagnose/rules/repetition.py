"""Repetition: rollouts repeat themselves far more than when the run began (REP001)."""

from __future__ import annotations

from functools import partial

from holdfast.base.trailing import held, margin, mean_at_first, trailing_mean
from holdfast.diagnose.log import has
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rollouts import REWARD, RISE_ERRORS, does_not_pay
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal

REPEATED, LOOPING = "rollout/repetition", "rollout/looping_fraction"

ROWS, ROWS_RUNNING = 5, 3
"""Rows in a mean; latest rows that each have half of the rise, so that a batch or two of odd questions do not count."""
RISE = 0.2
"""Rise above the mean of the first rows: one rollout in five is nothing but a loop, or one action in five is a copy.
Restating the question or trying a search twice makes a few percent in sound text."""


def repeats_more(rows: Rows, *, costs: bool) -> Signal | None:
    """The share is far above that of the first rows, and the reward does not rise with it. With `costs`, only where the
    reward has dropped, as far as it is logged."""
    (share,) = rows.columns
    smooth, began = trailing_mean(share, ROWS), mean_at_first(share, ROWS)
    rise = smooth - began
    if not (rise > RISE).any():
        return None
    where = (rise > RISE) & (rise > margin(share, ROWS, RISE_ERRORS)) & held(share > began + RISE / 2, ROWS_RUNNING)
    return Signal(
        where & does_not_pay(rows, costs=costs),
        lambda: {rows.names[0]: smooth},
        lambda: {"before": began},
        normal=rise < RISE / 2,
    )


REP001 = Rule(
    code="REP001",
    title="rollouts repeat themselves",
    kind="symptom",
    needs=((REPEATED,), (LOOPING,)),
    applies=lambda log: has(log, REPEATED) or has(log, LOOPING),
    checks=tuple(
        Check(
            series=(name,),
            signal=partial(repeats_more, costs=costs),
            message=message + ("" if costs else " The reward has not dropped so far."),
            min_rows=2 * ROWS,
            look_at=(name, "rollout/length", REWARD),
            better=better,
            level="finding" if costs else "note",
        )
        for costs in (True, False)
        for name, message, better in (
            (
                REPEATED,
                "Rollouts repeat themselves: {rollout/repetition:.0%} of their text occurred before in the same "
                "rollout, up from {before:.0%} when the log began.",
                (),
            ),
            (
                LOOPING,
                "{rollout/looping_fraction:.0%} of the rollouts mostly repeat themselves, up from {before:.0%} when "
                "the log began.",
                ((REPEATED,),),
            ),
        )
    ),
    # An agent that gets nothing back tries the same search again.
    suppressed_by=("RET001", "RET002", "TOL002"),
    meaning="Rollouts repeat the same sentence, search or tokens far more than when the run began.",
    impact="A loop ends at the limit of tokens or turns, without an answer. Its tokens are very likely, so entropy may "
    "not warn of it.",
    remedy=advise(
        "Read some [rollouts]. Do what an earlier finding advises. If there is none, go back to a checkpoint from "
        "before this step, and lower the [learning rate]. If long rollouts earn more, change the [weights of the "
        "reward]. A repetition penalty in the sampler only hides the loops: the model that is trained keeps them."
    ),
    limitations="A run that repeats itself from the start has to get worse. It is a note if the reward has not "
    "dropped, and is not reported while the reward rises. Broken text need not repeat: its share may even "
    "fall. slime counts only rollouts of more than 10,000 characters.",
)
