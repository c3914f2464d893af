"""The reward: lost (RWD001), earned by not answering (RWD002), or the same for all rollouts of a group (GRP001)."""

from __future__ import annotations

import numpy as np

from holdfast.collapse import FALLEN, SURE, Curve
from holdfast.diagnostics.log import REWARDS, Log, reward_curve
from holdfast.diagnostics.rules.rule import Check, Rows, Rule, Signal
from holdfast.trailing import Truths, Values, delayed, highest, lowest, margin, most_since, rows_since, trailing_mean

ANSWERED, EM, REWARD, MIXED = "rollout/answered_fraction", "reward/em", "reward/mean", "rollout/mixed_group_fraction"
ROWS = 5

BREAK = 0.6
"""Share of the loss that came within three rows: harder questions or another reward, as likely as a collapse."""
ROWS_TO_RECOVER = 8
"""Rows after a break in which it may begin to recover."""
RECOVERED = 0.25
"""Share of the loss that has come back, where it is not a collapse."""

UNANSWERED = 0.25
"""Share of all rollouts by which the answers given have fallen."""
UNANSWERED_ERRORS = 2.0
INCORRECT = 0.4
"""Share of their peak by which the correct answers have fallen."""
INCORRECT_ERRORS = 3.0
REWARD_HOLDS = 0.1
"""Share of the reward's range that it may have lost and still hold."""

NO_CONTRAST, EVER_CONTRAST = 0.05, 0.2
"""Shares of the groups with different rewards: now, and at their most. Groups that have become all correct at the end
of learning had contrast before."""


def falls(rows: Rows) -> Signal:
    """The reward fell (`holdfast.collapse`), and it is not about to come back."""
    curve = reward_curve(rows.log, rows.names[0])
    assert curve is not None
    short, long = curve.short, curve.long
    by_five = short.has_lost(FALLEN, SURE)
    return Signal(
        curve.fallen & ~may_recover(curve),
        lambda: {
            rows.names[0]: np.where(by_five, short.means, long.means),
            "peak": np.where(by_five, highest(short.means), highest(long.means)),
        },
        lambda: {
            "lost": np.where(by_five, short.lost, long.lost),
            "measure": np.where(lowest(curve.rewards) < 0, "range", "peak"),
        },
    )


def may_recover(curve: Curve) -> Truths:
    """[N]: where the reward was lost at once, and has either begun to recover or still may."""
    means = curve.short.means
    brief = trailing_mean(curve.rewards, 3)
    drop = delayed(brief, 3) - brief
    peak = highest(means)
    steepest = most_since(drop, means >= peak)
    broke = (drop >= steepest) & (drop > 0)
    low = np.where(broke, means, -most_since(-means, broke))
    recovered = (means - low) / np.maximum(peak - low, 1e-12)
    return (steepest > BREAK * (peak - means)) & ((rows_since(broke) < ROWS_TO_RECOVER) | (recovered > RECOVERED))


def answers_less(rows: Rows) -> Signal:
    """Fewer answers, and the reward holds."""
    answered, reward = rows.columns
    smooth, pay = trailing_mean(answered, ROWS), trailing_mean(reward, ROWS)
    holds = highest(pay) - pay <= may_lose(reward) + margin(reward, ROWS, UNANSWERED_ERRORS)
    return Signal((highest(smooth) - smooth > UNANSWERED) & holds, lambda: {ANSWERED: smooth, REWARD: pay})


def is_paid_for_silence(rows: Rows) -> Signal:
    """Fewer correct answers, and the reward holds."""
    correct, reward = rows.columns
    smooth, pay = trailing_mean(correct, ROWS), trailing_mean(reward, ROWS)
    drop = highest(smooth) - smooth
    fewer = (drop > INCORRECT * highest(smooth)) & (drop > margin(correct, ROWS, INCORRECT_ERRORS))
    return Signal(fewer & (highest(pay) - pay <= may_lose(reward)), lambda: {EM: smooth, REWARD: pay})


def may_lose(reward: Values) -> Values:
    return REWARD_HOLDS * (highest(reward) - lowest(reward))


def compares_in_groups(log: Log) -> bool:
    return log.settings.get("loss.advantage") != "reinforce"


