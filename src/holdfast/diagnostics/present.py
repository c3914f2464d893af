"""A diagnosis as JSON, and in a headline: what `--json` prints and `findings.json` holds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.collapse import FEWEST
from holdfast.diagnostics.finding import Diagnosis
from holdfast.diagnostics.log import Log
from holdfast.files import write_whole
from holdfast.run_folder import FINDINGS


def write_findings(folder: Path, log: Log, diagnosis: Diagnosis) -> None:
    """Write `findings.json` into a folder, whole."""
    write_whole(folder / FINDINGS, to_text(as_json(log, diagnosis)))


def as_json(log: Log, diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain values: docs/diagnose.md explains the keys. Numbers that are not finite are null."""
    return {
        "format": log.format,
        "host": log.host,
        "name": log.name,
        "steps": int(log.steps[-1]) if len(log.steps) else 0,
        "fall_step": None if diagnosis.fall is None else diagnosis.fall.step,
        "peak_step": None if diagnosis.halved is None else diagnosis.halved.peak_step,
        "half_step": None if diagnosis.halved is None else diagnosis.halved.step,
        "facts": _numbers(diagnosis.facts),
        "findings": [
            {
                "code": finding.code,
                "step": finding.step,
                "lead": finding.lead,
                "summary": finding.summary,
                "evidence": _numbers(finding.evidence),
                "series": list(finding.series),
                "remedy": finding.remedy,
            }
            for finding in diagnosis.findings
        ],
        "cannot_tell": [
            {"code": open_.code, "missing": list(open_.missing), "remedy": open_.remedy}
            for open_ in diagnosis.cannot_tell
        ],
        "notes": list(log.notes),
    }


def to_text(value: Any) -> str:
    """The JSON text of one diagnosis, or of a list of them."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def headline(log: Log, diagnosis: Diagnosis) -> str:
    """How the reward went, in a sentence or two."""
    facts = diagnosis.facts
    rows = int(facts.get("rows", 0))
    if not rows:
        return "The log has no rows."
    span = f"{rows} rows, steps {facts['first step']:.0f} to {facts['last step']:.0f}"
    if "peak reward" not in facts:
        return f"No reward in this log ({span})."
    went = f"Reward {facts['first reward']:.3g} at first, {facts['peak reward']:.3g} at best"
    went += f", {facts['last reward']:.3g} at the end ({span})."
    if too_short(diagnosis):
        return f"{went} Too few rows to judge."
    if facts["rewards"] < FEWEST:
        return f"{went} Too few rewards to judge."
    fall, half = diagnosis.fall, diagnosis.halved
    if fall is None:
        return f"{went} It did not fall."
    fell = f"{went} It fell: {fall.lost:.0%} of its {fall.measure} (step {fall.peak_step}) was lost by step {fall.step}"
    return f"{fell}." if half is None else f"{fell}, half by step {half.step}."


def too_short(diagnosis: Diagnosis) -> bool:
    """Whether the log has fewer rows than it takes to say that nothing is wrong."""
    return diagnosis.facts.get("rows", 0) < FEWEST


def lead_of(lead: int | None) -> str:
    """`lead` in words; empty without one.

    >>> [lead_of(lead) for lead in (12, 1, 0, -3)]
    ['12 steps before half of the reward was lost', '1 step before half of the reward was lost', \
'when half of the reward was lost', '3 steps after half of the reward was lost']
    """
    if lead is None:
        return ""
    if lead == 0:
        return "when half of the reward was lost"
    steps = f"{abs(lead)} step{'s' if abs(lead) > 1 else ''}"
    return f"{steps} {'before' if lead > 0 else 'after'} half of the reward was lost"
