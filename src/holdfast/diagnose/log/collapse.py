"""When a reward dropped, fell and collapsed. The verdict at the end of a run, RWD001, the report and the headline of
`holdfast diagnose` share this definition.

The reward is smoothed over its last `WINDOW` rows. A loss is a share of the reward's range. The range reaches from the
lowest reward so far to the peak, and includes 0 unless the peak is below 0. Where no reward is below 0, that is the
share of the peak. Where one is below 0, a share of the peak would mean nothing: take -0.98 after -1. A loss must also
exceed the noise. It is estimated from neighbouring rows, from neighbouring means, and from the number of binary rewards
in a row, if that shows. The longer the log, the more means there are, and the further apart the best and the lowest of
them are by chance. So the standard errors below are those of short logs, and longer ones need more (`needed` in
`trailing.py`).

* `dropped`: 20 % is lost, by more than 3 standard errors.
* `fell`: 40 % is lost, by more than 5 standard errors; or a third, in the mean of ten rows, by more than 4. In a long
  log, a third in the mean of 40 or 160 rows counts too.
* `collapsed`: it fell from a plateau. A plateau has 20 rows or more that are within 20 % of the peak.

A sudden fall may pass: `Curve.down` leaves out the rows in which it recovers, or may still begin to. A fall is over
once the reward is within 20 % of its peak again, in the means of five and of ten rows (`Curve.back`). `course_of` says
what became of the reward by the end of the log, in one word. `RWD001`, `RWD004`, the headline, the closing words of a
run, and the verdict and the phases of a report all read it.

Everything is causal: what is true at a row depends on the rows up to it. A run that recovered fell all the same
(`fell`); `Curve.fallen` says for each row whether the reward has fallen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from holdfast.diagnose.log.smoothed import (
    LONG_WINDOW,
    MIN_WINDOWS,
    REMAINDER,
    ROUNDING,
    WINDOW,
    Smoothed,
    reward_range,
    smoothed,
)
from holdfast.diagnose.log.trailing import (
    Truths,
    Values,
    break_in,
    delayed,
    drawn_count,
    first,
    held,
    highest,
    highest_since,
    lowest,
    margin,
    mean_at_first,
    rows_since,
    spans,
    trailing_mean,
    trend,
)

LONGEST_WINDOWS = (8 * WINDOW, 32 * WINDOW)
"""The same in long logs, of at least `MIN_WINDOWS` such windows."""
DROPPED_SHARE, FALLEN_SHARE, HALVED_SHARE = 0.2, 0.4, 0.5
"""Shares of the range that are lost."""
FALLEN_LONG_SHARE = 1 / 3
"""The share that counts as a fall in the longer mean. No healthy recorded run lost a quarter by 3 standard errors."""
PLATEAU_ROWS = 20
"""Rows near the peak that make a fall a collapse."""
FALLEN_ERRORS, FALLEN_LONG_ERRORS, DROPPED_ERRORS = 5.0, 4.0, 3.0
"""Standard errors of the difference of two means that a loss must exceed in a short log."""
TREND_ERRORS = 3.0
"""Standard errors by which the line through all rows shows a rise or a decline. Below half of that nothing suggests
one."""
EXCLUDED_ERRORS = 2.0
"""Standard errors above the change up to which the reward may have risen all the same."""
MIN_FLAT_ROWS = 30
"""Rows in which a reward should have risen."""
VISIBLE_SHARE = 0.25
"""Share of the range. A reward counts as flat where a rise by it would show."""
BREAK_ROWS, BREAK_SHARE = 3, 0.6
"""A fall is a break if this share of the loss came within these rows: harder questions or another reward are as likely
as a collapse."""
ROWS_TO_RECOVER, ROWS_TO_BE_GONE = 8, 1
"""Rows after a break in which the reward may begin to recover, and the same if nothing is left of it: a broken grader
shows a row later, and GRP001 says so."""
GONE_SHARE = 0.8
"""Share of the range that is lost in three rows, if nothing is left to recover from. A log may have eight rows."""
RECOVERED_SHARE = 0.25
"""Share of the loss that has come back, if the reward recovers."""
ODD_ROWS = 3
"""Rows of ten that may be odd: that the three lowest of twenty are all among the first ten is chance in one case of
ten, and that the four lowest are, in one of twenty-three."""
ROWS_TO_BE_BACK = 20
"""Rows after a break in which that is enough. Later the reward has to be back: a recovery that stopped is a loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """A loss of the reward, as it was at one row."""

    peak_step: int
    """Where the running mean was highest up to `step`."""
    step: int
    peak: float
    """The running mean at `peak_step`."""
    level: float
    """The running mean at `step`."""
    lost: float
    """Share of the range."""
    rows: int
    """Rows in the running mean."""
    began: int
    """The step at which the reward went down, between the peak and `step`: where two levels fit the rows best."""
    measure: Literal["peak", "range"]
    """What `lost` is a share of: the range where a reward up to `step` is below 0, else the peak, which is the same."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A reward over time."""

    steps: NDArray[np.int64]
    """[N]"""
    rewards: Values
    """[N]: as logged; those that are not finite are left out."""
    short: Smoothed
    """Over `WINDOW` rows."""
    long: Smoothed
    """Over `LONG_WINDOW` rows."""

    longest: tuple[Smoothed, ...]
    """Over each of `LONGEST_WINDOWS` for which the log is long enough."""

    def of(self, window: int) -> Smoothed:
        """The running mean of so many rows."""
        return next(mean for mean in (self.short, self.long, *self.longest) if mean.window == window)

    @property
    def dropped(self) -> Truths:
        """[N]: where 20 % is lost."""
        return self.short.has_lost(DROPPED_SHARE, DROPPED_ERRORS)

    @property
    def falling(self) -> Truths:
        """[N]: where the reward has probably fallen. That is enough if another series shows the cause."""
        return np.asarray(np.any([mean.has_lost(FALLEN_LONG_SHARE, DROPPED_ERRORS) for mean, _ in self.falls], axis=0))

    @property
    def fallen(self) -> Truths:
        """[N]: where the reward is down."""
        return np.asarray(np.any([shown for _, shown in self.falls], axis=0))

    @property
    def rose(self) -> Truths:
        """[N]: where the line through all rows so far rises, or the mean of ten rows is above that of the first ten, by
        more than 3 standard errors. More than three of the first ten must then be below the median of the last ten.
        Fewer than ten rows show no rise."""
        rewards, known = self.rewards, LONG_WINDOW - 1
        rose = np.zeros(len(rewards), bool)
        if len(rewards) < LONG_WINDOW:
            return rose
        change, error = trend(rewards)
        by_chance = margin(rewards, LONG_WINDOW, DROPPED_ERRORS)
        higher = self.long.means - mean_at_first(rewards, LONG_WINDOW) > by_chance + ROUNDING
        typical = np.median(sliding_window_view(rewards, LONG_WINDOW), axis=1)
        lower = (rewards[:LONG_WINDOW, None] < typical - ROUNDING).sum(axis=0)
        rose[known:] = (higher[known:] & (lower > ODD_ROWS)) | (change > TREND_ERRORS * error)[known:]
        return rose

    @property
    def back(self) -> Truths:
        """[N]: where the reward is near its peak. In a long log a brief peak is not the level that it fell from: the
        mean of 40 or 160 rows near its own peak is enough, if the reward has not probably been down in any of them."""
        near = (self.short.lost < DROPPED_SHARE) & (self.long.lost < DROPPED_SHARE)
        for mean in self.longest:
            known = np.arange(len(near)) >= MIN_WINDOWS * mean.window - 1
            near |= known & (mean.lost < DROPPED_SHARE) & held(~self.falling, mean.window)
        return np.asarray(near & ~self.falling)

    @property
    def down(self) -> Truths:
        """[N]: where the reward is down, and is not about to recover from a break."""
        means = self.short.means
        peak, brief = highest(means), trailing_mean(self.rewards, BREAK_ROWS)
        broke, steepest = self._steepest
        low = np.where(broke, means, -highest_since(-means, broke))
        recovered = (means - low) / np.maximum(peak - low, 1e-12)
        some_left = peak - brief < GONE_SHARE * reward_range(peak, lowest(self.rewards))
        since = rows_since(broke)
        may_begin = since < np.where(some_left, ROWS_TO_RECOVER, ROWS_TO_BE_GONE)
        recovers = (recovered > RECOVERED_SHARE) & (since < ROWS_TO_BE_BACK)
        broken = steepest > BREAK_SHARE * (peak - means)
        return np.asarray(self.fallen & ~(broken & (may_begin | recovers)))

    @property
    def broke(self) -> tuple[Truths, NDArray[np.int64]]:
        """([N], [N]): where most of the loss came within three rows; and the row of the steepest drop since the peak,
        the number of rows counted from the start where there was none."""
        broke, steepest = self._steepest
        loss = highest(self.short.means) - self.short.means
        return steepest > BREAK_SHARE * loss, np.arange(len(loss)) - rows_since(broke)

    @property
    def _steepest(self) -> tuple[Truths, Values]:
        """([N], [N]): whether a row drops as steeply as any since the peak, and the steepest drop since then."""
        means, brief = self.short.means, trailing_mean(self.rewards, BREAK_ROWS)
        drop = delayed(brief, BREAK_ROWS) - brief
        steepest = highest_since(drop, means >= highest(means))
        return (drop >= steepest) & (drop > 0), steepest

    @property
    def falls(self) -> tuple[tuple[Smoothed, Truths], ...]:
        """Every mean with the rows [N] where it shows that the reward is down."""
        slow = ((mean, mean.has_lost(FALLEN_LONG_SHARE, FALLEN_LONG_ERRORS)) for mean in (self.long, *self.longest))
        return (self.short, self.short.has_lost(FALLEN_SHARE, FALLEN_ERRORS)), *slow

    def fall_at(self, row: int) -> Fall:
        """The loss at a row where the reward is down, by the mean that shows it."""
        return self.loss_at(row, next((mean for mean, shown in self.falls if shown[row]), self.long))

    def loss_at(self, row: int, smoothed: Smoothed) -> Fall:
        """The loss of one of the means at a row."""
        peak = int(np.argmax(smoothed.means[: row % len(smoothed.means) + 1]))
        return Fall(
            peak_step=int(self.steps[peak]),
            step=int(self.steps[row]),
            peak=float(smoothed.means[peak]),
            level=float(smoothed.means[row]),
            lost=float(smoothed.lost[row]),
            rows=smoothed.window,
            began=int(self.steps[break_in(self.rewards, peak, row % len(self.rewards))]),
            measure="range" if self.rewards[: row % len(self.rewards) + 1].min() < 0 else "peak",
        )


