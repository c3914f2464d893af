"""Rewards: collapsed (RWD001), or earned without answers (RWD002)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from holdfast.base.collapse import DROPPED_SHARE, LONG_WINDOW, Curve, Smoothed, reward_range
from holdfast.base.trailing import (
    Truths,
    Values,
    delayed,
    held,
    highest,
    lowest,
    margin,
    most_since,
    rows_since,
    trailing_mean,
)
from holdfast.diagnose.log import REWARDS, Log, has, reward_curve
from holdfast.diagnose.rules.groups import may_be_broken
from holdfast.diagnose.rules.hacking import functions_of
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal

ANSWERED, EM, REWARD = "rollout/answered_fraction", "reward/em", "reward/mean"
ROWS = 5

BREAK_SHARE = 0.6
"""Share of the loss that came within three rows: harder questions or another reward are as likely as a collapse."""
ROWS_TO_RECOVER, ROWS_TO_BE_GONE = 8, 1
"""Rows after such a break in which the reward may begin to recover, and the same if nothing is left of it: a broken
grader shows a row later, and GRP001 says so."""
GONE_SHARE = 0.8
"""Share of the range that is lost in three rows, if nothing is left to recover from. A log may have eight rows."""
RECOVERED_SHARE = 0.25
"""Share of the loss that has come back, if it is not a collapse."""

ANSWERED_DECREASE = 0.25
"""Decrease of the share of rollouts that give an answer."""
ANSWERED_ERRORS = 2.0
CORRECT_LOST_SHARE = 0.4
"""Share of their peak that correct answers have lost."""
CORRECT_ERRORS = 3.0
HOLDS_WITHIN_SHARE = 0.1
"""Share of its range that a reward may lose and still count as holding."""


def falls(rows: Rows) -> Signal:
    """The reward fell (`holdfast.base.collapse`), and is not about to recover."""
    curve = reward_curve(rows.log, rows.names[0])
    assert curve is not None
    shown = [where for _, where in curve.falls]

    def by(of: Callable[[Smoothed], Values]) -> Values:
        return np.select(shown, [of(mean) for mean, _ in curve.falls], of(curve.long))

    return Signal(
        curve.fallen & ~may_recover(curve) & ~may_be_broken(rows),
        lambda: {rows.names[0]: by(lambda mean: mean.means), "peak": by(lambda mean: highest(mean.means))},
        lambda: {
            "lost": by(lambda mean: mean.lost),
            "measure": np.where(lowest(curve.rewards) < 0, "range", "peak"),
            "rows": by(lambda mean: np.full(len(mean.means), mean.window)),
        },
        is_back(curve),
    )


def is_back(curve: Curve) -> Truths:
    """[N]: where the reward is nearly at its peak again, or has not been clearly down for ten rows."""
    near = (curve.short.lost < DROPPED_SHARE) & (curve.long.lost < DROPPED_SHARE)
    return near | held(~curve.falling, LONG_WINDOW)


def may_recover(curve: Curve) -> Truths:
    """[N]: where the reward fell suddenly, and recovers or still may recover."""
    means = curve.short.means
    brief = trailing_mean(curve.rewards, 3)
    drop = delayed(brief, 3) - brief
    peak = highest(means)
    steepest = most_since(drop, means >= peak)
    broke = (drop >= steepest) & (drop > 0)
    low = np.where(broke, means, -most_since(-means, broke))
    recovered = (means - low) / np.maximum(peak - low, 1e-12)
    some_left = peak - brief < GONE_SHARE * reward_range(peak, lowest(curve.rewards))
    may_begin = rows_since(broke) < np.where(some_left, ROWS_TO_RECOVER, ROWS_TO_BE_GONE)
    return (steepest > BREAK_SHARE * (peak - means)) & (may_begin | (recovered > RECOVERED_SHARE))


def answers_less(rows: Rows) -> Signal:
    """Fewer answers, while the reward holds."""
    answered, reward = rows.columns
    smooth, mean_reward = trailing_mean(answered, ROWS), trailing_mean(reward, ROWS)
    holds = highest(mean_reward) - mean_reward <= may_lose(reward) + margin(reward, ROWS, ANSWERED_ERRORS)
    return Signal(
        (highest(smooth) - smooth > ANSWERED_DECREASE) & holds, lambda: {ANSWERED: smooth, REWARD: mean_reward}
    )


def is_paid_for_silence(rows: Rows) -> Signal:
    """Fewer correct answers, while the reward holds."""
    correct, reward = rows.columns
    smooth, mean_reward = trailing_mean(correct, ROWS), trailing_mean(reward, ROWS)
    drop = highest(smooth) - smooth
    fewer = (drop > CORRECT_LOST_SHARE * highest(smooth)) & (drop > margin(correct, ROWS, CORRECT_ERRORS))
    return Signal(
        fewer & (highest(mean_reward) - mean_reward <= may_lose(reward)), lambda: {EM: smooth, REWARD: mean_reward}
    )


def may_lose(reward: Values) -> Values:
    """[N]: how much a reward may lose and still count as holding."""
    return HOLDS_WITHIN_SHARE * (highest(reward) - lowest(reward))


RWD001 = Rule(
    code="RWD001",
    title="reward collapse",
    needs=tuple((name,) for name in REWARDS),
    equal_needs=True,
    checks=tuple(
        Check(
            series=(name,),
            signal=falls,
            message="The reward has lost {lost:.0%} of its {measure}: {" + name + ":.3g}, down from {peak:.3g} "
            "(means of {rows:.0f} rows).",
            better=tuple((better,) for better in REWARDS[:rank]),
        )
        for rank, name in enumerate(REWARDS)
    ),
    phase="collapse",
    meaning="The reward has lost 40 % of its peak, or a third of it in a mean of ten rows or more.",
    impact="This is the collapse itself, not its cause. Earlier findings show the cause.",
    remedy=advise(
        "Go back to a checkpoint from before the first finding and before the reward fell. If the first finding is "
        "another code, apply its remedy; if it is this one, lower the [learning rate]."
    ),
    limitations="If questions become harder at some step, the reward of a healthy run falls too. With negative "
    "rewards, the shares are of the range of the reward so far, including 0.",
)


def is_about_answers(log: Log) -> bool:
    """Whether the log counts answers, or could. The reward functions of TRL may measure anything: see RWD003."""
    return has(log, ANSWERED) or has(log, EM) or not functions_of(log)


RWD002 = Rule(
    code="RWD002",
    title="reward without answers",
    needs=((ANSWERED, REWARD), (EM, REWARD)),
    applies=is_about_answers,
    checks=(
        Check(
            series=(ANSWERED, REWARD),
            signal=answers_less,
            message="The agent avoids answers: only {rollout/answered_fraction:.0%} of the rollouts give one, but "
            "the reward has not fallen.",
            min_rows=ROWS,
        ),
        Check(
            series=(EM, REWARD),
            signal=is_paid_for_silence,
            message="Exact match fell to {reward/em:.2g}, but the reward did not fall. It rewards something else, "
            "perhaps giving no answer.",
            min_rows=ROWS,
            better=((ANSWERED,),),
        ),
    ),
    meaning="The agent gives fewer answers, or fewer correct ones, but its reward does not fall.",
    impact="The agent is rewarded for form, or for not answering. The score that matters falls while the reward "
    "looks fine.",
    remedy=advise(
        "Change the [weights of the reward], so that no answer earns less than an incorrect one.",
        also={"holdfast": "Correctness needs the most weight."},
    ),
    limitations="The rule needs the share of answered rollouts, or a score besides the reward.",
)
