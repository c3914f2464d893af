"""The training reward rises while a held-out score falls or stays (EVL001): overfitting, or reward hacking."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from holdfast.base.collapse import DROPPED_SHARE, reward_range
from holdfast.base.trailing import (
    Truths,
    Values,
    binary_noise,
    highest,
    last_where,
    lowest,
    margin,
    mean_at_first,
    needed,
    noise_of_mean,
    trailing_mean,
)
from holdfast.diagnose.log import Log, Series, as_of, finite, has
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal

REWARD = "reward/mean"
SCORE = re.compile(r"eval/((em|f1)(_greedy)?|reward/mean|.+/score)")
"""Held-out scores: ours, TRL's, which is the reward of training, and one for each dataset of other trainers."""

ROWS = 5
"""Rows in a mean of the training reward."""
EVALUATIONS = 3
"""Evaluations in a mean of a held-out score."""
FEWEST, ENOUGH = 5, 8
"""Evaluations that show how noisy a score is, and the same where they must show that it did not rise."""
FALLEN_SHARE = DROPPED_SHARE
"""Share of its range that the score has lost. Evaluations have fixed questions, so this is clear where it would be
noise in the reward of training."""
FALLEN_ERRORS = 4.0
"""Standard errors of the difference of two means. Neighbouring evaluations show the noise, and there are few of
them."""
HOLDS_WITHIN_SHARE = 0.1
"""Share of its range that the reward may have lost since the score was best, and still hold."""
RISEN_SHARE, RISEN_ERRORS = 0.2, 4.0
"""How far the reward has risen since the first evaluation, as a share of its range and in standard errors."""
CARRIED_OVER = 0.25
"""Share of the reward's rise that the score must at least show. Held-out questions gain less than those of training,
but a policy that learns the task gains more than a quarter there."""
CERTAIN_ERRORS = 3.0
ROUNDED = 1e-4
"""Rounding of a logged score."""
SOLVED = 0.9
"""A score from which on there is little left to gain."""


def scores_of(log: Log) -> tuple[str, ...]:
    """The held-out scores of a log."""
    return tuple(sorted(name for name in log.series if SCORE.fullmatch(name) and has(log, name)))


def is_evaluated(log: Log) -> bool:
    """Whether the log has a held-out score."""
    return bool(scores_of(log))


@dataclass(frozen=True, slots=True)
class Score:
    """A held-out score at the rows of the reward, [N] each, as the last evaluation shows it."""

    now: Values
    """Mean of the last three evaluations."""
    best: Values
    first: Values
    """Mean of the first evaluations, at most three."""
    best_row: NDArray[np.int64]
    """The row at which the mean was best."""
    first_row: int
    falls: Truths
    holds: Truths
    """It is near its best."""
    rises: Truths
    share: Values
    """What it has gained since the first evaluations, as a share of its range."""
    error: Values
    """What noise may add to that."""
    count: Values
    """Evaluations so far."""

    @property
    def begun(self) -> Truths:
        """[N]: where the log has an evaluation."""
        return self.count > 0


def courses(rows: Rows) -> dict[str, Score]:
    """The held-out scores of a log, with their courses."""
    return {name: score_of(rows.log.series[name], rows.log.series[REWARD]) for name in scores_of(rows.log)}


