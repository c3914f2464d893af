"""A diagnosis: as values, as JSON (`--json`, `findings.json`) and in a headline."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from holdfast.base.files import write_whole
from holdfast.base.run_folder import FINDINGS
from holdfast.diagnose.log import Log
from holdfast.diagnose.log.collapse import Course
from holdfast.diagnose.log.smoothed import WINDOW

Level = Literal["finding", "note"]
"""A finding is a problem. A note is worth knowing, but no reason to act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem that the log shows, or one thing worth knowing."""

    code: str
    """Stable, such as `LLD003`; docs/reference/codes.md has a section on each."""
    step: int
    """The step at which it began, as far as the log shows it."""
    certain: int
    """The step from which on the log shows it beyond doubt. A monitor reports it at this step."""
    lead: int | None = None
    """Steps from `certain` until the reward had lost half (negative: that was earlier); None if it never did."""
    summary: str
    """What happened, with its numbers."""
    evidence: Mapping[str, float]
    """Values at `step`, by the name of the series or of what was computed from it."""
    series: tuple[str, ...]
    """The series to look at. A chart of one of them marks the finding."""
    remedy: str
    """What to change, in settings of the host."""
    level: Level = "finding"
    by_verdict: bool = False
    """Whether it is a finding because the reward does not rise. The newest row decides that, so no guard acts on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a run does not learn."""

    code: str
    summary: str
    remedy: str


Word = Literal["learns", "flat", "fell", "broken", "cannot tell"]
"""`broken`: nothing can be learned from what the log shows. `cannot tell`: few rows, much noise, or no reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a run."""

    word: Word
    text: str
    """What the reward did, in a sentence or two."""
    reasons: tuple[Reason, ...] = ()
    """Why a run that is flat or broken does not learn, the likeliest first."""
    change: str = ""
    """The one thing to change first, in settings of the host; empty where nothing has to."""
    log: str = ""
    """What to log, where the log cannot tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotTell:
    """A code that could not be checked because the log lacks series."""

    code: str
    missing: tuple[str, ...]
    """Names of the missing series."""
    remedy: str
    """The setting of the host, or the observer of holdfast, that logs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFinding:
    """Something that many rollouts show in their texts."""

    kind: str
    """The name of the page's filter, a key of `texts.KINDS` or a name of its own."""
    step: int
    """The first step at which it is as frequent as in a finding."""
    summary: str
    example: str
    """A part of a rollout of that step, or near it."""
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that the rules find in a log."""

    findings: tuple[Finding, ...]
    """Problems, in the order in which they became certain; causes first."""
    verdict: Verdict = Verdict(word="cannot tell", text="The log has no rows.")
    notes: tuple[Finding, ...] = ()
    """What is worth knowing but not a problem, ordered by step: findings of level "note"."""
    cannot_tell: tuple[CannotTell, ...] = ()
    what_to_log: str = ""
    """One sentence: what to log next time, to check more codes; empty if this log has it all."""
    course: Course = field(default_factory=Course)
    """Whether the reward fell, and whether it came back (`diagnose.log.collapse`). Leads are counted to the step at
    which half of it was lost."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Numbers for the headline: `rows`, `rewards` (how many), `first step`, `last reward` and so on."""
    texts: tuple[TextFinding, ...] = ()
    """What the texts of rollouts show, where they are at hand. They are notes: no code, no exit code."""

    @property
    def is_ok(self) -> bool:
        """Whether nothing is found, and the verdict is neither flat nor broken nor fell. The exit code follows it."""
        return not self.findings and self.verdict.word in ("learns", "cannot tell")


def write_findings(folder: Path, log: Log, diagnosis: Diagnosis) -> None:
    """Write `findings.json` into a folder, whole."""
    write_whole(folder / FINDINGS, to_text(as_json(log, diagnosis)))


