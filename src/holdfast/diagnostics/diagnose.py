"""A log's diagnosis: what the rules find, what they cannot tell, and how the reward went."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.collapse import WINDOW, fell, halved
from holdfast.diagnostics.causal import has, reward_curve
from holdfast.diagnostics.codes import CODES
from holdfast.diagnostics.finding import CannotTell, Diagnosis, Finding
from holdfast.diagnostics.log import Log
from holdfast.diagnostics.observe import best_set, remedy_for
from holdfast.diagnostics.rules import RULES
from holdfast.diagnostics.rules.rule import Hit, Rule
from holdfast.diagnostics.texts import TEXTS

ORDER = {code: place for place, code in enumerate(CODES)}
DECAYS = ("LLD001", "LLD002", "LLD003")
SLOW = (*DECAYS, "ISD001", "ENT001")
"""What a policy that decays slowly shows: a jump after it is its end, not another disease."""


def diagnose(log: Log) -> Diagnosis:
    """Everything a log says.

    Findings are those of a monitor that looked at every step: each depends on the log up to its step alone. Leads,
    facts and what cannot be told may change as a log grows.
    """
    curve = reward_curve(log)
    half = None if curve is None else halved(curve)
    half_step = None if half is None else half.step
    return Diagnosis(
        findings=findings_of(log, half_step=half_step),
        cannot_tell=cannot_tell(log),
        fall=None if curve is None else fell(curve),
        peak_step=None if half is None else half.peak_step,
        half_step=half_step,
        facts=facts_of(log),
    )


def findings_of(log: Log, *, half_step: int | None = None) -> tuple[Finding, ...]:
    """By first step; at equal steps causes before symptoms. Leads are counted to `half_step`."""
    return as_findings(log, {rule.code: hit for rule in RULES if (hit := rule.on(log)) is not None}, half_step)


def as_findings(log: Log, hits: Mapping[str, Hit], half_step: int | None) -> tuple[Finding, ...]:
    """What is told of some hits."""
    told = settle(hits)
    return tuple(
        Finding(
            code=code,
            step=hit.step,
            lead=None if half_step is None else half_step - hit.step,
            summary=hit.summary,
            evidence=hit.evidence,
            series=hit.series,
            remedy=(hit.remedy or TEXTS[code].change)[log.host],
        )
        for code, hit in sorted(told.items(), key=lambda item: (item[1].step, ORDER[item[0]]))
    )


def settle(hits: Mapping[str, Hit]) -> dict[str, Hit]:
    """One disease, one code: a slow decay and a step too large exclude each other, by which came first; and a decay is
    told as it gets worse, not again in its milder words."""
    told = dict(hits)
    leak, gap = told.get("MSK001"), told.get("SMP001")
    if leak is not None and gap is not None and leak.step <= gap.step:
        del told["SMP001"]  # the sampler has no log-probs of what it did not sample
    jump = told.get("STP001")
    if jump is not None and "TRN001" in told and told["TRN001"].step <= jump.step:
        del told["STP001"]  # right rollouts are short ones then, and sink because long ones are pulled up
    elif jump is not None and any(told[code].step < jump.step for code in SLOW if code in told):
        del told["STP001"]
    elif jump is not None:
        told = {code: hit for code, hit in told.items() if code not in (*DECAYS, "LLD004")}
    worst: int | None = None
    for code in reversed(DECAYS):
        if code in told:
            if worst is not None and told[code].step >= worst:
                del told[code]
            else:
                worst = told[code].step
    return told


def cannot_tell(log: Log) -> tuple[CannotTell, ...]:
    """The codes whose series are missing."""
    return tuple(
        CannotTell(code=rule.code, missing=missing, remedy=remedy_for(log, missing))
        for rule in sorted(RULES, key=lambda rule: ORDER[rule.code])
        if rule.asked(log) and (missing := missing_of(log, rule))
    )


def missing_of(log: Log, rule: Rule) -> tuple[str, ...]:
    """What the log lacks to answer a rule's question; nothing when one set of its series is there."""
    if any(has(log, *names) for names in rule.needs):
        return ()
    names, _ = best_set(log.host, rule.needs)
    return tuple(name for name in names if not has(log, name))


def facts_of(log: Log) -> dict[str, float]:
    """Numbers for a headline."""
    facts: dict[str, float] = {"rows": float(len(log.steps))}
    if len(log.steps):
        facts |= {"first step": float(log.steps[0]), "last step": float(log.steps[-1])}
    curve = reward_curve(log)
    if curve is not None:
        means = curve.short.means
        facts["first reward"] = float(means[min(WINDOW, len(means)) - 1])
        facts["peak reward"] = float(means.max())
        facts["lowest reward"] = float(curve.rewards.min())
        facts["last reward"] = float(means[-1])
    return facts
