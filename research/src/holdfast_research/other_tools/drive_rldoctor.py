"""Run rldoctor on logs: `RLDOCTOR_PYTHON drive_rldoctor.py CASES.jsonl ALARMS.json` (`feeding` has the formats).

It is what `rl-doctor diagnose trainer_state.json` computes, and for mapped names `rl-doctor diagnose log.jsonl`. The
package also has a live callback, which runs the same checks every 25 rows from row 75 on: most logs here are shorter.

One check of rldoctor reports several problems that have different causes. `PROBLEMS` tells them apart by the words of
its summary, `gradient_pathology: spike`. They have one place. Findings are shown worst first.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # where the Python of the tool finds it, too
feeding: Any = importlib.import_module("feeding")
Alarms = list[tuple[str, str, int]]

PROBLEMS = {
    "gradient_pathology": ("non-finite", "exactly zero", "has fallen", "spike"),
    "length_pathology": ("truncated", "grew"),
    "clip_saturation": ("Lower-bound", "clipped", "discarded", "high side"),
    "kl_drift": ("pinned",),
    "reward_composition": ("carries", "constants"),
}


def diagnosed(path: Path) -> Alarms:
    """The problems found in a log."""
    doctor: Any = importlib.import_module("rl_doctor")
    raised = []
    for place, finding in enumerate(doctor.diagnose(doctor.load_run(str(path))).problems):
        words = [word for word in PROBLEMS.get(finding.detector, ()) if word in finding.summary]
        kinds = [f"{finding.detector}: {word}" for word in words] or [finding.detector]
        raised += [(kind, finding.severity.name, place) for kind in kinds]
    return raised


def as_logged(rows: list[dict[str, Any]], folder: Path) -> Alarms:
    """The problems in the state that a Trainer saves."""
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({"log_history": rows}), encoding="utf-8")
    return diagnosed(path)


def as_mapped(rows: list[dict[str, Any]], folder: Path) -> Alarms:
    """The problems in a file of rows."""
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return diagnosed(path)


if __name__ == "__main__":
    feeding.main("rldoctor", as_logged, as_mapped)
