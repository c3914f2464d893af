"""Run rlwatch on logs: `RLWATCH_PYTHON drive_rlwatch.py CASES.jsonl ALARMS.json` (`feeding` has the formats).

It is the alerts that `rlwatch.attach` sends during a run: of rows that come through the package's callback for TRL, and
of mapped names through `log_step`. Repeats within the default cooldown are not sent, as in a real run. The
place of an alert is its step.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # where the Python of the tool finds it, too
feeding: Any = importlib.import_module("feeding")
Alarms = list[tuple[str, str, int]]


def attached(folder: Path) -> Any:
    """A monitor with the defaults, whose records go to the folder."""
    rlwatch: Any = importlib.import_module("rlwatch")
    return rlwatch.attach(framework="manual", storage={"log_dir": str(folder)})


def sent(alerts: Iterable[dict[str, Any]]) -> Alarms:
    """Kind and severity of the alerts."""
    return [(alert["detector"], alert["severity"], alert["step"]) for alert in alerts]


def as_logged(rows: list[dict[str, Any]], folder: Path) -> Alarms:
    """The alerts of a run with the callback."""
    monitor = attached(folder)
    callbacks: list[Any] = []
    monitor.attach_to_trainer(SimpleNamespace(add_callback=callbacks.append))
    for row in rows:
        step, logs = feeding.split(row)
        callbacks[0].on_log(None, SimpleNamespace(global_step=step), None, logs=logs)
    alerts = sent(monitor.store.get_alerts())
    monitor.stop()
    return alerts


def as_mapped(rows: list[dict[str, Any]], folder: Path) -> Alarms:
    """The alerts of a run that logs by hand."""
    monitor = attached(folder)
    for row in rows:
        step, metrics = feeding.split(row)
        monitor.log_step(step, **metrics)
    alerts = sent(monitor.store.get_alerts())
    monitor.stop()
    return alerts


if __name__ == "__main__":
    feeding.stand_in_for_transformers()
    feeding.main("rlwatch", as_logged, as_mapped)