@lru_cache(maxsize=8)  # four checks look at the same score
def score_of(score: Series, reward: Series) -> Score:
    """The course of one held-out score."""
    known, on = finite(score), finite(reward).steps
    values, index = known.values, np.arange(len(known))
    mean = trailing_mean(values, EVALUATIONS)
    # A single evaluation is no peak: the best is a mean of three, and until then the newest.
    whole = np.where(index >= EVALUATIONS - 1, mean, -np.inf)
    best = np.maximum(highest(whole), np.where(np.isfinite(whole), whole, mean))
    begun = mean_at_first(values, EVALUATIONS)
    height = np.maximum(reward_range(best, lowest(values)), 1e-12)
    drawn = binary_noise(mean, answers_of(values)) / np.sqrt(EVALUATIONS)
    by_chance = margin(values, EVALUATIONS, FALLEN_ERRORS)
    by_chance = np.maximum(by_chance, needed(FALLEN_ERRORS, EVALUATIONS, len(values)) * np.sqrt(2) * drawn)
    lost = best - mean
    falls = (lost > FALLEN_SHARE * height) & (lost > by_chance) & (index >= FEWEST - 1)
    error = CERTAIN_ERRORS * np.sqrt(2) * np.maximum(noise_of_mean(values, EVALUATIONS), drawn)
    at_best = known.steps[last_where(mean >= best)].astype(float)

    def on_rows(of_evaluations: NDArray[np.generic]) -> Values:
        return as_of(Series(known.steps, of_evaluations.astype(float)), on)

    def row_at(steps: Values) -> NDArray[np.int64]:
        return np.maximum(np.searchsorted(on, np.nan_to_num(steps), side="right") - 1, 0)

    return Score(
        now=on_rows(mean),
        best=on_rows(best),
        first=on_rows(begun),
        best_row=row_at(on_rows(at_best)),
        first_row=int(row_at(known.steps[:1].astype(float))[0]),
        falls=on_rows(falls) > 0,
        holds=on_rows(lost < FALLEN_SHARE / 2 * height) > 0,
        rises=on_rows(mean - begun > np.maximum(by_chance, FALLEN_SHARE * height)) > 0,
        share=on_rows((mean - begun) / height),
        error=on_rows(error / height),
        count=np.nan_to_num(on_rows(index + 1)),
    )


def answers_of(score: Values) -> Values:
    """[N]: the fewest answers, each right or wrong, of which the scores so far can be means: the smallest difference of
    two evaluations is one answer. Infinite for another kind of score.

    >>> answers_of(np.array([0.5, 0.25, 0.3, 0.312345])).tolist()
    [inf, 4.0, 20.0, inf]
    """
    steps = np.abs(np.diff(score, prepend=score[:1]))
    counts = np.rint(1 / lowest(np.where(steps > 2 * ROUNDED, np.minimum(steps, 1.0), 1.0)))
    for count in np.unique(counts):
        parts = score * count
        whole = np.logical_and.accumulate(np.abs(parts - np.rint(parts)) <= ROUNDED * count)
        counts = np.where((counts == count) & ~whole, np.inf, counts)
    return counts


def falls_held_out(rows: Rows, *, others_rise: bool) -> Signal | None:
    """A held-out score has fallen, and the reward is not lower than when the score was best.

    With `others_rise`, only where another dataset's score has risen; without it, only elsewhere.
    """
    (reward,) = rows.columns
    named = courses(rows)
    scores = named.values()
    if not any(score.falls.any() for score in scores):
        return None
    mean_reward = trailing_mean(reward, ROWS)
    may_lose = HOLDS_WITHIN_SHARE * reward_range(highest(mean_reward), lowest(reward))
    rises = np.any([score.rises & score.holds for score in scores], axis=0)
    falling = [s.falls & (mean_reward - mean_reward[s.best_row] >= -may_lose) & (rises == others_rise) for s in scores]
    well = np.all([score.holds | ~score.begun for score in scores], axis=0)
    return _signal(rows, named, np.array(falling), mean_reward, well)


def stays_held_out(rows: Rows, *, certain: bool) -> Signal | None:
    """The reward has risen since the first evaluation, and no held-out score has risen with it.

    With `certain`, only where noise cannot hide a quarter of the rise; without it, where the means show less.
    """
    (reward,) = rows.columns
    named = courses(rows)
    scores = named.values()
    if not any(bool((score.count >= FEWEST).any()) for score in scores):
        return None
    mean_reward = trailing_mean(reward, 2 * ROWS)
    height = np.maximum(reward_range(highest(mean_reward), lowest(reward)), 1e-12)
    staying, carried = [], np.zeros(len(reward), bool)
    for score in scores:
        begun = max(score.first_row, 2 * ROWS - 1)
        gain = mean_reward - mean_reward[min(begun, len(reward) - 1)]
        rose = (gain > RISEN_SHARE * height) & (np.arange(len(reward)) > begun)
        enough = CARRIED_OVER * gain / height
        little = score.share + (score.error if certain else 0.0) < enough
        known = score.count >= (ENOUGH if certain else FEWEST)
        stays = rose & little & known & ~(score.best >= SOLVED) & ~score.falls
        if stays.any():
            stays &= gain > margin(reward, 2 * ROWS, RISEN_ERRORS)
        staying.append(stays)
        carried |= score.share >= enough
    all_stay = np.all([stays | ~score.begun for stays, score in zip(staying, scores, strict=True)], axis=0)
    return _signal(rows, named, np.array(staying) & all_stay, mean_reward, carried)


