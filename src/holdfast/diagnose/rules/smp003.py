"""SMP003: the mismatch grows from the first update on, as if the sampler kept its weights.

Meaning: The difference between sampler and trainer grows with every update since the first.

Impact: Rollouts come from an old policy. The logged reward is the reward of this policy, so it does not change. The
importance ratios grow until the updates are noise.

Limitations: A slow and steady drift with another cause looks the same.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from holdfast.diagnose.log import Log
from holdfast.diagnose.log.trailing import Values
from holdfast.diagnose.rules._parts import GAP, RATE
from holdfast.diagnose.rules._parts.sampler import MEASURES, MIN_ROWS, grows, samples_elsewhere
from holdfast.diagnose.rules.remedies import OUR_BUG, advise
from holdfast.diagnose.rules.rule import COLLAPSING, Check, Rows, Rule, Signal


def grows_with_updates(rows: Rows, gap: Values, *, grown: float, is_kl: bool) -> Signal:
    """Since the first update, the mismatch has grown in a straight line over the sum of the learning rates."""
    rate = rows.latest(RATE)
    moved = np.cumsum(np.where(np.isfinite(rate) & (rate > 0), rate, 0.0))
    distance = np.sqrt(np.maximum(gap, 0.0)) if is_kl else gap
    by_rows, by_rate = (explained(x, distance) > STRAIGHT for x in (np.arange(len(gap), dtype=float), moved))
    straight = np.where(moved > 0, by_rate, by_rows)
    growth = grows(rows, gap, grown=grown, times=OF_FIRST_TIMES ** (2 if is_kl else 1))
    return replace(growth, where=growth.where & straight)


STRAIGHT = 0.9
"""Share of the variance of the mismatch that a straight line through the updates explains. A mismatch that begins to
grow half way through the log reaches 0.8."""
OF_FIRST_TIMES = 3.0
"""How many times the mismatch of the first updates it must be. SMP002 needs more, because it does not see a line."""


def explained(x: Values, y: Values) -> Values:
    """[N]: the share of the variance of `y` so far that a line over `x` explains; 0 where it falls, or neither varies.

    >>> explained(np.arange(4.0), np.array([1.0, 3.0, 5.0, 7.0])).round(3).tolist()
    [0.0, 1.0, 1.0, 1.0]
    """
    count = np.arange(1, len(x) + 1)
    with np.errstate(all="ignore"):
        y = y - y[0]
        mean_x, mean_y = np.cumsum(x) / count, np.cumsum(y) / count
        both = np.cumsum(x * y) / count - mean_x * mean_y
        squares = (np.cumsum(x * x) / count - mean_x**2) * (np.cumsum(y * y) / count - mean_y**2)
        share = both**2 / np.maximum(squares, 1e-300)
    return np.where((both > 0) & (squares > 1e-300) & np.isfinite(share), share, 0.0)


def has_own_sampler(log: Log) -> bool:
    """Whether another engine samples, by series of any kind. In our trainer none does."""
    return log.host != "holdfast" and (samples_elsewhere(log) or GAP in log.series)


UNSYNCED = (
    *((measure.series, measure.grown, measure.text, measure.series.endswith("kl")) for measure in MEASURES),
    (GAP, 0.02, "their log-probs of sampled tokens differ by {sampler/logprob_gap:.2g} nats", True),
)
"""(series, the level that it must reach, its text, whether it is a KL, which grows with the square of the distance)."""


RULE = Rule(
    title="sampler does not get the new weights",
    equal_needs=True,
    applies=has_own_sampler,
    checks=tuple(
        Check(
            series=(name,),
            signal=partial(grows_with_updates, grown=grown, is_kl=is_kl),
            message=f"Sampler and trainer drift apart with every update since the first: {text}, up from "
            "{usual:.2g}. The sampler seems to keep its old weights.",
            min_rows=MIN_ROWS,
        )
        for name, grown, text, is_kl in UNSYNCED
    ),
    suppressed_by=("MSK001",),
    suppressed_by_earlier=("STP001", "SMP001", *COLLAPSING),
    remedy=advise(
        "First check that the sampler receives the new weights: ask it for the log-probs of a fixed text before and "
        "after an update. If it does receive them, lower the [learning rate], and limit how many updates old a "
        "rollout may be.",
        instead={"holdfast": OUR_BUG},
        also={
            "trl": "With LoRA or several processes, make sure that the merged weights reach vLLM.",
        },
    ),
)
