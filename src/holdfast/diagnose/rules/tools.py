"""Searches that fail (RET001) or find nothing (RET002), and tools: calls that stop (TOL001), or fail (TOL002)."""

from __future__ import annotations

from functools import partial

import numpy as np

from holdfast.diagnose.log import Log, has
from holdfast.diagnose.log.collapse import reward_range
from holdfast.diagnose.log.trailing import (
    Truths,
    Values,
    break_in,
    delayed,
    held,
    highest,
    last_where,
    lowest,
    margin,
    trailing_mean,
)
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal, from_start

CALLS, TURNS, FAILED, REWARD = "rollout/searches", "rollout/turns", "rollout/failed_call_fraction", "reward/mean"
LENGTH, EVALUATED = "rollout/length", "eval/searches"

ROWS, LONG_ROWS, USUAL_ROWS = 5, 20, 10
"""Rows in the two means that count as now, and in the mean that counts as an established use. A row of four rollouts
may have no call by chance, so with few calls only the longer mean can tell."""
LEAST_CALLS = 0.01
"""Calls per rollout below which a tool is as good as never called."""
USED_EVALUATIONS = 3
"""Evaluations that establish a use."""
USED_CALLS = 0.3
"""Calls per rollout in ten rows from which on an agent uses its tool."""
LEFT_SHARE = 0.1
"""Share of that use that is left, if it has stopped. An agent that learns to need fewer calls keeps more."""
LOST_ERRORS = 4.0
"""Standard errors of the difference of two means by which the use has fallen."""
RISE_ERRORS = 3.0
"""Standard errors by which the reward has risen since half of the use was gone. Then the tool may not be needed."""

ONE_TURN: dict[str, float] = {"verl": 2.0, "verl-async": 2.0}
"""Turns of a rollout without a call, where it is not 1. verl counts the question too."""
USED_TURNS = 0.5
"""Turns above that, in ten rows, from which on an agent takes turns."""

FAILED_SHARES = {3: 0.5, 10: 0.3}
"""Rows in a mean -> the share of the calls that fail in them. A row may have a single call."""
FAILED_LOGITS, LEAST_SHARE = 1.5, 0.02
"""How far the log-odds of a failure are above their lowest: 5 % become 20 %, 50 % become 82 %. A share near one half
varies more than one near 0. Below the least share, the log-odds of few calls mean nothing. A model that learns to write
calls begins with many malformed ones, and the share falls."""
RISE_OF_FAILURES_ERRORS = 5.0
"""Standard errors, as many as a fall of the reward takes."""
ALWAYS_FAILED, ALWAYS_ROWS = 0.9, 10
"""Share of the calls that fail in each of the first rows, if the tool never worked. A model that only writes malformed
calls at first writes some that work by then."""

SHORT_SHARE = 0.6
"""Share of the usual length that is left in two rows, if the tool's results are missing from it."""
SAME_TURNS_SHARE = 0.1
"""Change of the turns, as a share of those with a call, within which the agent acts as before."""
GONE_SHARE, GONE_ERRORS = 0.3, 3.0
"""Share of its range that the reward has lost in the same rows, and standard errors of that."""


def takes_turns(log: Log) -> bool:
    """Whether rollouts of the run call tools or take turns, as far as the log shows."""
    return log.host == "holdfast" or any(has(log, name) for name in (CALLS, TURNS, EVALUATED))


def stops(rows: Rows, *, pays: bool) -> Signal | None:
    """Calls per rollout, or turns above the least, fall to a tenth of an established use.

    With `pays`, only where the reward has risen since half of the use was gone; without it, only elsewhere.
    """
    (column,) = rows.columns
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


def fails_more(rows: Rows) -> Signal:
    """More and more calls fail."""
    (share,) = rows.columns
    low, where = lowest(trailing_mean(share, ROWS)), np.zeros(len(share), bool)
    for window, enough in FAILED_SHARES.items():
        mean = trailing_mean(share, window)
        many = (mean > enough) & (share > enough)
        if many.any():
            many &= (_logits(mean) - _logits(low) > FAILED_LOGITS) & (
                mean - low > margin(share, window, RISE_OF_FAILURES_ERRORS)
            )
        where |= many
    now = trailing_mean(share, ROWS)
    return Signal(
        where,
        lambda: {FAILED: trailing_mean(share, min(FAILED_SHARES))},
        lambda: {"before": low},
        normal=(_logits(now) - _logits(low) < FAILED_LOGITS / 2) & was_called(rows),
        began=lambda row: break_in(share, int(now[: row + 1].argmin()), row),
    )