def _signal(rows: Rows, named: Mapping[str, Score], where: Truths, mean_reward: Values, normal: Truths) -> Signal:
    """The signal of a condition that each score fulfils at some rows, [scores, N]; the first that does is shown."""
    scores, shown, here = named.values(), np.argmax(where, axis=0), np.arange(len(mean_reward))

    def of_shown(of: list[Values]) -> Values:
        return np.asarray(np.array(of)[shown, here])

    def words() -> dict[str, NDArray[np.generic]]:
        plain = np.array([re.sub(r"^eval/|/score$|/mean$", "", name) for name in named])
        best_row = np.array([score.best_row for score in scores])[shown, here]
        return {
            "dataset": plain[shown],
            "now": of_shown([score.now for score in scores]),
            "best": of_shown([score.best for score in scores]),
            "first": of_shown([score.first for score in scores]),
            "best step": rows.steps[best_row],
            "reward then": mean_reward[best_row],
            "reward first": mean_reward[
                np.minimum(np.maximum([score.first_row for score in scores], 2 * ROWS - 1), len(mean_reward) - 1)
            ][shown],
        }

    def evidence() -> dict[str, Values]:
        parts = {name: np.where(shown == row, named[name].now, np.nan) for row, name in enumerate(named)}
        return {REWARD: mean_reward} | parts

    return Signal(np.asarray(where.any(axis=0)), evidence, words, normal=normal)


EVL001 = Rule(
    code="EVL001",
    title="held-out score does not follow the reward",
    kind="symptom",
    needs=((REWARD,),),
    applies=is_evaluated,
    checks=(
        Check(
            series=(REWARD,),
            signal=partial(falls_held_out, others_rise=False),
            message="The held-out score {dataset} fell from {best:.3g} (step {best step}) to {now:.3g}, but the "
            "training reward did not: it went from {reward then:.3g} to {reward/mean:.3g}.",
        ),
        Check(
            series=(REWARD,),
            signal=partial(stays_held_out, certain=True),
            message="The training reward rose from {reward first:.3g} to {reward/mean:.3g}, but the held-out score "
            "{dataset} did not follow: {first:.3g} at first, {now:.3g} now.",
        ),
        Check(
            series=(REWARD,),
            signal=partial(falls_held_out, others_rise=True),
            message="The held-out score {dataset} fell from {best:.3g} (step {best step}) to {now:.3g} while others "
            "rose.",
            level="note",
        ),
        Check(
            series=(REWARD,),
            signal=partial(stays_held_out, certain=False),
            message="The training reward rose from {reward first:.3g} to {reward/mean:.3g}, but so far the held-out "
            "score {dataset} shows little of that: {first:.3g} at first, {now:.3g} now.",
            level="note",
        ),
    ),
    # A policy that collapses loses both.
    suppressed_by_earlier=("RWD001",),
    meaning="The training reward rises or holds, but a held-out score falls, or does not rise with it.",
    impact="The policy memorises the training questions, or earns the reward in a way that the held-out score does not "
    "count. More training makes the training reward higher and the policy worse.",
    remedy=advise(
        "Keep the checkpoint with the best held-out score. Read some [rollouts] with a high reward: if they exploit "
        "the reward function, mend that first. Otherwise use more training questions, or raise the [coefficient of "
        "the KL]."
    ),
    limitations="The rule needs five evaluations, and eight to say that a score does not rise. Held-out questions that "
    "differ from those of training, or a score that measures something else than the reward, may rise less "
    "without a fault. With several datasets, one that falls while another rises is only a note.",
)
