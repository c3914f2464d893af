"""Log-probs of sampler and trainer from the series that stock trainers log: levels for SMP001, growth for SMP002, and
growth from the first update on for SMP003.

Two engines compute the probability of the same token with other kernels, so they never agree exactly. In bfloat16 the
mean absolute difference is 0.002 to 0.02 nats per token, and rises with entropy. Mixtures of experts and 8-bit rollouts
reach 0.05. Issue threads about broken set-ups report 0.2 to 0.4. A difference of probabilities is smaller than that of
their logarithms. A KL is about half the square of a difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from holdfast.diagnose.log import Log
from holdfast.diagnose.log.trailing import Values, break_in, held, highest, trailing_mean
from holdfast.diagnose.rules.remedies import OUR_BUG, advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal

ENTROPY, LENGTH, RATE = "entropy/mean", "rollout/length", "lr"
GAP, RATIO = "sampler/logprob_gap", "sampler/importance_ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One way in which trainers measure the mismatch."""

    series: str
    broken: float
    """From here on, rollouts do not come from the policy that is trained."""
    grown: float
    """A mismatch that grows must reach this. Below it, there is nothing to worry about."""
    times: float
    """How many times the mismatch at the start it must be."""
    text: str
    """For the messages: what differs, and by how much."""


MEASURES = (
    Measure(
        series="sampler/logprob_abs_gap",
        broken=0.15,
        grown=0.03,
        times=4.0,
        text="their log-probs of sampled tokens differ by {sampler/logprob_abs_gap:.2g} nats on average",
    ),
    Measure(
        series="sampler/prob_abs_gap",
        broken=0.06,
        grown=0.015,
        times=4.0,
        text="their probabilities of sampled tokens differ by {sampler/prob_abs_gap:.2g} on average",
    ),
    Measure(
        series="sampler/mismatch_kl",
        broken=0.1,
        grown=0.01,
        times=10.0,
        text="the KL between them is {sampler/mismatch_kl:.2g} nats per token",
    ),
)
ROWS = 2
"""Consecutive rows in which it has grown. A row is a mean of thousands of tokens, so two are enough."""
USUAL_ROWS = 10
"""The usual mismatch is the median of the first rows, at most this many and without the latest `ROWS`."""
FEWEST_ROWS = 5
"""Rows before a mismatch can have grown."""


def is_broken(rows: Rows, *, measure: Measure) -> Signal:
    """Since the first row, the mismatch is far above rounding."""
    (gap,) = rows.columns
    high = gap > measure.broken
    return Signal(np.cumsum(~high) == 0, lambda: {measure.series: gap}, normal=~high)


def grows(rows: Rows, *, grown: float, times: float) -> Signal:
    """The mismatch is several times what it was when the run began, and a higher entropy does not explain it."""
    (gap,) = rows.columns
    usual = usual_before(gap)
    more_entropy = np.fmax(rows.latest(ENTROPY, times_usual), 1.0)
    high = gap > np.maximum(grown, times * usual * more_entropy)
    return Signal(
        held(high, ROWS),
        lambda: {rows.names[0]: gap, "usual": usual},
        normal=gap < grown,
        began=lambda row: break_in(gap, 0, row),
    )


def usual_before(values: Values) -> Values:
    """[N]: the median of the first rows. The latest ones do not count.

    >>> usual_before(np.array([1.0, 3.0, 1.5, 9.0, 9.0])).tolist()
    [1.0, 1.0, 1.0, 2.0, 1.5]
    """
    medians = np.array([np.median(values[:count]) for count in range(1, min(len(values), USUAL_ROWS) + 1)])
    return medians[np.clip(np.arange(len(values)) - ROWS, 0, len(medians) - 1)]


def times_usual(values: Values) -> Values:
    """[N]: a value as a multiple of its usual one."""
    return values / np.maximum(usual_before(values), 1e-9)


STRAIGHT = 0.9
"""Share of the variance of the mismatch that a straight line through the updates explains. A mismatch that begins to
grow half way through the log reaches 0.8."""
OF_FIRST_TIMES = 3.0
"""How many times the mismatch of the first updates it must be. SMP002 needs more, because it does not see a line."""
UNSYNCED = (
    *((measure.series, measure.grown, measure.text, measure.series.endswith("kl")) for measure in MEASURES),
    (GAP, 0.02, "their log-probs of sampled tokens differ by {sampler/logprob_gap:.2g} nats", True),
)
"""(series, the level that it must reach, its text, whether it is a KL, which grows with the square of the distance)."""

RATIO_ROWS, FIRST_RATIO, LOW_RATIO = 3, 0.8, 0.5
"""The mean importance ratio of the sampler in three rows: at first, and if most of the weight is lost. Its expectation
is 1 if sampler and trainer are the same policy."""
LONGER_TIMES = 1.5
"""A ratio of whole rollouts is a product over tokens, so rounding alone lowers its truncated mean as rollouts grow."""


def grows_with_updates(rows: Rows, *, grown: float, is_kl: bool) -> Signal:
    """Since the first update, the mismatch has grown in a straight line over the sum of the learning rates."""
    (gap,) = rows.columns
    rate = rows.latest(RATE)
    moved = np.cumsum(np.where(np.isfinite(rate) & (rate > 0), rate, 0.0))
    distance = np.sqrt(np.maximum(gap, 0.0)) if is_kl else gap
    by_rows, by_rate = (explained(x, distance) > STRAIGHT for x in (np.arange(len(gap), dtype=float), moved))
    straight = np.where(moved > 0, by_rate, by_rows)
    growth = grows(rows, grown=grown, times=OF_FIRST_TIMES ** (2 if is_kl else 1))
    return replace(growth, where=growth.where & straight)


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


