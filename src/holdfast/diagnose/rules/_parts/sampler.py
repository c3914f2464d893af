"""Log-probs of sampler and trainer, from the series that stock trainers log: what the rules SMP001, SMP002 and SMP003
share.

Two engines compute the probability of the same token with other kernels, so they never agree exactly. In bfloat16 the
mean absolute difference is 0.002 to 0.02 nats per token, and rises with entropy. Mixtures of experts and 8-bit rollouts
reach 0.05. Issue threads about broken set-ups report 0.2 to 0.4. A difference of probabilities is smaller than that of
their logarithms. A KL is about half the square of a difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.diagnose.log import Log
from holdfast.diagnose.log.trailing import Truths, Values, break_in, held
from holdfast.diagnose.rules._parts import CORRECT, ENTROPY, IMPORTANCE_RATIO, INCORRECT, LENGTH, TRAINED
from holdfast.diagnose.rules.rule import Rows, Signal

SURPRISE = (CORRECT, INCORRECT, ENTROPY)
"""What sampled tokens tell of the sampler where its log-probs are not logged."""
BACK_ROWS = 5
"""Rows at half of a threshold or below after which tokens or log-probs agree again."""


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


def grows(rows: Rows, gap: Values, *, grown: float, times: float) -> Signal:
    """The mismatch is several times what it was when the run began, and a higher entropy does not explain it."""
    usual = usual_before(gap)
    more_entropy = np.fmax(rows.latest(ENTROPY, times_usual), 1.0)
    high = gap > np.maximum(grown, times * usual * more_entropy)
    return Signal(
        held(high, ROWS),
        lambda: {rows.names[0]: gap, "usual": usual},
        normal=gap < grown,
        began=lambda row: break_in(gap, 0, row),
    )


ROWS = 2
"""Consecutive rows in which it has grown. A row is a mean of thousands of tokens, so two are enough."""
MIN_ROWS = 5
"""Rows before a mismatch can have grown."""


def usual_before(values: Values) -> Values:
    """[N]: the median of the first rows. The latest ones do not count.

    >>> usual_before(np.array([1.0, 3.0, 1.5, 9.0, 9.0])).tolist()
    [1.0, 1.0, 1.0, 2.0, 1.5]
    """
    medians = np.array([np.median(values[:count]) for count in range(1, min(len(values), USUAL_ROWS) + 1)])
    return medians[np.clip(np.arange(len(values)) - ROWS, 0, len(medians) - 1)]


USUAL_ROWS = 10
"""The usual mismatch is the median of the first rows, at most this many and without the latest `ROWS`."""


def times_usual(values: Values) -> Values:
    """[N]: a value as a multiple of its usual one."""
    return values / np.maximum(usual_before(values), 1e-9)


def samples_elsewhere(log: Log) -> bool:
    """Whether an engine of its own samples. In our trainer, and in TRL without vLLM, the trainer itself does."""
    known = (IMPORTANCE_RATIO, *(measure.series for measure in MEASURES))
    return log.host not in ("holdfast", "trl") or any(name in log.series for name in known)


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


def of_sampled(rows: Rows) -> Truths:
    """[N]: where the loss has no more tokens than were sampled, as far as the log shows: the sampler has no log-probs
    for others."""
    return ~(rows.latest(TRAINED) > TRAINED_TIMES * rows.latest(LENGTH))


TRAINED_TIMES = 1.2
"""Times the sampled tokens. One observation doubles a rollout; a dropped empty row or rounding makes 1 %."""