def as_json(log: Log, diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain values: docs/reference/diagnose.md explains the keys. Numbers that are not finite are null."""
    course = diagnosis.course
    return {
        "format": log.format,
        "host": log.host,
        "name": log.name,
        "steps": log.last_step,
        "verdict": asdict(diagnosis.verdict) | {"reasons": [asdict(one) for one in diagnosis.verdict.reasons]},
        "ok": diagnosis.is_ok,
        "fall_began": None if course.fall is None else course.fall.began,
        "fall_step": None if course.fall is None else course.fall.step,
        "peak_step": None if course.fall is None else course.fall.peak_step,
        "half_step": None if course.half is None else course.half.step,
        "back_step": course.back_step,
        "facts": _numbers(diagnosis.facts),
        "findings": [finding_json(finding) for finding in (*diagnosis.findings, *diagnosis.notes)],
        "cannot_tell": [asdict(one) | {"missing": list(one.missing)} for one in diagnosis.cannot_tell],
        "texts": [asdict(one) for one in diagnosis.texts],
        "what_to_log": diagnosis.what_to_log,
        "notes": list(log.notes),
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """Plain values of one finding or note."""
    return asdict(finding) | {"evidence": _numbers(finding.evidence), "series": list(finding.series)}


def to_text(value: Any) -> str:
    """The JSON text of one diagnosis, or of a list of them."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def headline(log: Log, diagnosis: Diagnosis) -> str:
    """The verdict, and the course of the reward in numbers."""
    verdict = diagnosis.verdict
    said = f"{verdict.word.capitalize()}. {verdict.text}"
    unsaid = verdict.log if verdict.word == "cannot tell" else ""
    return " ".join(filter(None, [said, unsaid, numbers_of(diagnosis.facts)]))


def numbers_of(facts: Mapping[str, float], interval: str = "") -> str:
    """The reward at first, at best and at last, in a sentence; empty of fewer than two. `interval` stands behind the
    last."""
    if "peak reward" not in facts or facts["rewards"] == 1:
        return ""
    shown = "single rows" if facts["rewards"] < 2 * WINDOW else f"means of {facts['rows in a mean']:.0f} rows"
    numbers = f"Reward {facts['first reward']:.3g} in the first rows, {facts['peak reward']:.3g} at best"
    return f"{numbers}, {facts['last reward']:.3g}{interval} in the last ({shown}; {span_of(facts)})."


def judged(word: str, began: int | None, back: int | None) -> str:
    """The verdict in a cell of a table: the word, where the reward fell, and where it was back.

    >>> judged("learns", None, None), judged("fell", 40, None), judged("learns", 40, 60)
    ('learns', 'fell at 40', 'learns, fell at 40, recovered at 60')
    """
    if began is None:
        return word
    fell = f"fell at {began:,}" + ("" if back is None else f", recovered at {back:,}")
    return fell if word == "fell" else f"{word}, {fell}"


def span_of(facts: Mapping[str, float]) -> str:
    """The rows and steps of a log, in words."""
    rows = int(facts["rows"])
    if rows == 1:
        return f"1 row, step {facts['last step']:.0f}"
    return f"{rows} rows, steps {facts['first step']:.0f} to {facts['last step']:.0f}"


def skipped(checks: int) -> str:
    """How many checks were skipped, in a sentence.

    >>> skipped(1)
    '1 check was skipped: the log lacks the metrics it needs.'
    """
    said, need = ("check was", "it needs") if checks == 1 else ("checks were", "they need")
    return f"{checks} {said} skipped: the log lacks the metrics {need}."


def too_short(diagnosis: Diagnosis) -> bool:
    """Whether the log has too few rows to judge the course of the reward. Rules that need only single rows still
    apply."""
    return diagnosis.facts.get("rows", 0) < WINDOW


def when_of(finding: Finding) -> str:
    """From which step on a finding is certain, if that is later than its step, and its lead, in words.

    >>> code = {"code": "X", "summary": "", "evidence": {}, "series": (), "remedy": ""}
    >>> when_of(Finding(step=5, certain=9, lead=1, **code)), when_of(Finding(step=9, certain=9, **code))
    ('certain from step 9 on, 1 step before half of the reward was lost', '')
    """
    certain = f"certain from step {finding.certain} on" if finding.certain != finding.step else ""
    return ", ".join(filter(None, [certain, lead_of(finding.lead)]))


def lead_of(lead: int | None) -> str:
    """`lead` in words; empty without one.

    >>> [lead_of(lead) for lead in (12, 1, 0, -3)]
    ['12 steps before half of the reward was lost', '1 step before half of the reward was lost', \
'at the step at which half of the reward was lost', '3 steps after half of the reward was lost']
    """
    if lead is None:
        return ""
    if lead == 0:
        return "at the step at which half of the reward was lost"
    steps = f"{abs(lead)} step{'s' if abs(lead) > 1 else ''}"
    return f"{steps} {'before' if lead > 0 else 'after'} half of the reward was lost"
