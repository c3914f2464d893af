"""The diagnosis of a log: findings, codes that could not be checked, and the course of the reward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from holdfast.diagnose.finding import CannotTell, Diagnosis, Finding
from holdfast.diagnose.log import Log, has, reward_curve
from holdfast.diagnose.log.batches import joined
from holdfast.diagnose.log.collapse import Course, Curve, course_of
from holdfast.diagnose.log.smoothed import WINDOW
from holdfast.diagnose.outlook import outlook
from holdfast.diagnose.rules import RULES
from holdfast.diagnose.rules.remedies import NOTHING
from holdfast.diagnose.rules.rule import KINDS, Hit, Rule, without_suppressed
from holdfast.diagnose.verdict import NOT_LEARNING, by_verdict, verdict_of, word_of
from holdfast.hosts import HOSTS


def diagnose(log: Log) -> Diagnosis:
    """Everything that a log shows.

    A finding depends only on the log up to its step, so a monitor finds the same. Leads, facts and undecided codes may
    change as the log grows.
    """
    batches = joined(log)
    curve = reward_curve(batches)
    course = Course() if curve is None else course_of(curve)
    found = hits_of(log, batches)
    hits = without_suppressed(found, RULES)
    word = word_of(batches, curve, course, hits)
    if word in NOT_LEARNING:
        hits = hits | revealed(found, hits)
    reported = as_findings(
        log, hits, None if course.half is None else course.half.step, by_verdict(batches, hits, course, word)
    )
    facts = facts_of(log, curve, course)
    return Diagnosis(
        verdict=verdict_of(batches, curve, course, reported, facts, hits, word),
        findings=tuple(finding for finding in reported if finding.level == "finding"),
        notes=tuple(finding for finding in reported if finding.level == "note"),
        cannot_tell=cannot_tell(log),
        what_to_log=what_to_log(log),
        course=course,
        facts=facts | outlook(batches, reported, learns=word == "learns"),
    )


def revealed(found: Mapping[str, Hit], hits: Mapping[str, Hit]) -> dict[str, Hit]:
    """Reasons of a run that does not learn which only what has passed hid. `hits` are those that nothing hides."""
    lasting = {code: hit for code, hit in found.items() if hit.level == "finding"}
    lasting |= {code: replace(hit, spans=()) for code, hit in found.items() if hit.level == "reason"}
    lasting = without_suppressed(lasting, RULES)
    return {code: replace(hit, level="reason") for code, hit in lasting.items() if code not in hits}


def hits_of(log: Log, batches: Log) -> dict[str, Hit]:
    """What each rule finds, before codes hide one another. `batches` is the log with a row for each rollout batch."""
    return {code: hit for code, rule in RULES.items() if (hit := rule.find(rule.rows(log, batches))) is not None}


def as_findings(
    log: Log, hits: Mapping[str, Hit], half_step: int | None = None, by_verdict: Sequence[str] = ()
) -> tuple[Finding, ...]:
    """Findings and notes of the hits that remain, in the order of `causes_first`. Leads count to `half_step`. The codes
    of `by_verdict` are findings whatever their level, after those that are so anyway."""
    findings: list[Finding] = []
    for code in [*(code for code in causes_first(log, hits) if code not in by_verdict), *by_verdict]:
        hit, rule = hits[code], RULES[code]
        before = [finding for finding in findings if finding.level == "finding"]
        chosen = hit.remedy or rule.remedy
        if rule.remedy_in is not None and (hit.remedy is not NOTHING or code in by_verdict):  # which has passed
            chosen = rule.remedy_in(log, hit, before)
        findings.append(
            Finding(
                code=code,
                step=hit.onset,
                certain=hit.step,
                lead=None if half_step is None else half_step - hit.step,
                summary=hit.summary,
                evidence=hit.evidence,
                series=hit.series,
                remedy=chosen.get(log.host, chosen["unknown"]),
                level="finding" if code in by_verdict or hit.level == "finding" else "note",
                by_verdict=code in by_verdict,
            )
        )
    return tuple(findings)


CLOSE_ROWS = 5
"""Rows within which two findings began together. Most series are judged by a mean of five rows, so a cause may show up
to five rows after what it causes."""


def causes_first(log: Log, hits: Mapping[str, Hit]) -> list[str]:
    """The codes by step. A cause that shows within five rows after a symptom comes before it."""
    order = list(RULES)
    result: list[str] = []
    for code in sorted(hits, key=lambda code: (hits[code].step, order.index(code))):
        at = len(result)
        while at and _is_caused_by(log, hits, result[at - 1], code):
            at -= 1
        result.insert(at, code)
    return result


def _is_caused_by(log: Log, hits: Mapping[str, Hit], code: str, other: str) -> bool:
    """Whether `other`, which shows later, is more of a cause than `code`, and shows soon enough."""
    rows = log.series["reward/mean"].steps if "reward/mean" in log.series else log.steps
    begun, later = (np.searchsorted(rows, hits[one].step) for one in (code, other))
    kinds = [KINDS.index(hits[one].kind or RULES[one].kind) for one in (code, other)]
    return bool(kinds[1] < kinds[0] and later - begun <= CLOSE_ROWS)


def cannot_tell(log: Log) -> tuple[CannotTell, ...]:
    """The codes that apply to the log but lack series."""
    return tuple(
        CannotTell(code=code, missing=missing, remedy=observed_without(log, missing) or how_to_log(log.host, missing))
        for code, rule in RULES.items()
        if rule.applies(log) and (missing := missing_of(log, rule))
    )


def missing_of(log: Log, rule: Rule) -> tuple[str, ...]:
    """The series that a rule lacks; empty if one of its sets of series is complete."""
    if any(has(log, *names) for names in rule.needs):
        return ()
    return tuple(name for name in best_set(log.host, rule.needs) if not has(log, name))


def facts_of(log: Log, curve: Curve | None, course: Course) -> dict[str, float]:
    """Numbers for a headline."""
    facts: dict[str, float] = {"rows": float(len(log.steps))}
    if len(log.steps):
        facts |= {"first step": float(log.steps[0]), "last step": float(log.steps[-1])}
    if curve is not None:
        brief = len(curve.rewards) < 2 * WINDOW  # the first five rows and the last would share some
        window = WINDOW if course.fall is None else course.fall.rows
        means = curve.rewards if brief else curve.of(window).means[window - 1 :]
        facts["rows in a mean"] = float(window)
        facts["rewards"] = float(len(curve.rewards))
        facts["first reward"] = float(means[0])
        facts["peak reward"] = float(means.max())
        facts["last reward"] = float(means[-1])
        facts["lost at the end"] = float(curve.short.lost[-1])
        facts["down at the end"] = float(curve.fallen[-1])
        facts["trend"], facts["error of the trend"] = course.change, course.error
    return facts


def what_to_log(log: Log) -> str:
    """The settings and the observer that let the next log decide more codes, in a sentence or two; empty if this log
    has them."""
    if log.host == "trl":
        gaps = np.diff(log.series["reward/mean"].steps) if "reward/mean" in log.series else np.empty(0)
        dense = log.settings.get("logging_steps") == 1 or (len(gaps) > 0 and bool((gaps == 1).all()))
        parts = []
        if log.format != "trl":
            parts.append("end with `trainer.save_state()`")
        if not has(log, "optimizer_steps_per_rollout"):
            observer = "`holdfast.adapters.trl.with_penalties(GRPOTrainer)`"
            parts.append(f"train with {observer}, which leaves the loss as it is")
        more = f"To check more codes, {' and '.join(parts)}." if parts else ""
        return more if dense else f"To see every step, set `logging_steps=1`. {more}".strip()
    if log.host == "verl":
        observed = any(name.startswith("drift/") for name in log.series)
        return "" if observed else f"To check more codes, train with {logged_by('verl', 'drift/')}."
    if log.host == "holdfast":
        return ""
    return "To check more codes, use holdfast's observers for TRL and verl (docs/guide/trl.md, docs/guide/verl.md)."


def logged_by(host: str, name: str) -> str | None:
    """What logs a series on this host; None if nothing does."""
    return next((how for start, how in HOSTS[host].logged_by.items() if name.startswith(start)), None)


def best_set(host: str, needs: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The first set of series that this host can log; the first one if it can log none."""
    return next((names for names in needs if all(logged_by(host, name) for name in names)), needs[0])


def observed_without(log: Log, missing: Iterable[str]) -> str | None:
    """Why a TRL log of `with_penalties` lacks series of correct rollouts; None for any other log or series."""
    absent = [name for name in missing if name.startswith(("likelihood/", "displacement/"))]
    if log.host != "trl" or not absent or not has(log, "optimizer_steps_per_rollout"):
        return None
    if not has(log, "likelihood/correct"):
        why = (
            "no rollout counted as correct. Pass `with_penalties(..., correct_above=X)`, where X is between the "
            "rewards of incorrect and correct rollouts"
        )
    else:
        why = "it did not measure displacement, which needs a second rollout batch and `displacement_every` above 0"
    return f"`with_penalties` was active, but {why}."


def how_to_log(host: str, names: Iterable[str]) -> str:
    """One sentence: which setting logs the series."""
    ways = list(dict.fromkeys(way for name in names if (way := logged_by(host, name)) is not None))
    if ways:
        return f"Logged by {'; '.join(ways)}."
    if not HOSTS[host].logged_by:
        return "holdfast's observers for TRL and verl log it (docs/guide/trl.md, docs/guide/verl.md)."
    return f"{host} cannot log it, but `holdfast train` does."
