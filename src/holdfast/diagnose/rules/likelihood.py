"""Likelihood displacement of correct rollouts, LLD001 to LLD004 (arXiv 2512.04220), and what counts as correct, OBS001.

In recorded displacement collapses, dozens of updates each take 0.2 to 2 % off the log-likelihood of correct rollouts. A
step that is too large takes 15 % or more at once, from a policy that was not decaying. So these codes and STP001
exclude each other: the first one counts.

The local trainer, and TRL with our observer, log the displacement of correct rollouts. A loss inside verl cannot see
the policy before and after an update. There the drift of rollouts with positive advantage replaces displacement: a mean
over the optimizer steps of an update.
"""

from __future__ import annotations

import math

import numpy as np

from holdfast.diagnose.log import Log
from holdfast.diagnose.log.trailing import Truths, Values, delayed, highest, margin, needed, rows_since, trailing_mean
from holdfast.diagnose.rules.remedies import PRESERVE_LIKELIHOOD, advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal, long_not_preferred

DISPLACEMENT = ("displacement/correct", "displacement/fraction", "likelihood/correct")
DRIFT = ("drift/positive", "likelihood/positive")
ACTIONS = ("likelihood/correct/action_1", "likelihood/correct/action_2")
LOST = "share of log-likelihood lost"

SLOW_ROWS = 8
"""Rows over which a slow decay is judged. On a plateau about half of the correct rollouts lose likelihood in any
update, so five such rows prove little."""
FAST_ROWS = 5
"""Rows over which a spiral is judged and likelihood is smoothed."""
DRIFT_SCALE = 0.5
"""The mean drift over the optimizer steps of an update is about half of the change by the whole update."""

SLOW_SHARE = 0.002
"""Share of the log-likelihood that an update takes. 0.2 % an update is a fifth in a hundred updates. Controls with a
suitable learning rate stay below 0.05 %."""
SLOW_NATS = 0.0005
"""Nats per token that an update takes. A sharp policy, whose tokens are nearly certain, has only a tiny share."""
SLOW_DISPLACED = 0.58
"""Share of correct rollouts that lose likelihood. Healthy plateaus stay near 0.5 and reach 0.56 (means of 8)."""
STEADY_ERRORS = 2.0
"""Standard errors by which the mean of the last updates is below 0. Two are enough: the likelihood must also be low."""
DECAYED_SHARE = 0.02
"""Share of its best log-likelihood that the correct set has lost. Changes in which rollouts are correct make less."""
DECAYED_NATS = 0.01
"""The same in nats per token, for a policy whose correct answers are nearly certain."""
DECAYED_ERRORS = 1.8
"""The same in standard errors. More than for an update, because the best of many means is an extreme."""

FAST_SHARE = 0.01
FAST_NATS = 0.0025
FAST_DISPLACED = 0.65
FAST_DECAYED_SHARE = 0.05
FAST_ROWS_SHARE = 0.5
"""Share of the rows that lose `FAST_NATS`: one bad update is not a spiral."""
ACCELERATION_TIMES = 2.0
"""Times the pace of the rows before."""

FIRST_ACTION_BEHIND_SHARE = 0.1
"""Share of its best log-likelihood by which the first action has fallen behind the second. The mix of rollouts with one
and with two searches moves the difference too, so displacement has to show as well."""
FIRST_ACTION_ERRORS = 2.1


# ---- parts of the conditions


def share_lost(likelihood: Values) -> Values:
    """[N]: share of its best five-row mean that a log-likelihood has lost; 0 while the loss is tiny or noise."""
    smooth = trailing_mean(likelihood, FAST_ROWS)
    best = highest(smooth)
    lost = best - smooth
    clear = lost > np.maximum(DECAYED_NATS, margin(likelihood, FAST_ROWS, DECAYED_ERRORS))
    return np.where(clear, lost / np.maximum(-best, 1e-6), 0.0)


def is_back(likelihood: Values) -> Truths:
    """[N]: where a log-likelihood is nearly at its best five-row mean, within half of what counts as a decay. It takes
    `SLOW_ROWS` such rows: which rollouts are correct changes from row to row."""
    smooth = trailing_mean(likelihood, FAST_ROWS)
    best = highest(smooth)
    return best - smooth < DECAYED_SHARE / 2 * np.maximum(-best, 1e-6)


