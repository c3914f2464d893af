"""Run post-training-toolkit on logs: `TOOLKIT_PYTHON drive_toolkit.py CASES.jsonl ALARMS.json`.

`feeding` has the formats. It is the callback of the package, fed row after row as a GRPOTrainer would feed it, and for
mapped names what `ptt-diagnose` computes. All options are the defaults, except that no snapshots are taken: they need a
model. The place of an alarm of the callback is its row, and those of the closing summary come last.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # where the Python of the tool finds it, too
feeding: Any = importlib.import_module("feeding")
Alarms = list[tuple[str, str, int]]


class GRPOConfig(SimpleNamespace):
    """The callback tells the trainer by the name of the class of its arguments."""


def as_callback(rows: list[dict[str, Any]], folder: Path) -> Alarms:
    """The alarms of a live run: those raised while it ran and those of the closing summary."""
    toolkit: Any = importlib.import_module("post_training_toolkit")
    heuristics: Any = importlib.import_module("post_training_toolkit.models.heuristics")
    raised: Alarms = []

    class Callback(toolkit.DiagnosticsCallback):  # type: ignore[misc]
        def _handle_live_insights(self, insights: Any, step: int, control: Any) -> None:
            raised.extend((insight.type, insight.severity, step) for insight in insights)
            super()._handle_live_insights(insights, step, control)

        def _handle_critical_failure(self, reason: str, step: int, control: Any) -> None:
            raised.append(("critical_failure", "critical", step))
            super()._handle_critical_failure(reason, step, control)

    callback = Callback(run_dir=folder / "run", enable_snapshots=False, enable_postmortem=False)
    state = SimpleNamespace(global_step=0, is_world_process_zero=True)
    control = SimpleNamespace(should_training_stop=False)
    arguments = GRPOConfig()
    callback.on_train_begin(arguments, state, control)
    for row in rows:
        state.global_step, logs = feeding.split(row)
        callback.on_log(arguments, state, control, logs=logs)
    history = callback._metrics_history
    if history:
        pandas: Any = importlib.import_module("pandas")
        closing = heuristics.run_heuristics(pandas.DataFrame(history), "grpo")
        raised.extend((insight.type, insight.severity, state.global_step + 1) for insight in closing)
    return raised


def as_file(rows: list[dict[str, Any]], folder: Path) -> Alarms:
    """The alarms of `ptt-diagnose --trainer-type grpo` on a metrics.jsonl with these rows."""
    module: Any = importlib.import_module("post_training_toolkit.models.engine")
    heuristics: Any = importlib.import_module("post_training_toolkit.models.heuristics")
    path = folder / "metrics.jsonl"
    records = [{"step": step, "metrics": metrics} for step, metrics in map(feeding.split, rows)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    table, _ = module.load_jsonl(path)
    insights = heuristics.run_heuristics(module.compute_derived_metrics(table, "grpo"), "grpo")
    return [(insight.type, insight.severity, place) for place, insight in enumerate(insights)]


if __name__ == "__main__":
    feeding.main("post-training-toolkit", as_callback, as_file)
