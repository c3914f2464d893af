"""The rules of `holdfast diagnose` over a run while it trains: alarms, `findings.json`, and the guard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.config import Config, setting_values
from holdfast.diagnostics.codes import chosen
from holdfast.diagnostics.finding import Finding
from holdfast.diagnostics.monitor import Monitor
from holdfast.diagnostics.present import write_findings
from holdfast.train.checkpoint import step_folder
from holdfast.train.events import Observer
from holdfast.train.folder import RunFolder


class Alarms:
    """Listens to the metrics of a run."""

    def __init__(self, config: Config, folder: RunFolder, observer: Observer) -> None:
        self._folder = folder.path
        self._observer = observer
        self._codes = chosen(config.guard.on, where="guard.on")
        self._stops = config.guard.action == "stop"
        self._monitor = Monitor(name=folder.path.name, settings=setting_values(config))
        self._monitor.replay(folder.metrics.read())  # of a resumed run: found before, and told then
        self._write()

    def observe(self, step: int, metrics: Mapping[str, float]) -> Finding | None:
        """Tell what a step shows for the first time; the finding that the guard stops the run for."""
        found = self._monitor.observe(step, metrics)
        if found:
            self._write()
        guarded = [finding for finding in found if finding.code in self._codes]
        for finding in guarded:
            self._observer.alarm(finding)
        return guarded[0] if guarded and self._stops else None

    def close(self) -> None:
        """Write the file once more: leads and facts are those of the whole run."""
        self._write()

    def _write(self) -> None:
        write_findings(self._folder, self._monitor.log(), self._monitor.diagnosis())


def stopped(finding: Finding, run_dir: Path) -> str:
    """What a guard says when it has stopped a run."""
    checkpoint = step_folder(run_dir, finding.step)
    change = finding.remedy.replace("`", "")
    return (
        f"stopped by guard.on after step {finding.step}: {finding.code}. {finding.summary} The run is saved in "
        f"{checkpoint}. {change} A new run from its model: --model.path {checkpoint}/model --warm_start.steps 0 "
        f"--warm_start.plain_steps 0. To go on as before: --resume {run_dir}"
    )