def pace(change: Values, likelihood: Values, window: int) -> Values:
    """[N]: share of the log-likelihood that an update takes, in the mean of `window` rows; below 0 where it adds."""
    return -trailing_mean(change, window) / np.maximum(-trailing_mean(likelihood, window), 1e-6)


def takes_slowly(change: Values, likelihood: Values, scale: float) -> Truths:
    """[N]: where updates lower likelihood at the pace of a slow decay; `scale` is the visible share of an update."""
    enough = -trailing_mean(change, SLOW_ROWS) > scale * SLOW_NATS
    return (pace(change, likelihood, SLOW_ROWS) > scale * SLOW_SHARE) & enough


def steady(change: Values, window: int) -> Truths:
    """[N]: where the mean of the last rows is below 0 by more than their scatter. A single row cannot cause that."""
    mean = trailing_mean(change, window)
    scatter = np.sqrt(np.maximum(trailing_mean(change**2, window) - mean**2, 0.0))
    return -mean > needed(STEADY_ERRORS, window, len(change)) * scatter / math.sqrt(window - 1)


def displaces(change: Values, fraction: Values, likelihood: Values) -> Truths:
    """[N]: where updates lower the likelihood of most correct rollouts, slowly but steadily."""
    most = trailing_mean(fraction, SLOW_ROWS) > SLOW_DISPLACED
    return steady(change, SLOW_ROWS) & takes_slowly(change, likelihood, 1.0) & most


def accelerates(change: Values, likelihood: Values, scale: float) -> Truths:
    """[N]: where the last updates take much more likelihood than earlier ones."""
    now = pace(change, likelihood, FAST_ROWS)
    before = delayed(pace(change, likelihood, SLOW_ROWS), FAST_ROWS)
    fast = (now > scale * FAST_SHARE) & (-trailing_mean(change, FAST_ROWS) > scale * FAST_NATS)
    often = trailing_mean((-change > scale * FAST_NATS).astype(float), FAST_ROWS) > FAST_ROWS_SHARE
    return fast & often & steady(change, FAST_ROWS) & (now > ACCELERATION_TIMES * before)


def smoothed(rows: Rows, window: int) -> dict[str, Values]:
    """The series as evidence: means of `window` rows for changes, of five rows for likelihood (the last series)."""
    *changes, likelihood = rows.columns
    means = [*(trailing_mean(change, window) for change in changes), trailing_mean(likelihood, FAST_ROWS)]
    return dict(zip(rows.names, means, strict=True))


# ---- the conditions


def stagnates(rows: Rows) -> Signal:
    """Updates lower the likelihood of correct rollouts, whose likelihood has stopped rising."""
    change, fraction, likelihood = rows.columns
    smooth = trailing_mean(likelihood, FAST_ROWS)
    flat = rows_since(smooth > delayed(highest(smooth), 1)) >= FAST_ROWS
    where = displaces(change, fraction, likelihood) & flat & long_not_preferred(rows)
    return Signal(where, lambda: smoothed(rows, SLOW_ROWS), normal=~flat)


def decays(rows: Rows) -> Signal:
    """Correct rollouts lose likelihood steadily: by displacement, or by drift, which has no fraction of rollouts."""
    change, *fraction, likelihood = rows.columns
    lost = share_lost(likelihood)
    if fraction:
        where = displaces(change, fraction[0], likelihood) & long_not_preferred(rows)
    else:
        where = takes_slowly(change, likelihood, DRIFT_SCALE)
    where &= lost > DECAYED_SHARE
    return Signal(where, lambda: smoothed(rows, SLOW_ROWS) | {LOST: lost}, normal=is_back(likelihood))


def spirals(rows: Rows) -> Signal:
    """The loss of likelihood accelerates: by displacement, or by drift."""
    change, *fraction, likelihood = rows.columns
    lost = share_lost(likelihood)
    where = accelerates(change, likelihood, 1.0 if fraction else DRIFT_SCALE) & (lost > FAST_DECAYED_SHARE)
    if fraction:
        where &= (trailing_mean(fraction[0], FAST_ROWS) > FAST_DISPLACED) & long_not_preferred(rows)
    return Signal(
        where,
        lambda: smoothed(rows, FAST_ROWS) | {LOST: lost},
        lambda: {"pace": pace(change, likelihood, FAST_ROWS)},
        normal=is_back(likelihood),
    )


