"""Run rldk on logs: `RLDK_PYTHON drive_rldk.py CASES.jsonl ALARMS.json`.

It is what `rldk monitor --once EVENTS --rules grpo_safe` computes, on the events that the package's own callback for
TRL writes of each row, and on events with mapped names. A line of the input is `{"name", "logged", "mapped"}`, both
lists of rows with a `step`. The output has `version`, and under `alarms` for each name and way of feeding a list of
[rule, its action]; and for each name how many events `--regex trl` finds in the rows as TRL prints them (`printed`).
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Row = dict[str, Any]
Alarms = list[tuple[str, str]]
RULES = "grpo_safe"
DAY = "2026-01-01T00:00:00Z"


def monitored(events: Path) -> Alarms:
    """The alarms of a file of events."""
    monitoring: Any = importlib.import_module("rldk.monitor.engine")
    monitor = monitoring.MonitorEngine(monitoring.load_rules(RULES), action_executor=monitoring.ActionDispatcher())
    raised = [alert for event in monitoring.read_events_once(events) for alert in monitor.process_event(event)]
    return sorted({(alert.rule_id, alert.action) for alert in raised})


def as_callback(rows: list[Row], events: Path) -> Alarms:
    """The alarms on what `EventWriterCallback` writes."""
    trl: Any = importlib.import_module("rldk.integrations.trl")
    callback = trl.EventWriterCallback(events)
    callback.on_train_begin(SimpleNamespace(run_name="run"), None, None)
    for row in rows:
        logs = {k: v for k, v in row.items() if k != "step"}
        callback.on_log(None, SimpleNamespace(global_step=int(row["step"])), None, logs=logs)
    callback.on_train_end(None, None, None)
    return monitored(events)


def as_file(rows: list[Row], events: Path) -> Alarms:
    """The alarms on one event for each value."""
    lines = [
        {"time": DAY, "step": row["step"], "name": name, "value": value}
        for row in rows
        for name, value in row.items()
        if name != "step" and math.isfinite(value)
    ]
    events.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return monitored(events)


def printed(rows: list[Row], text: Path) -> int:
    """How many values the monitor reads of the rows as a trainer prints them."""
    monitoring: Any = importlib.import_module("rldk.monitor.engine")
    text.write_text("".join(f"{ {k: v for k, v in row.items() if k != 'step'} }\n" for row in rows), encoding="utf-8")
    return len(monitoring.read_events_once(text, regex="trl"))


def main(cases: str, result: str) -> None:
    """Both ways of feeding, for every case."""
    logging.disable(logging.WARNING)
    alarms: dict[str, dict[str, Alarms]] = {}
    read: dict[str, int] = {}
    for line in Path(cases).read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            alarms[case["name"]] = {
                "logged": as_callback(case["logged"], Path(folder) / "written.jsonl"),
                "mapped": as_file(case["mapped"], Path(folder) / "mapped.jsonl"),
            }
            read[case["name"]] = printed(case["logged"], Path(folder) / "printed.log")
    answer = {"version": version("rldk"), "alarms": alarms, "printed": read}
    Path(result).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
