"""A diagnosis: as values, as JSON (`--json`, `findings.json`) and in a headline."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from holdfast.base.collapse import LONG_WINDOW, TREND_ERRORS, WINDOW, Course
from holdfast.base.files import write_whole
from holdfast.base.glossary import METRICS
from holdfast.base.run_folder import FINDINGS
from holdfast.diagnose.log import Log
from holdfast.diagnose.readers.names import CUMULATIVE
from holdfast.diagnose.readers.text import listed
from holdfast.diagnose.texts import TextFinding

Level = Literal["finding", "note"]
"""A finding is a problem. A note is worth knowing, but no reason to act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem that the log shows, or one thing worth knowing."""

    code: str
    """Stable, such as `LLD003`; docs/reference/codes.md has a section on each."""
    step: int
    """The first step at which the log shows it. A monitor reports it at this step."""
    lead: int | None = None
    """Steps from `step` until the reward had lost half (negative: that was earlier); None if it never did."""
    summary: str
    """What happened, with its numbers."""
    evidence: Mapping[str, float]
    """Values at `step`, by the name of the series or of what was computed from it."""
    series: tuple[str, ...]
    """The series to look at. A chart of one of them marks the finding."""
    remedy: str
    """What to change, in settings of the host."""
    level: Level = "finding"


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotTell:
    """A code that could not be checked because the log lacks series."""

    code: str
    missing: tuple[str, ...]
    """Names of the missing series."""
    remedy: str
    """The setting of the host, or the observer of holdfast, that logs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that the rules find in a log."""

    findings: tuple[Finding, ...]
    """Problems, ordered by step."""
    notes: tuple[Finding, ...] = ()
    """What is worth knowing but not a problem, ordered by step: findings of level "note"."""
    cannot_tell: tuple[CannotTell, ...] = ()
    what_to_log: str = ""
    """One sentence: what to log next time, to check more codes; empty if this log has it all."""
    course: Course = field(default_factory=Course)
    """Whether the reward fell, and whether it came back (`holdfast.base.collapse`). Leads are counted to the step at
    which half of it was lost."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Numbers for the headline: `rows`, `rewards` (how many), `first step`, `last reward` and so on."""
    texts: tuple[TextFinding, ...] = ()
    """What the texts of rollouts show, where they are at hand. They are notes: no code, no exit code."""


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


MORE_ROWS = "The log is too short to judge the reward: a fall shows in 10 rows or more, a slow decay in 20 or more."


def headline(log: Log, diagnosis: Diagnosis) -> str:
    """The course of the reward, in one or two sentences."""
    facts = diagnosis.facts
    rows = int(facts.get("rows", 0))
    if not rows:
        return "The log has no rows."
    span = f"{rows} rows, steps {facts['first step']:.0f} to {facts['last step']:.0f}"
    if rows == 1:
        span = f"1 row, step {facts['last step']:.0f}"
    if "peak reward" not in facts:
        others = [name for name in log.series if name not in METRICS and name not in CUMULATIVE]
        more = (
            f" If a series is the reward, name it: --name reward=SERIES. There are {listed(others)}." if others else ""
        )
        return f"No reward in this log ({span}).{more}"
    if facts["rewards"] == 1:
        return f"Reward {facts['last reward']:.3g} ({span}). {MORE_ROWS}"
    shown = "single rows" if facts["rewards"] < 2 * WINDOW else f"means of {WINDOW} rows"
    course = f"Reward {facts['first reward']:.3g} in the first rows, {facts['peak reward']:.3g} at best"
    course += f", {facts['last reward']:.3g} in the last ({shown}; {span})."
    return f"{course} {MORE_ROWS if too_short(diagnosis) else _what_became(diagnosis)}"


def _what_became(diagnosis: Diagnosis) -> str:
    """The verdict on the course of the reward, in a sentence or two."""
    facts, course = diagnosis.facts, diagnosis.course
    if (fall := course.fall) is not None:
        half, back = course.half, course.back_step
        fell = f"It fell: {fall.lost:.0%} of its {fall.measure} (step {fall.peak_step}) was lost by step {fall.step}"
        fell += "" if half is None else f", half by step {half.step}"
        return f"{fell}." + ("" if back is None else f" It was back near its peak at step {back}.")
    if facts["down at the end"]:
        lost = facts["lost at the end"]
        return f"It lost {lost:.0%} of its best in the last rows. More rows will show whether it comes back."
    if course.word == "dropped":
        return f"It has dropped: {facts['lost at the end']:.0%} below its best at the end."
    if course.word in ("rose", "declined"):
        trend = f"by {abs(course.change):.2g} ± {course.error:.2g} over the run"
        is_trend = abs(course.change) > TREND_ERRORS * course.error
        return f"It {course.word} {trend}." if is_trend else "It rose: the last ten rows are above the first ten."
    visible = TREND_ERRORS * course.error
    if course.word == "flat":
        return f"It has neither risen nor fallen. A change of {visible:.2g} or more over the run would show."
    if facts["rewards"] < LONG_WINDOW:
        return "Too few rows to tell yet whether it rises or falls."
    return (
        f"Cannot tell yet: it changed by {course.change:+.2g} ± {course.error:.2g} over the run, which may be noise. A "
        f"change of {visible:.2g} or more would show."
    )


def too_short(diagnosis: Diagnosis) -> bool:
    """Whether the log has too few rows to judge the course of the reward. Rules that need only single rows still
    apply."""
    return diagnosis.facts.get("rows", 0) < WINDOW


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