def loses_weight(rows: Rows) -> Signal:
    """The mean importance ratio of the sampler was near 1, and is far below, while rollouts kept their length."""
    (ratio,) = rows.columns
    mean = trailing_mean(ratio, RATIO_ROWS)
    longer = rows.latest(LENGTH, lambda values: times_usual(trailing_mean(values, RATIO_ROWS)))
    was_near = highest(np.where(np.arange(len(ratio)) > 0, mean, ratio)) >= FIRST_RATIO
    low = (mean < LOW_RATIO) & (ratio < LOW_RATIO)
    return Signal(
        low & was_near & ~(longer > LONGER_TIMES),
        lambda: {RATIO: mean},
        normal=mean > FIRST_RATIO,
    )


def samples_elsewhere(log: Log) -> bool:
    """Whether an engine of its own samples. In our trainer, and in TRL without vLLM, the trainer itself does."""
    known = (RATIO, *(measure.series for measure in MEASURES))
    return log.host not in ("holdfast", "trl") or any(name in log.series for name in known)


def has_own_sampler(log: Log) -> bool:
    """Whether another engine samples, by series of any kind. In our trainer none does."""
    return log.host != "holdfast" and (samples_elsewhere(log) or GAP in log.series)


SMP003 = Rule(
    code="SMP003",
    title="sampler does not get the new weights",
    needs=tuple((name,) for name, *_ in UNSYNCED),
    equal_needs=True,
    applies=has_own_sampler,
    checks=tuple(
        Check(
            series=(name,),
            signal=partial(grows_with_updates, grown=grown, is_kl=is_kl),
            message=f"Sampler and trainer drift apart with every update since the first: {text}, up from "
            "{usual:.2g}. It looks as if the sampler kept its old weights.",
            min_rows=FEWEST_ROWS,
        )
        for name, grown, text, is_kl in UNSYNCED
    ),
    suppressed_by=("MSK001",),
    suppressed_by_earlier=("STP001", "SMP001", "LLD001", "LLD002", "LLD003", "ISD001", "ENT001", "RWD001"),
    meaning="The difference between sampler and trainer grows with every update since the first.",
    impact="Rollouts come from an old policy, so the reward that is logged is that of the old policy too and stands "
    "still. The importance ratios grow until the updates are noise.",
    remedy=advise(
        "First check that the sampler receives the new weights after every update: ask it for the log-probs of a fixed "
        "text before and after one. If it does, lower the [learning rate], and limit how many updates old a rollout "
        "may be.",
        instead={"holdfast": OUR_BUG},
        also={
            "trl": "With LoRA or several processes, make sure that the merged weights reach vLLM.",
        },
    ),
    limitations="A slow and steady drift for another reason looks the same.",
)


SMP002 = Rule(
    code="SMP002",
    title="mismatch between sampler and trainer grows",
    needs=(*((measure.series,) for measure in MEASURES), (RATIO,)),
    equal_needs=True,
    applies=samples_elsewhere,
    checks=(
        *(
            Check(
                series=(measure.series,),
                signal=partial(grows, grown=measure.grown, times=measure.times),
                message=f"Sampler and trainer drift apart: {measure.text}, "
                "up from {usual:.2g} at the start. A change in entropy does not explain this.",
                min_rows=FEWEST_ROWS,
            )
            for measure in MEASURES
        ),
        Check(
            series=(RATIO,),
            signal=loses_weight,
            rows_normal=RATIO_ROWS + 1,  # an odd row moves the mean for so many less one
            message="The importance ratio of the sampler is {sampler/importance_ratio:.2g} on average. It is 1 while "
            "sampler and trainer are the same policy.",
            min_rows=RATIO_ROWS,
            look_at=(RATIO, *(measure.series for measure in MEASURES)),
        ),
    ),
    suppressed_by=("MSK001", "SMP001", "SMP003", "STP001"),
    # In a policy that breaks, unlikely tokens are sampled, and on those the engines differ most.
    suppressed_by_earlier=("LLD001", "LLD002", "LLD003", "ISD001", "ENT001", "RWD001"),
    meaning="The log-probs of sampler and trainer differ several times as much as at the start of the run, or their "
    "importance ratio is far below 1.",
    impact="Rollouts no longer come from the policy that is trained, so the importance ratios are wrong. In "
    "published collapses the mismatch grows first, and the reward falls soon after.",
    remedy=advise(
        "Check that the sampler gets the new weights after every update. If it does, go back to a checkpoint from "
        "before the mismatch grew, and lower the [learning rate]. Use the [importance weights of the sampler]. For a "
        "mixture of experts, use the sampler's routing in the trainer (routing replay).",
        instead={"holdfast": OUR_BUG},
        also={"trl": "If the ratio alone is low, try `vllm_importance_sampling_mode='token_truncate'`."},
    ),
    limitations="The ratio of whole rollouts, TRL's default, is a product over tokens. In long rollouts rounding alone "
    "makes its truncated mean small, so the rule wants a ratio that was near 1, and rollouts that kept their length. "
    "For the rest this rule judges only growth. SMP001 judges the level at the start of a run. Log-prob differences "
    "below 0.03 nats are ignored, and so is growth in proportion to entropy.",
)