def curve_of(rewards: ArrayLike, steps: Sequence[int] | NDArray[np.int64] | None = None) -> Curve:
    """The curve of [N] rewards, logged at `steps` [N] (default: 1 to N). Rewards that are not finite are left out.

    >>> curve_of([0.8] * 8 + [0.2] * 6).short.lost.round(2).tolist()[-7:]
    [0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.75]
    """
    values = np.asarray(rewards, np.float64)
    at = np.arange(1, len(values) + 1) if steps is None else np.asarray(steps, np.int64)
    finite = np.isfinite(values)
    return _curve(at[finite].tobytes(), values[finite].tobytes())


@lru_cache(maxsize=16)
def _curve(steps: bytes, rewards: bytes) -> Curve:
    """Several rules look at the same reward. Its curve is computed once."""
    at, values = np.frombuffer(steps, np.int64), np.frombuffer(rewards, np.float64)
    count = drawn_count(values)
    longest = (window for window in LONGEST_WINDOWS if len(values) >= MIN_WINDOWS * window)
    short, long, *rest = (smoothed(values, count, window) for window in (WINDOW, LONG_WINDOW, *longest))
    return Curve(at, values, short, long, tuple(rest))


Word = Literal["collapsed", "fell", "recovered", "dropped", "rose", "declined", "flat", "unclear"]