def first_action_falls_behind(rows: Rows) -> Signal:
    """The first action of correct rollouts loses more likelihood than the second, and displacement shows it too."""
    change, fraction, likelihood, first, second = rows.columns
    ahead = trailing_mean(first - second, SLOW_ROWS)
    behind = highest(ahead) - ahead
    smooth = trailing_mean(first, FAST_ROWS)
    lost = share_lost(first)
    where = behind > margin(first - second, SLOW_ROWS, FIRST_ACTION_ERRORS)
    where &= behind > FIRST_ACTION_BEHIND_SHARE * -highest(smooth)
    where &= (lost > FAST_DECAYED_SHARE) & (lost > share_lost(second))
    where &= (
        displaces(change, fraction, likelihood) & (share_lost(likelihood) > DECAYED_SHARE) & long_not_preferred(rows)
    )
    evidence = {ACTIONS[0]: smooth, ACTIONS[1]: trailing_mean(second, FAST_ROWS)}
    return Signal(where, lambda: evidence | {f"{LOST} by the first action": lost}, normal=is_back(first))


# ---- the rules

LLD001 = Rule(
    code="LLD001",
    title="likelihood of correct rollouts stagnates",
    needs=(DISPLACEMENT,),
    checks=(
        Check(
            series=DISPLACEMENT,
            signal=stagnates,
            message="The likelihood of correct rollouts has stopped rising, and an update makes "
            "{displacement/fraction:.0%} of them less likely.",
            rows_running=FAST_ROWS,
        ),
    ),
    suppressed_by=("LLD002", "LLD003", "STP001"),
    phase="stagnation",
    meaning="Updates make most of their own correct rollouts less likely, and the likelihood of correct rollouts has "
    "stopped rising.",
    impact="Lazy likelihood displacement begins like this, while the reward still rises (arXiv 2512.04220).",
    remedy=PRESERVE_LIKELIHOOD,
    limitations="This is the weakest of the four LLD codes: a healthy plateau can look the same for a while.",
)

LLD002 = Rule(
    code="LLD002",
    title="likelihood of correct rollouts decays",
    needs=(DISPLACEMENT, DRIFT),
    checks=(
        Check(
            series=DISPLACEMENT,
            signal=decays,
            rows_normal=SLOW_ROWS,
            message="Correct rollouts become less likely: an update lowers the likelihood of "
            "{displacement/fraction:.0%} of them, and their log-likelihood is "
            "{share of log-likelihood lost:.1%} below its best value.",
            min_rows=FAST_ROWS,
        ),
        Check(
            series=DRIFT,
            signal=decays,
            rows_normal=SLOW_ROWS,
            message="Updates make rollouts with positive advantage less likely. Their log-likelihood is "
            "{share of log-likelihood lost:.1%} below its best value.",
            min_rows=SLOW_ROWS,
            better=(DISPLACEMENT,),
        ),
    ),
    suppressed_by=("LLD003", "STP001"),
    phase="decay",
    meaning="Every update makes most correct rollouts less likely, and correct rollouts are less likely than before.",
    impact="Correct answers become improbable, and unlikely rollouts make the next updates noisier. In published "
    "runs, the reward falls dozens of steps later.",
    remedy=PRESERVE_LIKELIHOOD,
    limitations="Runs with a weak penalty can stay in this state for a long time. `likelihood/correct` alone proves "
    "nothing, because the set of correct rollouts changes with the accuracy. So the decrease per update "
    "and the decrease since the best value must both exceed their noise.",
)

