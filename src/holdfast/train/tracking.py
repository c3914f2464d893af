"""The trackers of a run: `metrics.jsonl` always; W&B and TensorBoard if the recipe names them.

A line of `metrics.jsonl` is `{"step": int, "time": seconds since 1970, name: number, …}`. JSON has no NaN, so values
that are not finite are left out, and their names are in the `"dropped"` list of the line.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from holdfast.base.jsonl import own_rows, write_jsonl
from holdfast.base.run_folder import METRICS
from holdfast.recipe import Track
from holdfast.train.listener import Listener, Listeners, StepResult


def open_trackers(track: Track, run_dir: Path, *, name: str, settings: Mapping[str, Any]) -> Listeners:
    """`metrics.jsonl`, and the trackers of the [track] section.

    A resumed run continues where its truncated `metrics.jsonl` ends, and as the same run in W&B, where it has `name`
    and `settings`. `prepare` has made sure that their packages are installed.
    """
    file = MetricsFile(run_dir / METRICS)
    trackers: list[Listener] = [file]
    if track.tensorboard:
        trackers.append(TensorBoard(run_dir / "tensorboard", purge_step=file.last_step() + 1))
    if track.wandb is not None:
        trackers.append(WandB(track.wandb, run_dir, settings=settings, name=name))
    return Listeners(*trackers)


class MetricsFile(Listener):
    """`metrics.jsonl`: one line a step, written to disk when the step is logged.

    A process that is killed while writing leaves an incomplete last line. Reading ignores it, and writing deletes it
    first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def step(self, result: StepResult) -> None:
        """Append the row of the step."""
        metrics = result.metrics
        row: dict[str, Any] = {"step": result.step, "time": round(time.time(), 3)}
        dropped = [name for name, value in metrics.items() if not math.isfinite(value)]
        row |= {name: _plain(value) for name, value in metrics.items() if name not in dropped}
        if dropped:
            row["dropped"] = dropped
        if self._file is None:
            self._file = self._open()
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; a later step opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self) -> list[dict[str, Any]]:
        """Rows in file order; [] when there is no file. Raises `DataError` as `own_rows`."""
        return list(self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        return own_rows(self.path, 'is not a row of metrics, {"step": …}; remove the line', step=int)

    def last_step(self) -> int:
        """The newest step in the file; -1 when there is none."""
        return max((row["step"] for row in self.read()), default=-1)

    def truncate(self, step: int) -> None:
        """Delete later rows without parsing: a resumed run writes them again. Raises as `read`."""
        self.close()
        if not self.path.is_file():
            return
        kept: list[dict[str, Any]] = []
        for row in self._rows() if step >= 0 else ():
            if row["step"] <= step:
                kept.append(row)
            if row["step"] >= step:
                break
        write_jsonl(self.path, kept)

    def _open(self) -> TextIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.is_file() and not self.path.read_bytes().endswith(b"\n"):
            write_jsonl(self.path, self.read())
        return self.path.open("a", encoding="utf-8", newline="\n")


class TensorBoard(Listener):
    """Event files for `tensorboard --logdir RUN`. `purge_step` hides what a stopped run logged from that step on."""

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=purge_step)

    def step(self, result: StepResult) -> None:
        """Write an event for each metric."""
        for name, value in result.metrics.items():
            self._writer.add_scalar(name, value, result.step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandB(Listener):
    """A W&B run. Its id is in the run folder, so that a resumed run continues it."""

    def __init__(self, project: str, run_dir: Path, *, settings: Mapping[str, Any], name: str) -> None:
        import wandb

        known = run_dir / "wandb-id"
        if not known.is_file():
            run_dir.mkdir(parents=True, exist_ok=True)
            known.write_text(uuid.uuid4().hex)
        self._run = wandb.init(
            project=project, id=known.read_text().strip(), resume="allow", name=name, dir=run_dir, config=dict(settings)
        )
        # W&B cannot go back in its own step count, and a run resumed from a checkpoint must.
        self._run.define_metric("*", step_metric="step")

    def step(self, result: StepResult) -> None:
        """Log the metrics."""
        self._run.log({"step": result.step, **result.metrics})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def _plain(value: float) -> float | int:
    """A Python number: numpy's and torch's scalars are not JSON."""
    return value if isinstance(value, int) else float(value)
