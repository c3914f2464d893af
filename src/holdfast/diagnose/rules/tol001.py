"""TOL001: the agent stops calling its tool.

Meaning: The agent used to call its tool, and now hardly ever does.

Impact: It answers from memory or guesses. Rollouts without calls teach nothing about calls, so the agent rarely starts
calling again by itself.

Limitations: The agent must have used the tool in ten rows before. If the reward has clearly risen since then, this is a
note, because the task may not need the tool. Each trainer counts turns differently.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from holdfast.diagnose.log import Log, has
from holdfast.diagnose.log.trailing import Values, break_in, delayed, highest, last_where, lowest, margin, trailing_mean
from holdfast.diagnose.rules._parts import CALLS, REWARD, TURNS
from holdfast.diagnose.rules._parts.tools import ONE_TURN, USED_TURNS
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import COLLAPSING, Check, Rows, Rule, Signal, from_start

EVALUATED = "eval/searches"


def takes_turns(log: Log) -> bool:
    """Whether rollouts of the run call tools or take turns, as far as the log shows."""
    return log.host == "holdfast" or any(has(log, name) for name in (CALLS, TURNS, EVALUATED))


def stops(rows: Rows, column: Values, *, pays: bool) -> Signal | None:
    """Calls per rollout, or turns above the least, fall to a tenth of an established use.

    With `pays`, only where the reward has risen since half of the use was gone; without it, only elsewhere.
    """
    is_turns = rows.names == (TURNS,)
    use = column - ONE_TURN.get(rows.log.host, 1.0) if is_turns else column
    enough = USED_TURNS if is_turns else USED_CALLS
    now, usual = trailing_mean(use, ROWS), trailing_mean(use, USUAL_ROWS)
    established = np.where(np.arange(len(use)) >= USUAL_ROWS - 1, usual, 0.0)
    most = highest(established)
    few = np.zeros(len(use), bool)
    for window in (ROWS, LONG_ROWS):
        mean = trailing_mean(use, window)
        fewer = (mean <= LEFT_SHARE * most) & (use <= 2 * LEFT_SHARE * most) & (most >= enough)
        few |= fewer & (most - mean > margin(use, window, LOST_ERRORS)) if fewer.any() else fewer
    if not few.any():
        return None
    best = last_where(established >= most)
    half = last_where(now >= most / 2)
    reward = rows.latest(REWARD, lambda values: trailing_mean(values, USUAL_ROWS))
    by_chance = rows.latest(REWARD, lambda values: margin(values, USUAL_ROWS, RISE_ERRORS))
    better = reward - reward[half] > by_chance
    return Signal(
        few & (better == pays),
        lambda: {rows.names[0]: trailing_mean(column, ROWS), REWARD: reward},
        lambda: {"before": trailing_mean(column, USUAL_ROWS)[best], "then": rows.steps[best]},
        normal=(now >= 3 * LEFT_SHARE * most) | (better != pays),
        began=lambda row: break_in(use, int(best[row]), row),
    )


ROWS, LONG_ROWS, USUAL_ROWS = 5, 20, 10
"""Rows in the two means that count as now, and in the mean that counts as an established use. A row of four rollouts
may have no call by chance, so with few calls only the longer mean can tell."""
USED_CALLS = 0.3
"""Calls per rollout in ten rows from which on an agent uses its tool."""
LEFT_SHARE = 0.1
"""Share of that use that is left, if it has stopped. An agent that learns to need fewer calls keeps more."""
LOST_ERRORS = 4.0
"""Standard errors of the difference of two means by which the use has fallen."""
RISE_ERRORS = 3.0
"""Standard errors by which the reward has risen since half of the use was gone. Then the tool may not be needed."""


def is_never_called(rows: Rows, calls: Values) -> Signal:
    """Hardly any rollout has called the tool since the log began."""
    mean = trailing_mean(calls, LONG_ROWS)
    never = highest(mean) < MIN_CALLS
    enough = np.arange(len(calls)) >= LONG_ROWS - 1
    return Signal(never & enough, lambda: {CALLS: mean}, normal=~never, began=from_start)


MIN_CALLS = 0.05
"""Calls per rollout below which a tool is as good as never called: two of three groups of eight then have no call that
could be reinforced."""


def stops_in_evaluations(rows: Rows, calls: Values) -> Signal:
    """A tenth of the fewest calls in the evaluations before. Each is a mean of many rollouts, so a few are enough."""
    before = delayed(lowest(calls), 1)
    few = (calls <= LEFT_SHARE * before) & (before >= USED_CALLS)
    back = calls >= 3 * LEFT_SHARE * highest(calls)
    return Signal(few, words=lambda: {"before": before}, normal=back)


USED_EVALUATIONS = 3
"""Evaluations that establish a use."""


RULE = Rule(
    title="agent stops calling its tool",
    needs=((CALLS,), (TURNS,)),
    applies=takes_turns,
    checks=(
        *(
            Check(
                series=(name,),
                signal=partial(stops, pays=pays),
                message=message + (" The reward has risen meanwhile." if pays else ""),
                min_rows=USUAL_ROWS,
                look_at=(name, REWARD),
                better=better,
                level="note" if pays else "finding",
            )
            for pays in (False, True)
            for name, message, better in (
                (
                    CALLS,
                    "The agent has stopped calling its tool: {rollout/searches:.2g} calls per rollout, down from "
                    "{before:.2g} at step {then}.",
                    (),
                ),
                (
                    TURNS,
                    "Rollouts end at once, so the agent has stopped calling its tool: {rollout/turns:.2g} turns, down "
                    "from {before:.2g} at step {then}.",
                    ((CALLS,),),
                ),
            )
        ),
        Check(
            series=(EVALUATED,),
            signal=stops_in_evaluations,
            message="The agent has stopped calling its tool: {eval/searches:.2g} calls per question in the evaluation, "
            "down from {before:.2g} or more.",
            min_rows=USED_EVALUATIONS + 1,
        ),
        Check(
            series=(CALLS,),
            signal=is_never_called,
            message="The agent has hardly ever called its tool since the log began: {rollout/searches:.2g} calls per "
            "rollout.",
            remedy=advise(
                "Read some [rollouts]. If the prompt describes the tool in the form that the parser reads, start "
                "from a [better policy], or show a call in the prompt. If the questions can be answered without the "
                "tool, look for another cause."
            ),
            level="reason",
        ),
    ),
    # A tool that fails is left alone for a reason, and a policy that breaks does not write calls.
    suppressed_by=("RET001", "RET002", "TOL002", "STP001"),
    suppressed_by_earlier=(*COLLAPSING, "ENT003"),
    remedy=advise(
        "Go back to a checkpoint from before this step. Read some [rollouts] from there: calls that fail, return "
        "nothing useful, or exceed the [limits of tokens and turns] teach the agent to avoid them. Change the "
        "[weights of the reward] so that an answer without a call earns less, or lower the [learning rate]."
    ),
)
