"""The policy is pulled back to its reference, and loses what it learned (KLD002)."""

from __future__ import annotations

import numpy as np

from holdfast.base.collapse import curve_of
from holdfast.base.trailing import Values, delayed, highest, last_where, most_since, trailing_mean
from holdfast.diagnose.rules.divergence import has_kl
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal

KL, REWARD = "kl/reference", "reward/mean"
ROWS, LONG_ROWS = 5, 10
LEFT_NATS = 0.003
"""Nats per token in ten rows from which on the policy has left its reference. Runs that learn reach 0.0005 to 0.3."""
BACK_SHARE = 1 / 3
"""Share of the highest KL that is left. The KL of a policy that only varies stays within a factor of two."""
AT_ONCE = 0.6
"""Share of the loss of KL within three rows, if the reference was set anew: that moves the reference, not the
policy."""


def is_pulled_back(rows: Rows) -> Signal | None:
    """The KL has fallen far below its highest mean, not at once, and the reward is down."""
    kl, reward = rows.columns
    down = rows.where(REWARD, lambda values: curve_of(values).down)  # a lower KL alone is no fault
    if not down.any():
        return None
    # A token that the reference finds absurd makes a spike of any height, so the median of five rows counts.
    calm = trailing_median(kl, ROWS)
    smooth = trailing_mean(calm, LONG_ROWS)
    smooth = np.where(np.arange(len(kl)) >= LONG_ROWS - 1, smooth, 0.0)
    most, now = highest(smooth), trailing_mean(calm, ROWS)
    best = last_where(smooth >= most)
    mean_reward = trailing_mean(reward, ROWS)
    brief = trailing_mean(calm, 3)
    steepest = most_since(delayed(brief, 3) - brief, smooth >= most)
    back = (most >= LEFT_NATS) & (now < BACK_SHARE * most) & (steepest < AT_ONCE * (most - now))
    return Signal(
        back & down,
        lambda: {KL: now, REWARD: mean_reward},
        lambda: {"most": most, "then": rows.steps[best], "reward then": mean_reward[best]},
        normal=now > 2 * BACK_SHARE * most,
    )


def trailing_median(values: Values, window: int) -> Values:
    """[N]: the median of the last `window` values; the first value stands for those before it."""
    filled = np.concatenate([np.full(window - 1, values[0]), values])
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(filled, window), axis=1))


KLD002 = Rule(
    code="KLD002",
    title="policy pulled back to its reference",
    needs=((KL, REWARD),),
    applies=has_kl,
    checks=(
        Check(
            series=(KL, REWARD),
            signal=is_pulled_back,
            message="The policy returns to its reference and loses what it learned: the KL fell from {most:.2g} (step "
            "{then}) to {kl/reference:.2g} nats per token, and the reward from {reward then:.3g} to {reward/mean:.3g}.",
            min_rows=LONG_ROWS,
        ),
    ),
    suppressed_by=("LRN001", "STP001"),
    meaning="The KL to the reference falls towards 0, and the reward falls with it.",
    impact="The KL term has become stronger than the reward: rewards that no longer differ, advantages near 0 or a "
    "coefficient that grows leave it as the only gradient. The policy forgets what it learned.",
    remedy=advise(
        "Lower the [coefficient of the KL], or set the [reference] anew at a good checkpoint. Check that some groups "
        "still have different rewards: without them, only the KL term is left. Go back to a checkpoint from before the "
        "KL fell."
    ),
    limitations="A KL that falls at once means that the reference was set anew, and is not reported. Without a "
    "reference (`beta=0`), no trainer measures this KL.",
)