@dataclass(frozen=True, slots=True)
class Course:
    """What became of the reward by the end of the log."""

    fall: Fall | None = None
    """The last fall; None if the reward never fell."""
    half: Fall | None = None
    """The first step, since the reward was last near its peak, at which half of the range was lost. Of a fall that
    passed: before it passed."""
    back_step: int | None = None
    """Where the reward was near its peak again; None if it is still down, or never fell."""
    word: Word = "unclear"
    """The verdict. `collapsed`, `fell` and `recovered` are of the last fall, which began from a plateau or not, or is
    over. `dropped` is a loss of 20 % at the end. Without any of these the line through all rows decides: it `rose` or
    `declined` by more than 3 standard errors, is `flat` if it did not by half of that in 30 rows, and a change by a
    quarter of the range would show. Else it is `unclear`: this log cannot tell yet."""
    change: float = 0.0
    """How far the line through all rows climbs from the first row to the last."""
    error: float = math.inf
    """The standard error of that."""


def course_of(curve: Curve) -> Course:
    """Whether the reward fell, and whether it came back.

    >>> end = course_of(curve_of([0.8] * 8 + [0.2] * 12))
    >>> end.fall.step, end.half.step, end.back_step
    (19, 13, None)
    >>> course_of(curve_of([0.8] * 20 + [0.0] * 8 + [0.8] * 30)).back_step
    37
    """
    changes, errors = trend(curve.rewards)
    change, error = (float(changes[-1]), float(errors[-1])) if len(changes) else (0.0, math.inf)
    back = curve.back
    found = spans(curve.down, back)
    if not found:
        return Course(word=_word(curve, change, error), change=change, error=error)
    at, returned = found[-1]
    begun = int(np.flatnonzero(back[: at + 1])[-1]) if back[: at + 1].any() else 0
    end = len(back) if returned is None else returned
    half = first(curve.short.has_lost(HALVED_SHARE, FALLEN_ERRORS)[begun:end])
    return Course(
        curve.fall_at(at),
        None if half is None else curve.loss_at(begun + half, curve.short),
        None if returned is None else int(curve.steps[returned]),
        "recovered" if returned is not None else "fell" if collapsed(curve) is None else "collapsed",
        change,
        error,
    )