def results_are_missing(rows: Rows) -> Signal:
    """Rollouts become far shorter from one row to the next and earn less, although the agent takes as many turns. A
    length that counts observations shows so that the tool returns little or nothing."""
    length, turns, reward = rows.columns
    usual, taken, earned = (delayed(trailing_mean(column, ROWS), 2) for column in rows.columns)
    calls = taken - ONE_TURN.get(rows.log.host, 1.0)
    short = held(length < SHORT_SHARE * usual, 2) & (delayed(length, 2) > SHORT_SHARE * usual)
    alike = held(np.abs(turns - taken) < SAME_TURNS_SHARE * calls, 2) & (calls > USED_TURNS)
    lost = earned - trailing_mean(reward, 2)
    costs = lost > np.maximum(
        GONE_SHARE * reward_range(earned, lowest(reward)), delayed(margin(reward, 2, GONE_ERRORS), 2)
    )
    return Signal(
        short & alike & costs,
        lambda: {LENGTH: length, TURNS: turns, REWARD: trailing_mean(reward, 2)},
        lambda: {"before": usual},
        normal=length > (1 + SHORT_SHARE) / 2 * highest(usual),
    )


def is_never_called(rows: Rows) -> Signal:
    """Hardly any rollout has called the tool since the log began."""
    (calls,) = rows.columns
    mean = trailing_mean(calls, LONG_ROWS)
    never = highest(mean) < LEAST_CALLS
    enough = np.arange(len(calls)) >= LONG_ROWS - 1
    return Signal(never & enough, lambda: {CALLS: mean}, normal=~never, began=from_start)


def stops_in_evaluations(rows: Rows) -> Signal:
    """A tenth of the fewest calls in the evaluations before. Each is a mean of many rollouts, so a few are enough."""
    (calls,) = rows.columns
    before = delayed(lowest(calls), 1)
    few = (calls <= LEFT_SHARE * before) & (before >= USED_CALLS)
    back = calls >= 3 * LEFT_SHARE * highest(calls)
    return Signal(few, lambda: {EVALUATED: calls}, lambda: {"before": before}, normal=back)


def _logits(share: Values) -> Values:
    """Log-odds of a share."""
    share = np.clip(share, LEAST_SHARE, 1 - LEAST_SHARE)
    return np.asarray(np.log(share / (1 - share)))


def always_fails(rows: Rows) -> Signal:
    """Nearly every call has failed since the log began."""
    (share,) = rows.columns
    often = share > ALWAYS_FAILED
    since = np.cumsum(~often) == 0
    return Signal(
        since & (np.arange(len(share)) >= ALWAYS_ROWS - 1),
        lambda: {FAILED: trailing_mean(share, ROWS)},
        normal=(trailing_mean(share, ROWS) < ALWAYS_FAILED / 2) & was_called(rows),
        began=from_start,
    )


def was_called(rows: Rows) -> Truths:
    """[N]: where there were calls, as far as the log shows: a share of no calls is logged as 0."""
    calls = rows.latest(CALLS)
    return np.asarray(~((calls == 0) | (delayed(calls, 1) == 0)))


TOL001 = Rule(
    code="TOL001",
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
            message="The agent hardly ever calls its tool: {rollout/searches:.2g} calls per rollout, as since the log "
            "began.",
            remedy=advise(
                "Read some [rollouts]. If the prompt describes the tool in the form that the parser reads, start from "
                "a [better policy], or show a call in the prompt. If answers do not need the tool, look elsewhere."
            ),
            level="reason",
        ),
    ),
    # A tool that fails is left alone for a reason, and a policy that breaks does not write calls.
    suppressed_by=("RET001", "RET002", "TOL002", "STP001"),
    suppressed_by_earlier=("LLD001", "LLD002", "LLD003", "ISD001", "ENT001", "ENT003", "RWD001"),
    meaning="The agent called its tool, and now hardly ever does.",
    impact="It answers from memory or guesses. Rollouts without calls have nothing to teach about calls, so the agent "
    "seldom returns to them by itself.",
    remedy=advise(
        "Go back to a checkpoint from before this step. Read some [rollouts] from there: calls that fail, return "
        "nothing useful, or run into a limit ([limits of tokens and turns]) teach the agent to avoid them. Let an "
        "answer without a call earn less ([weights of the reward]), or lower the [learning rate]."
    ),
    limitations="The use must have been established in ten rows. If the reward has clearly risen since, it is "
    "a note, because the task may not need the tool. Turns are counted differently by each trainer.",
)

