"""Causes of the single-turn runs: which codes are right, and whether a stock log can tell.

All of it was written before any held-out run was made. Whether a fault acted was decided by the rewards, truncation and
contrast of every rollout batch, never by what the rules say; a run whose fault did nothing counts as healthy.
"""

from __future__ import annotations

from dataclasses import dataclass

UNPLANNED = "unplanned-fall"
"""The cause of a run that was planned healthy and lost half of its reward. It counts as neither."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What a fault leads to."""

    right: frozenset[str]
    """The codes that a user would want to hear first."""
    stock: bool = True
    """Whether a log without the observer's series can tell it."""


def _cause(codes: str, *, stock: bool = True) -> Cause:
    return Cause(frozenset(codes.split()), stock)


CAUSES = {
    # cause: right codes; behind it, what made a fault count as having acted, where it is not certain
    "step-too-large": _cause("STP001 GRD001"),  # a third of the reward's range was lost
    "kl-exploded": _cause("KLD001 STP001 GRD001"),  # the same
    "non-finite": _cause("GRD002"),
    "no-contrast": _cause("GRP001"),
    "broken-reward": _cause("GRP001"),  # nobody learns from it, and the policy did nothing wrong
    "hacking": _cause("RWD003"),  # the first reward function lost a quarter while the reward rose
    "truncation": _cause("TRN001"),  # 30 % of the last rollouts were truncated
    "sampler-mismatch": _cause("SMP001 SMP002", stock=False),  # an engine's log-probs tell: `can_tell`
    "masked-leak": _cause("MSK001", stock=False),
    "cut-gradient": _cause("GRD003"),
    "entropy-surge": _cause("ENT001 ENT003"),  # a quarter of the reward's range was lost
    "entropy-exhausted": _cause("ENT002"),  # groups ceased to differ before the task was solved
    "noise-policy": _cause("ENT003"),
}
