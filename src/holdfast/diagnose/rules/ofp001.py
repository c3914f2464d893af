"""OFP001: rollouts from a policy that is too old for the update, by a logged staleness or by what it clips.

Meaning: Rollouts are many updates old, or more and more tokens are clipped, and the reward suffers.

Impact: The policy has moved on since the rollouts were sampled. Clipping then removes their gradient, or their
importance weights are mostly noise.

Limitations: If the log lacks staleness, the rule uses the share of clipped tokens. This share must be eight times its
value at the start and three times its value when the reward was best, and the reward must have lost a fifth. Runs that
clip many tokens from the start are not reported.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from holdfast.diagnose.log.collapse import DROPPED_SHARE, curve_of
from holdfast.diagnose.log.trailing import (
    Truths,
    Values,
    first,
    highest,
    last_where,
    lowest,
    margin,
    mean_at_first,
    trailing_mean,
)
from holdfast.diagnose.rules._parts import CLIPPED, REWARD, STALENESS
from holdfast.diagnose.rules._parts.sampler import usual_before
from holdfast.diagnose.rules.remedies import FRESHER, TO_SAMPLER, advise
from holdfast.diagnose.rules.rule import COLLAPSING, Check, Rows, Rule, Signal, falling


def grows_stale(rows: Rows, age: Values) -> Signal | None:
    """Rollouts are old, or older than at the start, and more tokens are clipped or the reward falls."""
    now, usual = trailing_mean(age, ROWS), usual_before(age)
    older = (now > usual + STALE_RISE) & (now > STALE_TIMES * usual)
    if not (older | (now > STALE)).any():
        return None
    clips_more = rows.where(CLIPPED, lambda values: _clips(values, CLIPPED_TIMES, CLIPPED_SHARE))
    down, mean = falling(rows), partial(trailing_mean, window=ROWS)
    harm = np.where(older, clips_more | down, clips_more & down)
    return Signal(
        (older | (now > STALE)) & harm,
        lambda: {STALENESS: now, CLIPPED: rows.latest(CLIPPED, mean), REWARD: rows.latest(REWARD, mean)},
        lambda: {
            "before": usual,
            "harm": np.where(clips_more, "more tokens are clipped than at the start", "the reward falls"),
        },
        normal=~harm | ((now < usual + STALE_RISE / 2) & (now < STALE)),
    )


ROWS, LONG_ROWS = 5, 10
STALE_RISE, STALE_TIMES = 1.0, 1.5
"""Updates, and times the staleness at the start: it has grown by both. A full queue makes it grow once."""
STALE = 4.0
"""Updates from which on rollouts are old even if they always were. Asynchronous trainers limit it to 1 to 8, so it then
takes both: more clipped tokens, and a reward that falls."""
CLIPPED_TIMES, CLIPPED_SHARE = 3.0, 0.01
"""Times the usual share of clipped tokens, and the share that it must reach, if rollouts are known to be stale."""


def clips_more(rows: Rows, clipped: Values, reward: Values) -> Signal | None:
    """Many times the share of tokens is clipped that was usual at first, and several times that when the reward was
    best; and the reward has dropped since."""
    more = _clips(clipped, ALONE_TIMES, ALONE_SHARE)
    if not more.any():
        return None
    curve = curve_of(reward)
    dropped = curve.short.has_lost(DROPPED_SHARE, 3.0) | curve.long.has_lost(DROPPED_SHARE, 3.0)
    smooth, means = trailing_mean(clipped, ROWS), curve.short.means
    at_best = smooth[last_where(means >= highest(means))]
    more &= smooth > LED_TIMES * at_best
    return Signal(
        more & dropped & _grew_first(more, dropped),
        lambda: {CLIPPED: smooth, REWARD: means},
        lambda: {"before": at_best, "peak": highest(means)},
        normal=~_clips(clipped, ALONE_TIMES / 2, ALONE_SHARE / 2),
    )


ALONE_TIMES, ALONE_SHARE = 8.0, 0.03
"""The same without a logged staleness. It must then have been rare: many sound runs clip 4 % from the start."""
LED_TIMES = 3.0
"""Times the clipped share when the reward was best. Clipping that did no harm then did not cause the fall."""


def _grew_first(more: Truths, dropped: Truths) -> Truths:
    """[N]: where clipping had grown before the reward dropped, or no more than five rows later."""
    index = np.arange(len(more))
    begun = np.maximum.accumulate(np.where(dropped & ~np.append(False, dropped[:-1]), index, -1))
    grew = first(more)
    return np.zeros(len(more), bool) if grew is None else (grew <= index) & (grew <= begun + ROWS)


def _clips(clipped: Values, times: float, share: float) -> Truths:
    """[N]: where the mean of five rows is many times the usual share of clipped tokens."""
    smooth, usual = trailing_mean(clipped, ROWS), mean_at_first(clipped, LONG_ROWS)
    more = (smooth > times * usual) & (smooth > share) & (np.arange(len(clipped)) >= LONG_ROWS)
    if more.any():
        more &= smooth - lowest(smooth) > margin(clipped, ROWS, CLIPPED_ERRORS)
    return more


CLIPPED_ERRORS = 4.0
RECOMPUTED = advise(f"{FRESHER}If rollouts have to be stale, add a [penalty on lost likelihood].")
"""What to change; `TO_SAMPLER` where the ratio compares with the sampler."""


RULE = Rule(
    title="rollouts too old for the update",
    kind="symptom",  # a policy that breaks clips more tokens too, and what breaks it comes first
    checks=(
        Check(
            series=(STALENESS,),
            signal=grows_stale,
            rows_normal=LONG_ROWS,
            message="Rollouts are {rollout/staleness:.1f} updates old, compared with {before:.1f} at the start, and "
            "{harm}.",
            min_rows=ROWS,
            look_at=(STALENESS, CLIPPED, REWARD),
        ),
        Check(
            series=(CLIPPED, REWARD),
            signal=clips_more,
            rows_normal=LONG_ROWS,
            message="The update clips {clip/fraction:.1%} of the tokens, compared with {before:.2%} when the reward "
            "was best. The reward fell from {peak:.3g} to {reward/mean:.3g}. The sampling policy is too far from the "
            "trained one.",
            min_rows=LONG_ROWS,
        ),
    ),
    # A single step explains the clipping, and a policy that breaks clips too.
    suppressed_by=("STP001", "SMP001", "SMP003", "MSK001"),
    suppressed_by_earlier=COLLAPSING,
    remedy=RECOMPUTED,
    remedy_in=lambda log, hit, before: TO_SAMPLER if log.old_policy == "sampler" else hit.remedy or RECOMPUTED,
)
