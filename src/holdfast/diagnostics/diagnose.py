"""A log's diagnosis: what the rules find, what they cannot tell, and how the reward went."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.collapse import WINDOW, Curve, fell, halved
from holdfast.diagnostics.causal import has, reward_curve
from holdfast.diagnostics.finding import CannotTell, Diagnosis, Finding
from holdfast.diagnostics.log import Log
from holdfast.diagnostics.observe import best_set, remedy_for
from holdfast.diagnostics.rules import RULES
from holdfast.diagnostics.rules.rule import Hit, Rule, without_suppressed


def diagnose(log: Log) -> Diagnosis:
    """Everything a log shows.

    Findings are those of a monitor that looked at every step: each depends on the log up to its step alone. Leads,
    facts and what cannot be told may change as a log grows.
    """
    curve = reward_curve(log)
    half = None if curve is None else halved(curve)
    hits = {code: hit for code, rule in RULES.items() if (hit := rule.find(log)) is not None}
    return Diagnosis(
        findings=as_findings(log, hits, None if half is None else half.step),
        cannot_tell=cannot_tell(log),
        fall=None if curve is None else fell(curve),
        halved=half,
        facts=facts_of(log, curve),
    )


def as_findings(log: Log, hits: Mapping[str, Hit], half_step: int | None) -> tuple[Finding, ...]:
    """The findings of some hits by first step; at equal steps causes before symptoms. Leads count to `half_step`."""
    remaining, order = without_suppressed(hits, RULES), list(RULES)
    return tuple(
        Finding(
            code=code,
            step=hit.step,
            lead=None if half_step is None else half_step - hit.step,
            summary=hit.summary,
            evidence=hit.evidence,
            series=hit.series,
            remedy=(hit.remedy or RULES[code].remedy)[log.host],
        )
        for code, hit in sorted(remaining.items(), key=lambda item: (item[1].step, order.index(item[0])))
    )


def cannot_tell(log: Log) -> tuple[CannotTell, ...]:
    """The codes whose series are missing."""
    return tuple(
        CannotTell(code=code, missing=missing, remedy=remedy_for(log, missing))
        for code, rule in RULES.items()
        if rule.applies(log) and (missing := missing_of(log, rule))
    )


def missing_of(log: Log, rule: Rule) -> tuple[str, ...]:
    """What the log lacks to answer a rule's question; nothing when one set of its series is logged."""
    if any(has(log, *names) for names in rule.needs):
        return ()
    names, _ = best_set(log.host, rule.needs)
    return tuple(name for name in names if not has(log, name))


def facts_of(log: Log, curve: Curve | None) -> dict[str, float]:
    """Numbers for a headline."""
    facts: dict[str, float] = {"rows": float(len(log.steps))}
    if len(log.steps):
        facts |= {"first step": float(log.steps[0]), "last step": float(log.steps[-1])}
    if curve is not None:
        means = curve.short.means
        facts["rewards"] = float(len(means))
        facts["first reward"] = float(means[min(WINDOW, len(means)) - 1])
        facts["peak reward"] = float(means.max())
        facts["last reward"] = float(means[-1])
    return facts
