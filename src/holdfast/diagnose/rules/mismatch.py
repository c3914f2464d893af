"""Log-probs of sampler and trainer from the series that stock trainers log: levels for SMP001, growth for SMP002.

Two engines compute the probability of the same token with other kernels, so they never agree exactly. In bfloat16 the
mean absolute difference is 0.002 to 0.02 nats per token, and rises with entropy. Mixtures of experts and 8-bit rollouts
reach 0.05. Issue threads about broken set-ups report 0.2 to 0.4. A difference of probabilities is smaller than that of
their logarithms. A KL is about half the square of a difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from holdfast.base.trailing import Values, held
from holdfast.diagnose.log import Log
from holdfast.diagnose.rules.remedies import OUR_BUG, Remedy, advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal

ENTROPY = "entropy/mean"


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


def grows(rows: Rows, *, measure: Measure) -> Signal:
    """The mismatch is several times what it was when the run began, and a higher entropy does not explain it."""
    (gap,) = rows.columns
    usual = usual_before(gap)
    more_entropy = np.fmax(rows.latest(ENTROPY, times_usual), 1.0)
    high = gap > np.maximum(measure.grown, measure.times * usual * more_entropy)
    return Signal(
        held(high, ROWS),
        lambda: {measure.series: gap, "usual": usual},
        normal=held(gap < measure.grown, ROWS),
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


def level_checks() -> tuple[Check, ...]:
    """The checks of SMP001 on these series."""
    return tuple(
        Check(
            series=(measure.series,),
            signal=partial(is_broken, measure=measure),
            message=f"Sampler and trainer disagree from the first row on: {measure.text}.",
            remedy=SAME_POLICY,
        )
        for measure in MEASURES
    )


SAME_POLICY: Remedy = advise(
    "Check that sampler and trainer have the same weights, precision, temperature and prompt. Sample [without top-p "
    "and top-k], or compute log-probs over the [tokens that the sampler can draw]. Correct the rest with [importance "
    "weights of the sampler].",
    instead={"holdfast": OUR_BUG},
)


def samples_elsewhere(log: Log) -> bool:
    """Whether an engine of its own samples. In our trainer, and in TRL without vLLM, the trainer itself does."""
    return log.host not in ("holdfast", "trl") or any(measure.series in log.series for measure in MEASURES)


SMP002 = Rule(
    code="SMP002",
    title="mismatch between sampler and trainer grows",
    needs=tuple((measure.series,) for measure in MEASURES),
    equal_needs=True,
    applies=samples_elsewhere,
    checks=tuple(
        Check(
            series=(measure.series,),
            signal=partial(grows, measure=measure),
            message=f"Sampler and trainer drift apart: {measure.text}, "
            "up from {usual:.2g} at the start. A change in entropy does not explain this.",
            min_rows=FEWEST_ROWS,
        )
        for measure in MEASURES
    ),
    suppressed_by=("MSK001", "SMP001", "STP001"),
    # In a policy that breaks, unlikely tokens are sampled, and on those the engines differ most.
    suppressed_by_earlier=("LLD001", "LLD002", "LLD003", "ISD001", "ENT001", "RWD001"),
    meaning="The log-probs of sampler and trainer differ several times as much as at the start of the run.",
    impact="Rollouts no longer come from the policy that is trained, so the importance ratios are wrong. In "
    "published collapses the mismatch grows first, and the reward falls soon after.",
    remedy=advise(
        "Go back to a checkpoint from before the mismatch grew, and lower the [learning rate]. Use the [importance "
        "weights of the sampler]. For a mixture of experts, use the sampler's routing in the trainer (routing "
        "replay). Check that the sampler gets the new weights after every update.",
        instead={"holdfast": OUR_BUG},
    ),
    limitations="This rule judges only growth. SMP001 judges the level at the start of a run. Log-prob differences "
    "below 0.03 nats are ignored, and so is growth in proportion to entropy.",
)
