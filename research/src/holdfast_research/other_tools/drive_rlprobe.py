"""Run rlprobe on logs: `RLPROBE_PYTHON drive_rlprobe.py CASES.jsonl ALARMS.json` (`feeding` has the formats).

It is what `rlprobe doctor RUN` computes, on the recording that the package's callback for TRL writes, and for mapped
names on one that `Recorder.log_step` writes. No log has the sampled completions, which no rule needs. Findings are
shown worst first.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # where the Python of the tool finds it, too
feeding: Any = importlib.import_module("feeding")
Alarms = list[tuple[str, str, int]]

QUIET = {"capture_env": False, "install_handlers": False}
"""Options of the recorder that no rule sees: no description of this machine, no handlers of signals."""


def diagnosed(run: Path) -> Alarms:
    """The findings of a recording."""
    doctor: Any = importlib.import_module("rlprobe.doctor")
    return [(finding.signature_id, finding.severity, place) for place, finding in enumerate(doctor.diagnose(run))]


def as_logged(rows: list[dict[str, Any]], folder: Path) -> Alarms:
    """The findings after the callback recorded a run."""
    trl: Any = importlib.import_module("rlprobe.integrations.trl")
    callback = trl.RlprobeCallback(folder / "run", **QUIET)
    arguments, state = SimpleNamespace(world_size=1, process_index=0), SimpleNamespace(global_step=0)
    callback.on_train_begin(arguments, state, None)
    for row in rows:
        state.global_step, logs = feeding.split(row)
        callback.on_log(arguments, state, None, logs=logs)
    callback.on_train_end(arguments, state, None)
    return diagnosed(folder / "run")


def as_mapped(rows: list[dict[str, Any]], folder: Path) -> Alarms:
    """The findings on what a loop of one's own records."""
    recorder: Any = importlib.import_module("rlprobe.recorder")
    with recorder.Recorder(folder / "run", algorithm="grpo", **QUIET) as recording:
        for row in rows:
            step, metrics = feeding.split(row)
            recording.log_step(step, **metrics)
    return diagnosed(folder / "run")


if __name__ == "__main__":
    feeding.stand_in_for_transformers()
    feeding.main("rlprobe", as_logged, as_mapped)
