"""The rules while a run continues, the same functions as `diagnose`, on the log so far; and alerts of its trackers."""

from __future__ import annotations

import logging
import math
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from holdfast.diagnose.diagnose import as_findings, diagnose, hits_of
from holdfast.diagnose.finding import Diagnosis, Finding
from holdfast.diagnose.follow import News
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.log.batches import joined
from holdfast.diagnose.rules import RULES
from holdfast.diagnose.rules.rule import without_suppressed

_logger = logging.getLogger("holdfast")

_JUDGED_EVERY = 2000
"""The rules wait for one more row per this many rows of the log. A rule looks at the whole log. So on a log of 20,000
rows the rules are applied at every tenth row, and the mean cost of a row does not grow."""


class Monitor:
    """Applies the rules to the metrics of a run, step by step.

    >>> monitor = Monitor()
    >>> [[f.code for f in monitor.observe(step, {"grad/norm": norm})] for step, norm in ((1, 0.5), (2, math.nan))]
    [[], ['GRD002']]

    Args:
        host: the trainer whose settings remedies name.
        name: the name of the run.
        settings: settings of the run by the dotted names of the host.
    """

    def __init__(self, *, host: str = "holdfast", name: str = "", settings: Mapping[str, object] | None = None) -> None:
        self._host, self._name, self._settings = host, name, dict(settings or {})
        self._columns: dict[str, _Column] = {}
        self._steps = _Column()
        self._news = News()
        self._pending = 0  # rows that were not judged yet

    def observe(self, step: int, metrics: Mapping[str, float]) -> tuple[Finding, ...]:
        """Add the metrics of a step, by holdfast's names. Returns the new findings, without notes.

        An earlier step means that a run was resumed: later steps are forgotten. Metrics for the newest step are added
        to it. A long log is not judged at every step.
        """
        self._add(step, metrics)
        self._pending += 1
        return self._judge() if self._pending * _JUDGED_EVERY >= len(self._steps.steps) else ()

    def replay(self, rows: Iterable[tuple[int, Mapping[str, float]]]) -> tuple[Finding, ...]:
        """Add (step, metrics) of many steps, and judge them once. Returns the findings that remain at the end."""
        for step, metrics in rows:
            self._add(step, metrics)
        return self._judge()

    def _add(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._steps.steps and step < self._steps.steps[-1]:
            self._forget_from(step)
        self._steps.add(step, 0.0)
        for name, value in metrics.items():
            self._columns.setdefault(name, _Column()).add(step, float(value))

    def _judge(self) -> tuple[Finding, ...]:
        self._pending = 0
        log = self.log()
        return self._news.of(as_findings(log, without_suppressed(hits_of(log, joined(log)), RULES)))

    def log(self) -> Log:
        """The log so far."""
        return Log(
            format="holdfast",
            host=self._host,
            name=self._name,
            series={name: column.series() for name, column in self._columns.items()},
            steps=self._steps.series().steps,
            settings=self._settings,
        )

    def diagnosis(self) -> Diagnosis:
        """The whole diagnosis of the log so far."""
        return diagnose(self.log())

    def _forget_from(self, step: int) -> None:
        for column in (self._steps, *self._columns.values()):
            column.forget_from(step)
        self._columns = {name: column for name, column in self._columns.items() if column.steps}
        self._news.forget_from(step)


def metrics_rows(rows: Iterable[Mapping[str, object]]) -> Iterator[tuple[int, dict[str, float]]]:
    """(step, metrics) of the rows of `metrics.jsonl`."""
    for row in rows:
        dropped = row.get("dropped")
        numbers = {k: float(v) for k, v in row.items() if isinstance(v, int | float) and k not in ("step", "time")}
        numbers |= dict.fromkeys(dropped if isinstance(dropped, list) else (), math.nan)
        yield int(row["step"]), numbers  # type: ignore[call-overload]


class _Column:
    """Steps and values of a series."""

    __slots__ = ("steps", "values")

    def __init__(self) -> None:
        self.steps, self.values = array("q"), array("d")

    def add(self, step: int, value: float) -> None:
        if self.steps and self.steps[-1] == step:
            self.values[-1] = value
        else:
            self.steps.append(step)
            self.values.append(value)

    def forget_from(self, step: int) -> None:
        count = bisect_left(self.steps, step)
        del self.steps[count:], self.values[count:]

    def series(self) -> Series:
        return Series(np.array(self.steps), np.array(self.values))


# ---- alerts


def raise_alerts(finding: Finding) -> list[str]:
    """Raise an alert in each tracker in which the run itself has begun one, so that a finding reaches the dashboard,
    webhook or mail of the run. Returns the names of these trackers.

    Nothing is imported, because a process that has not imported trackio or W&B has no run there. If a tracker fails, a
    warning is logged, because an alert must not end a training run.
    """
    title = f"holdfast: {finding.code} at step {finding.step}"  # W&B takes fewer than 64 characters
    text = f"{finding.summary} {finding.remedy}".replace("`", "").strip()
    reached = []
    for name, alert in _TRACKERS.items():
        module = sys.modules.get(name)
        try:
            if module is not None and alert(module, title, text):
                reached.append(name)
        except Exception as error:
            _logger.warning("holdfast: %s did not accept the alert about %s: %s", name, finding.code, error)
    return reached


def _trackio(module: Any, title: str, text: str) -> bool:
    """`trackio.alert`, which wants a level of its own type."""
    if not hasattr(module, "alert") or module.context_vars.current_run.get() is None:
        return False
    module.alert(title=title, text=text, level=module.AlertLevel.WARN)
    return True


def _wandb(module: Any, title: str, text: str) -> bool:
    """`Run.alert` of W&B."""
    if getattr(module, "run", None) is None:
        return False
    module.run.alert(title=title, text=text, level="WARN")
    return True


_TRACKERS: Mapping[str, Callable[[Any, str, str], bool]] = {"trackio": _trackio, "wandb": _wandb}
