"""ENT003: the policy samples noise.

Meaning: Entropy is far too high for text: the policy chooses each token among hundreds of likely ones.

Impact: Such rollouts are noise, and their rewards teach nothing. If entropy is this high from the first row on, the
model did not load as intended: a wrong checkpoint, a wrong chat template, or broken weights.

Limitations: The threshold is 5 nats per token, in two rows or in the first one. A model with a large vocabulary that is
trained from scratch starts above it. The rule does not apply if the trainer sums entropy over tokens.
"""

from __future__ import annotations

import numpy as np

from holdfast.diagnose.log.trailing import Values, held
from holdfast.diagnose.rules._parts import ENTROPY
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal


def is_noise(rows: Rows, entropy: Values) -> Signal:
    """Entropy is beyond that of any text."""
    high = entropy > NOISE_NATS
    where = held(high, NOISE_ROWS) | (high & (np.arange(len(high)) == 0))
    tokens = np.exp(np.clip(entropy, 0.0, 20.0))
    return Signal(where, words=lambda: {"tokens": tokens}, normal=entropy < SANE_NATS)


NOISE_NATS = 5.0
"""Nats per token: a choice among 148 equally likely tokens, at every token. Language models that are prompted as they
were trained begin between 0.05 and 1.5, base models below 3. A small model that knows nothing has the logarithm of its
vocabulary, such as 4.2 for 64 symbols, and may learn all the same."""
NOISE_ROWS = 2
"""Consecutive rows. The first row alone is enough, because it comes before any update that could have caused it."""
SANE_NATS = 3.0


RULE = Rule(
    title="policy samples noise",
    kind="symptom",
    checks=(
        Check(
            series=(ENTROPY,),
            signal=is_noise,
            message="The policy samples noise: its entropy of {entropy/mean:.2g} nats is as high as in a random "
            "choice among {tokens:.0f} tokens.",
        ),
    ),
    suppressed_by_earlier=("MSK001", "SMP001", "STP001", "LLD003", "ISD001", "KLD001", "ENT001", "GRD002", "RWD001"),
    remedy=advise(
        "Read some [rollouts]. Check the checkpoint, its chat template, and that its weights load in `bf16` or full "
        "precision, not `fp16`.",
        instead={"holdfast": "Check `model.path` and `model.chat_template`, and read some [rollouts]."},
    ),
)
