"""The rules: what each code asks of a log. Every rule is a pure function of the log so far, and none looks ahead."""

from __future__ import annotations

from holdfast.diagnostics.rules import entropy, gradient, likelihood, retrieval, reward, setup
from holdfast.diagnostics.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    *likelihood.RULES,
    *entropy.RULES,
    *gradient.RULES,
    *reward.RULES,
    *setup.RULES,
    *retrieval.RULES,
)