def lacks_contrast(rows: Rows) -> Signal:
    (mixed,) = rows.columns
    smooth = trailing_mean(mixed, ROWS)
    never = (smooth <= NO_CONTRAST) & (highest(smooth) <= EVER_CONTRAST)
    return Signal(never, lambda: {MIXED: smooth}, lambda: {"equal": 1 - smooth})


RWD001 = Rule(
    code="RWD001",
    title="reward collapse",
    needs=tuple((name,) for name in REWARDS),
    equal_needs=True,
    checks=tuple(
        Check(
            series=(name,),
            signal=falls,
            message="The reward has lost {lost:.0%} of its {measure}: {" + name + ":.3g}, down from {peak:.3g}.",
            better=tuple((better,) for better in REWARDS[:rank]),
        )
        for rank, name in enumerate(REWARDS)
    ),
    phase="collapse",
    meaning="The reward has lost 40 % of its peak, or a third of it over ten rows; where rewards fall below 0, of "
    "their range so far, 0 included.",
    impact="This is the event, not the cause. What was found before it says why.",
    remedy={
        "holdfast": "Go back to a checkpoint from before the first finding, and follow its advice; without one, lower "
        "`train.lr`.",
        "trl": "Go back to a checkpoint from before the first finding, and follow its advice; without one, lower "
        "`learning_rate`.",
        "verl": "Go back to a checkpoint from before the first finding, and follow its advice; without one, lower "
        "`actor_rollout_ref.actor.optim.lr`.",
        "unknown": "Go back to a checkpoint from before the first finding, and follow its advice; without one, lower "
        "the learning rate.",
    },
    limitations="Harder questions from some step on lower the reward of a healthy run.",
)

RWD002 = Rule(
    code="RWD002",
    title="answers avoided",
    needs=((ANSWERED, REWARD), (EM, REWARD)),
    checks=(
        Check(
            series=(ANSWERED, REWARD),
            signal=answers_less,
            message="Answers are avoided: {rollout/answered_fraction:.0%} of the rollouts still give one, and the "
            "reward does not fall for it.",
            min_rows=ROWS,
        ),
        Check(
            series=(EM, REWARD),
            signal=is_paid_for_silence,
            message="The reward holds while correct answers fall to {reward/em:.2g}: it pays for something else, "
            "perhaps silence.",
            min_rows=ROWS,
            better=((ANSWERED,),),
        ),
    ),
    meaning="The agent gives fewer answers, or fewer correct ones, while its reward holds.",
    impact="The reward pays for silence or for form. The score that matters falls while the curve looks fine.",
    remedy={
        "holdfast": "Weigh correctness more: `reward.em` or `reward.f1` up, `reward.format` and "
        "`reward.retrieval` down; no reward without an answer.",
        "trl": "Change `reward_weights` or the reward functions, so that no answer is worth less than an incorrect "
        "one.",
        "verl": "Change the reward function, so that no answer is worth less than an incorrect one.",
        "unknown": "Change the reward, so that no answer is worth less than an incorrect one.",
    },
    limitations="Where the log has neither the share of answers nor a score beside the reward, this cannot be seen.",
)

GRP001 = Rule(
    code="GRP001",
    title="groups without contrast",
    needs=((MIXED,),),
    applies=compares_in_groups,
    checks=(
        Check(
            series=(MIXED,),
            signal=lacks_contrast,
            message="Groups have no contrast: in {equal:.0%} of them all rollouts got the same reward.",
            min_rows=ROWS,
        ),
    ),
    meaning="In almost all groups every rollout gets the same reward, and this has been so since the start.",
    impact="A group-relative advantage is 0 there, so nothing is learned: the task is too hard, too easy, or the "
    "reward function does not tell rollouts apart.",
    remedy={
        "holdfast": "Start from a better policy (`warm_start.steps`), add a denser part to `[reward]` such as "
        "`reward.f1 = 1.0`, or raise `train.group_size`.",
        "trl": "Raise `num_generations`, use easier or harder questions, or a denser reward function; look at what "
        "your reward functions return.",
        "verl": "Raise `actor_rollout_ref.rollout.n`, use easier or harder questions, or a denser reward.",
        "unknown": "Raise the group size, use easier or harder questions, or a denser reward.",
    },
    limitations="Groups that become all correct at the end of learning are not a finding. A reward with a small random "
    "part has contrast without meaning.",
)
