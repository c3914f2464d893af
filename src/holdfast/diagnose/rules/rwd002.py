"""RWD002: reward is earned without answers.

Meaning: The agent gives fewer answers, or fewer correct ones, but its reward does not fall.

Impact: The agent is rewarded for form, or for not answering. The score that matters falls while the reward looks fine.

Limitations: The rule needs the share of answered rollouts, or a score besides the reward. Few answers from the first
row on are a reason only where the reward does not rise.
"""

from __future__ import annotations

import numpy as np

from holdfast.diagnose.log import Log, has
from holdfast.diagnose.log.trailing import Values, highest, margin, trailing_mean
from holdfast.diagnose.rules._parts import ANSWERED, EM, REWARD
from holdfast.diagnose.rules._parts.reward import MUCH_FRACTION, functions_of, may_lose
from holdfast.diagnose.rules.remedies import USABLE_FORM, advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal, from_start


def answers_less(rows: Rows, answered: Values, reward: Values) -> Signal:
    """Fewer answers, while the reward holds."""
    smooth, mean_reward = trailing_mean(answered, ROWS), trailing_mean(reward, ROWS)
    holds = highest(mean_reward) - mean_reward <= may_lose(reward) + margin(reward, ROWS, ANSWERED_ERRORS)
    drop = highest(smooth) - smooth
    return Signal(
        (drop > ANSWERED_DECREASE) & holds,
        lambda: {ANSWERED: smooth, REWARD: mean_reward},
        normal=drop < ANSWERED_DECREASE / 2,
    )


ROWS = 5
ANSWERED_DECREASE = 0.25
"""Decrease of the share of rollouts that give an answer."""
ANSWERED_ERRORS = 2.0


def is_paid_for_silence(rows: Rows, correct: Values, reward: Values) -> Signal:
    """Fewer correct answers, while the reward holds."""
    smooth, mean_reward = trailing_mean(correct, ROWS), trailing_mean(reward, ROWS)
    drop = highest(smooth) - smooth
    fewer = (drop > CORRECT_LOST_SHARE * highest(smooth)) & (drop > margin(correct, ROWS, CORRECT_ERRORS))
    return Signal(
        fewer & (highest(mean_reward) - mean_reward <= may_lose(reward)),
        lambda: {EM: smooth, REWARD: mean_reward},
        normal=drop < CORRECT_LOST_SHARE / 2 * highest(smooth),
    )


def few_answer(rows: Rows, answered: Values) -> Signal:
    """Half of the rollouts or more have given no answer since the log began."""
    mean = trailing_mean(answered, FEW_ROWS)
    few = highest(mean) <= 1 - MUCH_FRACTION
    enough = np.arange(len(answered)) >= FEW_ROWS - 1
    return Signal(few & enough, lambda: {ANSWERED: mean}, normal=~few, began=from_start)


FEW_ROWS = 10
"""Rows of the mean, and before the first finding: a policy that soon learns the form gives more answers by then."""
CORRECT_LOST_SHARE = 0.4
"""Share of their peak that correct answers have lost."""
CORRECT_ERRORS = 3.0


def is_about_answers(log: Log) -> bool:
    """Whether the log counts answers, or could. The reward functions of TRL may measure anything: see RWD003."""
    return has(log, ANSWERED) or has(log, EM) or not functions_of(log)


RULE = Rule(
    title="reward without answers",
    kind="symptom",
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
            message="Exact match fell to {reward/em:.2g}, but the reward did not fall. The reward pays for something "
            "else, perhaps for giving no answer.",
            min_rows=ROWS,
            better=((ANSWERED,),),
        ),
        Check(
            series=(ANSWERED,),
            signal=few_answer,
            message="Only {rollout/answered_fraction:.0%} of the rollouts give an answer, and about as few have since "
            "the log began. The others cannot be correct, whatever they found.",
            min_rows=FEW_ROWS,
            remedy=USABLE_FORM,
            level="reason",
        ),
    ),
    remedy=advise(
        "Change the [weights of the reward], so that no answer earns less than an incorrect one.",
        also={"holdfast": "Correctness needs the most weight."},
    ),
    rollouts="unanswered",
)
