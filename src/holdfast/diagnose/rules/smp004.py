"""SMP004: importance weights leave little of a batch, by the effective sample size that trainers log.

Meaning: The importance weights differ so much between rollouts that a few rollouts decide the update.

Impact: The update is then mostly noise. In published runs with stale rollouts, the effective sample size shrinks before
the collapse (arXiv 2602.17616).

Limitations: The weight of a whole rollout is a product over its tokens, so in long rollouts rounding alone can make the
share small. Unless the reward falls, this is therefore a note.
"""

from __future__ import annotations

from functools import partial

from holdfast.diagnose.log.trailing import Values, mean_at_first, trailing_mean
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import COLLAPSING, Check, Rows, Rule, Signal, falling

ESS = "sampler/ess"
_MESSAGE = (
    "With the importance weights, the effective sample size is {sampler/ess:.0%} of the rollouts, down from "
    "{before:.0%}. This makes the gradient {times:.2g} times as noisy as with equal weights"
)


def few_are_left(rows: Rows, share: Values, *, harmful: bool) -> Signal:
    """The effective sample size is below a half; if `harmful`, while the reward falls."""
    smooth = trailing_mean(share, ROWS)
    low = smooth < LOW
    return Signal(
        low & falling(rows) if harmful else low,
        lambda: {ESS: smooth},
        lambda: {"before": mean_at_first(share, ROWS), "times": (1 / smooth.clip(1e-9)) ** 0.5},
        normal=smooth > LOW,
    )


ROWS = 5
LOW = 0.5
"""Effective sample size, as a share of the tokens or rollouts. It is 1 / (1 + v²), where v is the standard deviation of
the weights over their mean (Kong, 1992), and a weighted mean of n draws has the variance of a plain one of ESS · n. At
a half the weights vary as much as their mean: half of the rollouts are spent on their noise."""


RULE = Rule(
    title="importance weights leave a small effective sample",
    applies=lambda log: ESS in log.series,
    checks=(
        Check(
            series=(ESS,),
            signal=partial(few_are_left, harmful=True),
            message=f"{_MESSAGE}, and the reward falls.",
            min_rows=ROWS,
            look_at=(ESS, "rollout/staleness", "reward/mean"),
        ),
        Check(
            series=(ESS,),
            signal=partial(few_are_left, harmful=False),
            message=f"{_MESSAGE}.",
            min_rows=ROWS,
            level="note",
        ),
    ),
    suppressed_by=("MSK001", "SMP001", "SMP003", "STP001"),
    suppressed_by_earlier=("OFP001", *COLLAPSING),
    remedy=advise(
        "Lower the [limit on staleness] to train on fresher rollouts, or lower the [learning rate]. Weight single "
        "tokens instead of whole rollouts, whose weights are products over all tokens, or narrow the [bounds on the "
        "importance weights]."
    ),
)
