"""TRL: the rules of `holdfast diagnose` while a trainer runs, as a callback.

    from holdfast.adapters.trl_monitor import Monitoring

    trainer = Trainer(..., callbacks=[Monitoring(on="STP001,RWD", action="stop")])

Works with any GRPOTrainer. The log of stock TRL decides few codes. `with_penalties(GRPOTrainer)`, which can leave the
loss as it is, adds the likelihood of correct rollouts and its displacement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import TrainerCallback

from holdfast.adapters.trl.notices import warn
from holdfast.base.errors import ConfigError
from holdfast.diagnose.codes import chosen
from holdfast.diagnose.finding import Finding, write_findings
from holdfast.diagnose.log import Series
from holdfast.diagnose.monitor import Monitor, raise_alerts
from holdfast.diagnose.readers.names import translation
from holdfast.hosts import HOSTS
from holdfast.hosts.host import CHANGES

__all__ = ["Monitoring"]


class Monitoring(TrainerCallback):
    """Reports each finding once, and may stop the run.

    A finding is a warning of the logger `holdfast`, on a line of its own, and an alert in trackio and W&B if the
    trainer reports to them. `findings.json` in `output_dir`, the JSON of `holdfast diagnose --json`, has all
    findings and notes. A resumed trainer reports only new findings.

    Args:
        on: codes to act on, or beginnings of codes, separated by commas, such as "STP001,RWD"; all codes if empty.
        action: `warn`, or `stop`: save a checkpoint after this step and end the training.

    Raises:
        ConfigError: a part of `on` begins no code, or `action` is not one of the two.
    """

    def __init__(self, *, on: str = "", action: Literal["warn", "stop"] = "warn") -> None:
        if action not in ("warn", "stop"):
            raise ConfigError(f"Monitoring(action={action!r}): action must be 'warn' or 'stop'")
        self._codes = chosen(on, where="Monitoring(on=...)")
        self._stops = action == "stop"
        self.monitor = Monitor(host="trl")
        self.findings: list[Finding] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Findings from before a resume are not reported again."""
        plain = (str, int, float, bool, type(None))
        settings = {name: value for name, value in vars(args).items() if isinstance(value, plain)}
        self.monitor = Monitor(host="trl", name=Path(args.output_dir).name, settings=settings)
        self.findings = [*self.monitor.replay((int(row["step"]), _ours(row)) for row in state.log_history)]

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Judge the new row of the log. A finding whose code is guarded stops the training."""
        new = self.monitor.observe(state.global_step, _ours(logs or {}))
        self.findings += new
        guarded = [finding for finding in new if finding.code in self._codes]
        if state.is_world_process_zero:
            for finding in guarded:
                change = finding.remedy.replace("`", "")
                warn(f"{finding.code} at step {finding.step}: {finding.summary} {change}".rstrip())
                raise_alerts(finding)
            if new:
                self._write(Path(args.output_dir))
        if self._stops and _decided_by_first(bool(guarded), args.device):
            control.should_save = control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Write the findings to the output folder."""
        if state.is_world_process_zero:
            self._write(Path(args.output_dir))  # with the leads and facts of the whole run

    def _write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_findings(folder, self.monitor.log(), self.monitor.diagnosis())


def _ours(row: Mapping[str, Any]) -> dict[str, float]:
    """A row of TRL's log under holdfast's names; TRL writes None for NaN."""
    numbers = {
        name: math.nan if value is None else float(value)
        for name, value in row.items()
        if (value is None or isinstance(value, int | float)) and name not in ("step", "epoch")
    }
    alone = {name: Series(np.zeros(1, np.int64), np.array([value])) for name, value in numbers.items()}
    names = translation("trl", numbers, doubtful=HOSTS["trl"].doubtful(alone, {}))
    return {names[name].ours: float(CHANGES[names[name].change](value)) for name, value in numbers.items()}  # type: ignore[arg-type]


def _decided_by_first(stop: bool, device: Any) -> bool:
    """The first process decides for all. Logs may differ in a digit, and a run hangs if only some processes stop."""
    if not torch.distributed.is_initialized():
        return stop
    flag = torch.tensor(int(stop), device=device)
    torch.distributed.broadcast(flag, 0)
    return bool(flag)