TOL002 = Rule(
    code="TOL002",
    title="tool calls fail",
    kind="logged cause",
    needs=((FAILED,), (LENGTH, TURNS, REWARD)),
    applies=lambda log: has(log, FAILED) or has(log, LENGTH, TURNS, REWARD),
    checks=(
        Check(
            series=(FAILED,),
            signal=fails_more,
            message="Tools fail or calls are malformed: {rollout/failed_call_fraction:.0%} of the calls, up from "
            "{before:.0%}.",
            min_rows=ROWS,
            look_at=(FAILED, CALLS),
        ),
        Check(
            series=(FAILED,),
            signal=always_fails,
            message="Tools have failed, or calls have been malformed, since the log began: "
            "{rollout/failed_call_fraction:.0%} of the calls.",
            look_at=(FAILED, CALLS),
        ),
        Check(
            series=(LENGTH, TURNS, REWARD),
            signal=results_are_missing,
            message="The tool seems to have stopped answering: within two rows rollouts went from {before:.3g} to "
            "{rollout/length:.3g} tokens and earn less, although the agent takes as many turns as before.",
            min_rows=ROWS + 2,
            better=((FAILED,),),
        ),
    ),
    meaning="Many calls of tools fail, are malformed, or return nothing.",
    impact="The agent gets errors in place of results, so its reward falls although its weights may be sound. It then "
    "learns not to call the tool.",
    remedy=advise(
        "Call the tool yourself with a call from a recent one of the [rollouts]. If it fails, repair the tool "
        "([retriever]) and resume from a checkpoint before this step: a smaller learning rate would not help. If the "
        "calls are malformed, check the chat template and the tool's schema, and whether calls are cut off ([limits of "
        "tokens and turns])."
    ),
    limitations="TRL counts malformed calls as failures too, so the share does not say which of both it is. A model "
    "that still learns to write calls has a high share that falls; that is not reported unless 90 % fail in ten "
    "rows. Other trainers do not log the share. There the rule looks at the length, which must count the results of "
    "tools, as verl's does: with unchanged turns, a tool that stops answering makes it fall at once.",
)


# ---- the retriever

FAILED_SEARCHES, EMPTY = "retrieval/error_fraction", "retrieval/empty_fraction"
FAILED_ROLLOUTS = "rollout/failed_fraction"
SEARCH_ROWS = 3
MAX_FAILED_FRACTION = 0.1
MAX_EMPTY_FRACTION = 0.3
"""In the latest rows and in the mean of three rows."""


def searches(log: Log) -> bool:
    """Whether rollouts of the run search, or the log says how many fail: others have no retriever."""
    marks = ("retrieval/", "rollout/searches", "tools/", FAILED_ROLLOUTS)
    return log.host == "holdfast" or any(name.startswith(marks) for name in log.series)


def happens_often(rows: Rows, *, most: float, running: int) -> Signal:
    """The share of searches or rollouts is above `most`, in each of the latest rows and in the mean of three."""
    (share,) = rows.columns
    smooth = trailing_mean(share, SEARCH_ROWS)
    where = (smooth > most) & held(share > most, running)
    return Signal(where, lambda: {rows.names[0]: smooth}, normal=smooth < most / 2)


fails_often = partial(happens_often, most=MAX_FAILED_FRACTION, running=1)


RET001 = Rule(
    code="RET001",
    title="retriever failing",
    kind="logged cause",
    applies=searches,
    needs=((FAILED_SEARCHES,), (FAILED_ROLLOUTS,)),
    checks=(
        Check(
            series=(FAILED_SEARCHES,),
            signal=fails_often,
            message="The retriever fails: {retrieval/error_fraction:.0%} of the searches failed after all retries.",
        ),
        Check(
            series=(FAILED_ROLLOUTS,),
            signal=fails_often,
            message="{rollout/failed_fraction:.0%} of the rollouts fail for reasons outside the policy.",
        ),
    ),
    meaning="Searches fail, or rollouts end early for reasons outside the policy.",
    impact="The rollouts that remain are a biased sample. If the trainer counts a failed search as an incorrect "
    "answer, the policy learns not to search.",
    remedy=advise(
        "Check the [retriever]. Leave rollouts with a failed search out of the loss.",
        also={"holdfast": "`run.max_failed_fraction` sets when a run stops.", "trl": "`SearchRollouts` does."},
    ),
    limitations="One bad step is enough if 30 % or more fail. The rule does not notice a retriever that returns "
    "useless passages.",
)

RET002 = Rule(
    code="RET002",
    title="searches return nothing",
    kind="logged cause",
    applies=searches,
    needs=((EMPTY,),),
    checks=(
        Check(
            series=(EMPTY,),
            # A step may have a single search, so one row proves nothing.
            signal=partial(happens_often, most=MAX_EMPTY_FRACTION, running=2),
            message="{retrieval/empty_fraction:.0%} of the searches return nothing.",
        ),
    ),
    meaning="Searches succeed but find no passage.",
    impact="The agent learns that searching does not help. It then answers from memory, or not at all.",
    remedy=advise(
        "Check the [index], and that it receives queries as the model wrote them.",
        also={"holdfast": "Or the server at `retrieval.url`."},
    ),
    limitations="Only rollouts of holdfast log how many searches return nothing. The rule does not notice a "
    "retriever that returns the same passage for every query.",
)
