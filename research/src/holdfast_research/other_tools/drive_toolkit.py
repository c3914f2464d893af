"""Run post-training-toolkit on logs: `TOOLKIT_PYTHON drive_toolkit.py CASES.jsonl ALARMS.json`.

It is the callback of the package, fed row after row as a GRPOTrainer would feed it, and for mapped names what
`ptt-diagnose` computes. All options are the defaults, except that no snapshots are taken: they need a model.
A line of the input is `{"name", "logged", "mapped"}`, both lists of rows with a `step`. The output has `version`, and
under `alarms` for each name and way of feeding a list of [kind of alarm, its severity].
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Row = dict[str, Any]
Alarms = list[tuple[str, str]]


class GRPOConfig(SimpleNamespace):
    """The callback tells the trainer by the name of the class of its arguments."""


def as_callback(rows: list[Row], folder: Path) -> Alarms:
    """The alarms of a live run: those raised while it ran and those of the closing summary."""
    toolkit: Any = importlib.import_module("post_training_toolkit")
    heuristics: Any = importlib.import_module("post_training_toolkit.models.heuristics")
    raised: Alarms = []

    class Callback(toolkit.DiagnosticsCallback):  # type: ignore[misc]
        def _handle_live_insights(self, insights: Any, step: int, control: Any) -> None:
            raised.extend((insight.type, insight.severity) for insight in insights)
            super()._handle_live_insights(insights, step, control)

        def _handle_critical_failure(self, reason: str, step: int, control: Any) -> None:
            raised.append(("critical_failure", "critical"))
            super()._handle_critical_failure(reason, step, control)

    callback = Callback(run_dir=folder, enable_snapshots=False, enable_postmortem=False)
    state = SimpleNamespace(global_step=0, is_world_process_zero=True)
    control = SimpleNamespace(should_training_stop=False)
    arguments = GRPOConfig()
    callback.on_train_begin(arguments, state, control)
    for row in rows:
        state.global_step = int(row["step"])
        callback.on_log(arguments, state, control, logs={k: v for k, v in row.items() if k != "step"})
    history = callback._metrics_history
    if history:
        pandas: Any = importlib.import_module("pandas")
        closing = heuristics.run_heuristics(pandas.DataFrame(history), "grpo")
        raised.extend((insight.type, insight.severity) for insight in closing)
    return sorted(set(raised))


def as_file(rows: list[Row], folder: Path) -> Alarms:
    """The alarms of `ptt-diagnose --trainer-type grpo` on a metrics.jsonl with these rows."""
    module: Any = importlib.import_module("post_training_toolkit.models.engine")
    heuristics: Any = importlib.import_module("post_training_toolkit.models.heuristics")
    path = folder / "metrics.jsonl"
    records = [{"step": row["step"], "metrics": {k: v for k, v in row.items() if k != "step"}} for row in rows]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    table, _ = module.load_jsonl(path)
    insights = heuristics.run_heuristics(module.compute_derived_metrics(table, "grpo"), "grpo")
    return sorted({(insight.type, insight.severity) for insight in insights})


def main(cases: str, result: str) -> None:
    """Both ways of feeding, for every case."""
    warnings.simplefilter("ignore")
    alarms: dict[str, dict[str, Alarms]] = {}
    for line in Path(cases).read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            alarms[case["name"]] = {
                "logged": as_callback(case["logged"], Path(folder) / "run"),
                "mapped": as_file(case["mapped"], Path(folder)),
            }
    answer = {"version": version("post-training-toolkit"), "alarms": alarms}
    Path(result).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
