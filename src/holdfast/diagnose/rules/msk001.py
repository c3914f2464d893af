"""MSK001: tokens in the loss that the policy did not sample (a mask leak).

Meaning: The loss includes tokens that the model did not sample, such as retrieved passages.

Impact: The policy is rewarded for text that the search engine wrote, and learns to write passages itself. Ratios and
entropy are computed on that text too, so they mean little. Training fails early.

Limitations: The rule is certain if the log has `loss/tokens` and `rollout/length`. Otherwise it infers: the mean
surprise (−log-prob) of sampled tokens equals the entropy, and text from elsewhere is more surprising. A sampler with
old weights looks the same. If the model has memorised the passages, the rule misses the fault. The logs of verl and of
plain TRL cannot show this fault.
"""

from __future__ import annotations

import numpy as np

from holdfast.diagnose.log.trailing import Values, noise
from holdfast.diagnose.rules._parts import CORRECT, ENTROPY, GAP, LENGTH, TRAINED
from holdfast.diagnose.rules._parts.sampler import BACK_ROWS, SURPRISE, TRAINED_TIMES
from holdfast.diagnose.rules.remedies import OUR_BUG, advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal


def trains_more_tokens(rows: Rows, trained: Values, sampled: Values) -> Signal:
    """The loss has more tokens than the model sampled."""
    more = trained - sampled
    where = (trained > TRAINED_TIMES * sampled) & (more > TRAINED_DEVIATIONS * noise(more, NOISE_ROWS))
    is_back = trained < (1 + TRAINED_TIMES) / 2 * sampled
    return Signal(where, normal=is_back)


NOISE_ROWS = 3
TRAINED_DEVIATIONS = 4.0
"""Standard deviations of the difference: the two series may come from different rollouts."""


def trains_foreign_tokens(rows: Rows, correct: Values, incorrect: Values, entropy: Values) -> Signal:
    """Tokens that a policy sampled surprise it by its entropy on average. Tokens it was given surprise it by more.

    Tokens of another sampler do too, but then the sampler's log-probs show it. For tokens that were given, the sampler
    has no log-probs, so the gap is as large as the surprise itself.
    """
    excess = -np.maximum(correct, incorrect) - entropy
    where = (excess > FOREIGN_NATS) & ~(rows.latest(GAP) < EXPLAINED_SHARE * excess)
    return Signal(where, lambda: {CORRECT: correct, ENTROPY: entropy}, normal=excess < FOREIGN_NATS / 2)


FOREIGN_NATS = 1.0
"""Nats per token: surprise of the policy at tokens in the loss, beyond its entropy. Foreign passages make 1.5 and more.
A sampler at another temperature or with old weights makes less, or shows in its gap."""
EXPLAINED_SHARE = 0.8
"""Share of that surprise. If the sampler's log-probs differ by less, they belong to the same tokens."""


RULE = Rule(
    title="observation tokens in the loss",
    kind="logged cause",
    checks=(
        Check(
            series=(TRAINED, LENGTH),
            signal=trains_more_tokens,
            message="The loss covers {loss/tokens:.3g} tokens per rollout, but the model sampled only "
            "{rollout/length:.3g}. The loss includes observations.",
            rows_running=2,
            rows_normal=BACK_ROWS,
        ),
        Check(
            series=SURPRISE,
            signal=trains_foreign_tokens,
            message="The tokens in the loss are too unlikely to be samples of this policy. They probably include "
            "observations.",
            rows_running=2,
            rows_normal=BACK_ROWS,
            better=((TRAINED, LENGTH),),
        ),
    ),
    remedy=advise(
        "Remove every token that the model did not sample from the loss.",
        instead={"holdfast": OUR_BUG},
        also={
            "trl": "Return `env_mask` from your `rollout_func`, with 0 for these tokens, as `SearchRollouts` does. "
            "Make sure that the trainer applies it (`tool_mask`).",
            "verl": "In your agent loop, set `response_mask` to 0 for observations, as "
            "`actor_rollout_ref.rollout.agent.default_agent_loop=holdfast_search` does.",
        },
    ),
)
