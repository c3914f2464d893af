"""Run rldk on logs: `RLDK_PYTHON drive_rldk.py CASES.jsonl ALARMS.json` (`feeding` has the formats).

It is what `rldk monitor --once EVENTS --rules grpo_safe` computes, on the events that the package's own callback for
TRL writes of each row, and on events with mapped names. The place of an alert is its step. The output also has for each
name how many events `--regex trl` finds in the rows as TRL prints them (`printed`).
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # where the Python of the tool finds it, too
feeding: Any = importlib.import_module("feeding")
Alarms = list[tuple[str, str, int]]
RULES = "grpo_safe"
DAY = "2026-01-01T00:00:00Z"


def monitored(events: Path) -> Alarms:
    """The alarms of a file of events."""
    monitoring: Any = importlib.import_module("rldk.monitor.engine")
    monitor = monitoring.MonitorEngine(monitoring.load_rules(RULES), action_executor=monitoring.ActionDispatcher())
    raised = [alert for event in monitoring.read_events_once(events) for alert in monitor.process_event(event)]
    return [(alert.rule_id, alert.action, alert.event.step) for alert in raised]


def as_callback(rows: list[dict[str, Any]], folder: Path) -> Alarms:
    """The alarms on what `EventWriterCallback` writes."""
    trl: Any = importlib.import_module("rldk.integrations.trl")
    events = folder / "written.jsonl"
    callback = trl.EventWriterCallback(events)
    callback.on_train_begin(SimpleNamespace(run_name="run"), None, None)
    for row in rows:
        step, logs = feeding.split(row)
        callback.on_log(None, SimpleNamespace(global_step=step), None, logs=logs)
    callback.on_train_end(None, None, None)
    return monitored(events)


def as_file(rows: list[dict[str, Any]], folder: Path) -> Alarms:
    """The alarms on one event for each value."""
    lines = [
        {"time": DAY, "step": step, "name": name, "value": value}
        for step, metrics in map(feeding.split, rows)
        for name, value in metrics.items()
        if math.isfinite(value)
    ]
    events = folder / "mapped.jsonl"
    events.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return monitored(events)


def printed(rows: list[dict[str, Any]], folder: Path) -> int:
    """How many values the monitor reads of the rows as a trainer prints them."""
    monitoring: Any = importlib.import_module("rldk.monitor.engine")
    text = folder / "printed.log"
    text.write_text("".join(f"{feeding.split(row)[1]}\n" for row in rows), encoding="utf-8")
    return len(monitoring.read_events_once(text, regex="trl"))


if __name__ == "__main__":
    feeding.main("rldk", as_callback, as_file, printed=printed)