LLD003 = Rule(
    code="LLD003",
    title="death spiral",
    needs=(DISPLACEMENT, DRIFT),
    checks=(
        Check(
            series=DISPLACEMENT,
            signal=spirals,
            rows_normal=SLOW_ROWS,
            message="Correct rollouts become less likely ever faster: an update now lowers their log-likelihood by "
            "{pace:.1%}, and affects {displacement/fraction:.0%} of them.",
            min_rows=FAST_ROWS,
        ),
        Check(
            series=DRIFT,
            signal=spirals,
            rows_normal=SLOW_ROWS,
            message="Rollouts with positive advantage become less likely ever faster: their log-likelihood is "
            "{share of log-likelihood lost:.1%} below its best value.",
            min_rows=FAST_ROWS,
            better=(DISPLACEMENT,),
        ),
    ),
    suppressed_by=("STP001",),
    phase="collapse",
    meaning="Correct rollouts become less likely ever faster: each update lowers their likelihood more than the one "
    "before.",
    impact="Displacement lowers the likelihood of correct rollouts, and low likelihood makes displacement worse. The "
    "reward falls at about this time.",
    remedy=PRESERVE_LIKELIHOOD,
    limitations="This finding comes late: in a fast collapse, the reward falls at the same step.",
)


def may_have_two_actions(log: Log) -> bool:
    """Whether correct rollouts have a second action, as far as the log shows."""
    return ACTIONS[1] in log.series or "likelihood/correct" not in log.series


LLD004 = Rule(
    code="LLD004",
    title="first action decays faster",
    needs=((*DISPLACEMENT, *ACTIONS),),
    applies=may_have_two_actions,
    checks=(
        Check(
            series=(*DISPLACEMENT, *ACTIONS),
            signal=first_action_falls_behind,
            rows_normal=SLOW_ROWS,
            message="The first action of correct rollouts becomes less likely faster than the second: its "
            "log-likelihood is {share of log-likelihood lost by the first action:.0%} below its best value.",
            min_rows=SLOW_ROWS,
            look_at=ACTIONS,
        ),
    ),
    suppressed_by=("STP001",),
    phase="decay",
    meaning="The first action of correct rollouts loses likelihood faster than the second.",
    impact="Incorrect rollouts often begin with the same search as correct ones. Lowering its likelihood in one "
    "lowers it in the other.",
    remedy=PRESERVE_LIKELIHOOD,
    limitations="Rollouts with one search and with two belong to different questions. If their proportion changes, "
    "so do both curves.",
)


# ---- what the observer in TRL counts as correct

MIXED, K = "rollout/mixed_group_fraction", "optimizer_steps_per_rollout"
CORRECT, INCORRECT = "likelihood/correct", "likelihood/incorrect"
OBSERVED_ROWS = 5
ONE_SIDED_SHARE = 0.8
"""Share of the rows with different rewards in which all rollouts count as correct, or all as incorrect."""


def is_observed(log: Log) -> bool:
    """Whether it is a log of TRL with the observer."""
    return log.host == "trl" and K in log.series


def is_one_sided(rows: Rows) -> Signal:
    """Rewards differ within groups, and yet all rollouts count as correct, or all as incorrect."""
    _, mixed = rows.columns
    differ = mixed > 0
    with_correct, with_incorrect = (
        np.isin(rows.steps, part.steps if (part := rows.log.series.get(name)) is not None else ())
        for name in (CORRECT, INCORRECT)
    )
    seen = np.cumsum(differ)
    none = np.cumsum(differ & ~with_correct) >= ONE_SIDED_SHARE * seen
    every = np.cumsum(differ & ~with_incorrect) >= ONE_SIDED_SHARE * seen
    where = (seen >= OBSERVED_ROWS) & (none != every)
    return Signal(where, lambda: {MIXED: mixed}, lambda: {"which": np.where(none, "incorrect", "correct")}, ~where)


OBS001 = Rule(
    code="OBS001",
    title="correct and incorrect rollouts not distinguished",
    needs=((K, MIXED),),
    applies=is_observed,
    checks=(
        Check(
            series=(K, MIXED),
            signal=is_one_sided,
            message="Rewards within groups differ, but nearly all rollouts count as {which}.",
            level="note",
        ),
    ),
    meaning="The observer counts nearly all rollouts as correct, or nearly all as incorrect, although rewards differ.",
    impact="LLD001 to LLD004 compare correct rollouts before and after an update. If no rollout counts as correct, "
    "they find nothing and a penalty preserves nothing. If all do, they find little and a penalty preserves "
    "everything.",
    remedy=advise(
        "Set the threshold for a correct rollout between the rewards of incorrect and of correct rollouts.",
        also={"trl": "It is `with_penalties(..., correct_above=X)`, by default 0.5, which suits rewards of 0 and 1."},
    ),
    limitations="This is a note, not a finding. It needs five rows in which rewards differ within groups.",
)
