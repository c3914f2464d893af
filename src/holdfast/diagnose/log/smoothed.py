"""Running means of a reward, and what each has lost of its range, row by row. `collapse.py` says what counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from holdfast.diagnose.log.trailing import (
    Truths,
    Values,
    binary_noise,
    highest,
    lowest,
    needed,
    noise_of_mean,
    trailing_lowest,
    trailing_mean,
)

WINDOW = 5
"""Rows in the running mean, as in the curves of the papers."""
LONG_WINDOW = 2 * WINDOW
"""Rows in the longer mean, which shows a slow fall of a noisy reward."""
MIN_WINDOWS = 4
MIN_ROWS = 3
"""Rows before a loss is looked for."""
PEAK_ERRORS = 3.0
"""Standard errors of the peak alone, by the scatter of its rows, which heavy tails widen, and a rise does too."""
FIRST_SHARE = 1 / 8
"""The first row alone is a peak above this share of correct answers: one lucky rollout of eight is not."""
REMAINDER = 1e-5
"""What is left of rewards that a trainer has normalised to a mean of 0, in float32. No row is more exact than that."""
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Smoothed:
    """A running mean of the reward, and the share of its range that it has lost, row by row."""

    window: int
    means: Values
    """[N]: over the last rows; over all rows so far at the beginning."""
    lost: Values
    """[N]: share of the range; 0 at the peak and in the first rows."""
    z_score: Values
    """[N]: the loss in standard errors of the difference of the two means."""
    lost_from_rest: Values
    """[N]: share of the range that is lost if the best row of the peak is left out, because one odd row makes no
    peak."""

    of_peak: Values
    """[N]: the loss in standard errors of the peak, by the scatter of its own rows: a few odd rows make none either.
    Infinite for a peak in the first rows, which are too few for that."""

    def has_lost(self, share: float, errors: float) -> Truths:
        """[N]: where it has lost `share` or more, by more than `errors` standard errors. Longer logs need more."""
        enough = self.z_score > needed(errors, self.window, len(self.means))
        of_several = (self.lost_from_rest >= share / 2) & (self.of_peak > PEAK_ERRORS)
        return np.asarray((self.lost >= share - ROUNDING) & of_several & enough)


def smoothed(rewards: Values, count: Values, window: int) -> Smoothed:
    """The mean of [N] rewards over their last `window` rows. `count`: see `drawn_count`."""
    means = trailing_mean(rewards, window)
    shift = float(rewards[0]) if len(rewards) else 0.0  # so that squares stay exact
    index = np.arange(len(means))
    peak_at = np.maximum.accumulate(np.where(means >= highest(means), index, 0)) if len(means) else index
    rows = np.minimum(index + 1, window)
    peaks, peak_rows = means[peak_at], rows[peak_at]
    in_both = (peak_rows * peaks + rows * means) / (peak_rows + rows)
    of_row = np.maximum(noise_of_mean(rewards, window) * math.sqrt(window), binary_noise(in_both, count))
    of_row = np.maximum(of_row, REMAINDER)
    error = of_row * np.sqrt(1 / rows + 1 / peak_rows)
    loss, height = peaks - means, reward_range(peaks, lowest(rewards))
    best_row = -trailing_lowest(-rewards, window)[peak_at]
    next_row = rewards[np.minimum(peak_at + 1, len(rewards) - 1)] if len(rewards) else rewards
    first_row = np.where((peaks > FIRST_SHARE) & (highest(rewards) <= 1) & (lowest(rewards) >= 0), peaks, next_row)
    rest = np.where(peak_rows > 1, (peak_rows * peaks - best_row) / np.maximum(peak_rows - 1, 1), first_row)
    squares = trailing_mean(np.square(rewards - shift), window)[peak_at] - np.square(peaks - shift)
    spread = np.sqrt(np.maximum(squares, 0.0) / np.maximum(peak_rows - 1, 1))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        lost = np.where(height > 0, loss / height, 0.0)
        lost_from_rest = np.where(height > 0, (rest - means) / height, 0.0)
        z_score = np.where(loss > 0, loss / error, 0.0)
        of_peak = np.where((loss > 0) & (peak_rows == window), loss / spread, np.where(loss > 0, np.inf, 0.0))
    lost[: MIN_ROWS - 1 if window <= LONG_WINDOW else MIN_WINDOWS * window - 1] = 0.0
    return Smoothed(window, means, lost, z_score, lost_from_rest, of_peak)


def reward_range(peak: ArrayLike, lowest: ArrayLike) -> Values:
    """How far a reward can fall: from the peak to the lowest value, with 0 in the range unless the peak is below it. A
    peak below 0 stands for half of its size at least, so that -0.7 after -0.66 is no loss of everything.

    >>> [float(reward_range(*pair)) for pair in ((0.8, 0.1), (0.5, -1.0), (-0.5, -1.0))]
    [0.8, 1.5, 0.5]
    """
    return np.maximum(peak - np.minimum(lowest, 0.0), -0.5 * np.asarray(peak))