def _word(curve: Curve, change: float, error: float) -> Word:
    """The verdict on a reward that did not fall."""
    rows = len(curve.steps)
    if is_remainder(curve):
        return "unclear"
    if rows and curve.dropped[-1]:
        return "dropped"
    if rows >= LONG_WINDOW and abs(change) > TREND_ERRORS * error:
        return "rose" if change > 0 else "declined"
    if rows and curve.rose[-1]:
        return "rose"
    if rows < MIN_FLAT_ROWS or abs(change) > TREND_ERRORS / 2 * error:
        return "unclear"
    return "flat" if TREND_ERRORS * error <= clear_rise(curve) else "unclear"


def is_remainder(curve: Curve) -> bool:
    """Whether a trainer has normalised the rewards, and rounding is all that is left of them."""
    return bool(len(curve.rewards) and 0 < np.abs(curve.rewards).max() < REMAINDER)


def clear_rise(curve: Curve) -> float:
    """A quarter of the range: the rise that a log of ten rows or more must be able to show, before its reward counts as
    flat. The range is that of the longest mean, because the best five rows of a long noisy log are luck."""
    slowest = (curve.long, *curve.longest)[-1]
    return VISIBLE_SHARE * float(reward_range(slowest.means[slowest.window - 1 :].max(), curve.rewards.min()))


def is_flat(curve: Curve, course: Course) -> bool:
    """Whether the reward has not risen, although a rise by a quarter of its range would show."""
    return may_be_flat(curve, course) and course.change + EXCLUDED_ERRORS * course.error <= clear_rise(curve)


def may_be_flat(curve: Curve, course: Course) -> bool:
    """Whether a reward of 30 rows or more, which is not down, has not risen as far as the log shows."""
    return (
        course.word in ("flat", "unclear", "recovered")
        and len(curve.rewards) >= MIN_FLAT_ROWS
        and course.change <= TREND_ERRORS / 2 * course.error
        and not is_remainder(curve)
    )


def fell(curve: Curve) -> Fall | None:
    """When the reward first fell: it had lost 40 % of its range, or a third in the mean of ten rows.

    >>> fell(curve_of([0.8] * 8 + [0.2] * 8)).step, fell(curve_of([0.8] * 8 + [0.6] * 8))
    (13, None)
    """
    row = first(curve.fallen)
    return None if row is None else curve.fall_at(row)


def collapsed(curve: Curve) -> Fall | None:
    """When the reward first fell, if it fell from a plateau.

    >>> collapsed(curve_of([0.8] * 20 + [0.2] * 8)).step, collapsed(curve_of([0.8] * 8 + [0.2] * 8))
    (23, None)
    """
    row = first(curve.fallen)
    return None if row is None or plateau(curve) < PLATEAU_ROWS else curve.fall_at(row)


def plateau(curve: Curve) -> int:
    """The number of rows, up to the first fall, that are within 20 % of the peak of those rows."""
    row = first(curve.fallen)
    end = len(curve.steps) if row is None else row + 1
    means = curve.short.means[:end]
    if not len(means):
        return 0
    near = means.max() - (DROPPED_SHARE - ROUNDING) * reward_range(means.max(), curve.rewards[:end].min())
    return int((means >= near).sum())
