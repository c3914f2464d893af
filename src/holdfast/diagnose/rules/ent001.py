"""ENT001: entropy surges.

Meaning: Entropy rises far above its lowest value, and longer rollouts do not explain it.

Impact: The policy becomes uncertain but does nothing new: probability moves to tokens that it rarely samples. In
published collapses, this comes before the reward falls.

Limitations: Entropy must rise by a quarter and by 0.35 nats per token. So a very low entropy is not reported, even if
it doubles. If the reward falls meanwhile and recovers, this is a note, even if entropy stays high. New data or another
temperature can also raise entropy. If the settings in the log have an entropy bonus, the finding says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.finding import Finding
from holdfast.diagnose.log import Log
from holdfast.diagnose.log.collapse import curve_of
from holdfast.diagnose.log.trailing import (
    Truths,
    Values,
    break_in,
    highest_since,
    last_where,
    lowest,
    margin,
    mean_at_first,
    trailing_mean,
)
from holdfast.diagnose.rules._parts import ENTROPY, LENGTH, REWARD
from holdfast.diagnose.rules._parts.reward import long_not_preferred, without_room
from holdfast.diagnose.rules.remedies import PRESERVE_LIKELIHOOD, Remedy, advise, preserve_likelihood, setting
from holdfast.diagnose.rules.rule import Check, Hit, Rows, Rule, Signal, falling


def surges(rows: Rows, entropy: Values) -> Signal | None:
    """Entropy is far above its lowest value, and neither one row nor longer rollouts explain it. A reward that fell
    meanwhile and came back ends it."""
    smooth = trailing_mean(entropy, ROWS)
    low = lowest(smooth)
    rise = smooth - low
    risen = (smooth > SURGE_TIMES * low) & (rise > SURGE_NATS)
    if not risen.any():
        return None
    risen &= rise > margin(entropy, ROWS, SURGE_ERRORS)
    risen &= (smooth > mean_at_first(entropy, ROWS)) | falling(rows)
    steps_up = np.diff(entropy, prepend=entropy[:1])
    rest = trailing_mean(entropy, 2) - low - highest_since(steps_up, smooth <= low)
    lowest_at = last_where(smooth <= low)
    # NaN, if the length is not known, excludes nothing.
    length = trailing_mean(rows.latest(LENGTH), ROWS)
    grown = length / np.maximum(length[lowest_at], 1e-9)
    longer = (grown > LENGTH_TIMES) & (grown > smooth / np.maximum(low, 1e-9))
    below_half = (smooth < (1 + SURGE_TIMES) / 2 * low) | (rise < SURGE_NATS / 2)
    recovered = has_recovered(rows, risen, below_half)
    where = risen & (rest > SURGE_WITHOUT_STEEPEST_ROW * low) & ~longer & long_not_preferred(rows) & ~recovered

    def words() -> dict[str, NDArray[np.generic]]:
        with np.errstate(all="ignore"):
            times = smooth / low
        kept = np.where(np.abs(np.log(np.maximum(grown, 1e-9))) < math.log(LENGTH_TIMES), LENGTH_KEPT, "")
        return {"times": times, "kept": np.where(np.isnan(grown) | without_room(rows), "", kept)}

    return Signal(
        where,
        lambda: {ENTROPY: smooth, "lowest so far": low},
        words,
        normal=below_half | recovered,
        began=lambda row: break_in(entropy, int(lowest_at[row]), row),
    )


ROWS = 5
LENGTH_KEPT = ", while rollouts kept their length"
SURGE_TIMES = 1.25
"""Times the lowest five-row mean so far. Healthy plateaus vary by up to a tenth, and by more if entropy is near 0."""
SURGE_NATS = 0.35
"""Nats per token: 1.4 times as many likely tokens. A factor alone is not enough. Healthy runs that still learn vary by
up to 0.3 nats, which may be more than the whole entropy of a sharp policy."""
SURGE_ERRORS = 3.5
"""Standard errors above the lowest of many means, which is an extreme."""
SURGE_WITHOUT_STEEPEST_ROW = 0.1
"""What is left of the rise without its steepest row, as a share of the lowest value. A rise within a single row means
other questions, another sampler or another retriever, not a policy that drifts."""
LENGTH_TIMES = 1.3
"""The length may have grown by this factor since entropy was lowest, or by less than entropy. Rambling follows a surge.
If rollouts grow first, they are of another kind and may have another entropy."""


def has_recovered(rows: Rows, risen: Truths, over: Truths) -> Truths:
    """[N]: where the reward has fallen while entropy had risen, which is not over, and then come back to its peak."""
    down, back = risen & falling(rows), rows.where(REWARD, lambda reward: curve_of(reward).back)
    fell, came_back = last_where(down), last_where(back)
    return np.asarray(down[fell] & (fell > last_where(over)) & (came_back > fell))


def for_surge(log: Log, hit: Hit, before: Sequence[Finding]) -> Remedy:
    """An entropy bonus in the settings is the cause that the log names."""
    bonus = setting(log, "entropy bonus")
    if bonus is None or bonus <= 0:
        return preserve_likelihood(log, hit, before)
    return {host: text.replace("{bonus}", f"{bonus:g}") for host, text in LESS_BONUS.items()}


LESS_BONUS = advise(
    "The log has an [entropy bonus] of {bonus}: set it to 0. If entropy rises without it, lower the [learning rate]."
)


RULE = Rule(
    title="entropy surge",
    kind="symptom",
    needs=((ENTROPY, LENGTH), (ENTROPY,)),
    equal_needs=True,
    checks=(
        Check(
            series=(ENTROPY,),
            signal=surges,
            message="Entropy rose to {entropy/mean:.3g} nats, {times:.2g} times its lowest value{kept}.",
            min_rows=ROWS,
            look_at=(ENTROPY, LENGTH),
        ),
    ),
    remedy=PRESERVE_LIKELIHOOD,
    remedy_in=for_surge,
)
