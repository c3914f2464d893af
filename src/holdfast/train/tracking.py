"""What is logged of each step: `metrics.jsonl` and sampled rollouts always; W&B and TensorBoard if a recipe names them.

A line of `metrics.jsonl` is `{"step": int, "time": seconds since 1970, name: number, …}`. JSON has no NaN, so values
that are not finite are left out, and their names are in the `"dropped"` list of the line. `trajectories.jsonl` and
`displacement.jsonl` have rollouts of a step, and their displacement by it.
"""

from __future__ import annotations

import itertools
import json
import math
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from holdfast.agent.trajectory import Call, Read, Search, Trajectory, Turn
from holdfast.base.jsonl import own_rows, write_jsonl
from holdfast.base.run_folder import DISPLACEMENT, METRICS, TRAJECTORIES
from holdfast.recipe import Track
from holdfast.tasks.questions import Example
from holdfast.train.listener import Listener, Listeners, StepResult, TurnChange


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


# ---- sampled rollouts of each step


class TrajectoryFiles(Listener):
    """Writes one rollout of each of the first `count` questions of a step, with its displacement."""

    def __init__(self, run_dir: Path, count: int) -> None:
        self._run_dir, self._count = run_dir, count

    def step(self, result: StepResult) -> None:
        """Append the rows of this step."""
        displacement = result.displacement
        changes = displacement.by_turn if displacement is not None else {}
        questions = zip(result.groups[: self._count], result.examples, strict=False)
        _append(
            self._run_dir / TRAJECTORIES,
            [
                _row(result.step, group.trajectories[0], example, changes.get(question, ()))
                for question, (group, example) in enumerate(questions)
            ],
        )
        if displacement is not None:
            kinds = {"correct": displacement.correct, "incorrect": displacement.incorrect}
            rows = {name: list(map(_short, changes)) for name, changes in kinds.items()}
            _append(self._run_dir / DISPLACEMENT, [{"step": result.step} | rows])


def _append(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        with path.open("a", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def forget_trajectories_after(run_dir: Path, step: int) -> None:
    """Delete the rows after `step`, the checkpoint of a stopped run: the resumed run writes them again."""
    for path in (run_dir / TRAJECTORIES, run_dir / DISPLACEMENT):
        if path.is_file():
            write_jsonl(path, [row for row in own_rows(path, None, step=int) if row["step"] <= step])


def _row(step: int, trajectory: Trajectory, example: Example, changes: Sequence[TurnChange]) -> dict[str, Any]:
    return {
        "step": step,
        "id": trajectory.example_id,
        "question": example.question,
        "golden_answers": list(example.golden_answers),
        "turns": [_turn(turn, change) for turn, change in itertools.zip_longest(trajectory.turns, changes)],
        "answer": trajectory.answer,
        "status": trajectory.status.value,
        **({"error": trajectory.error} if trajectory.error else {}),
        "reward": trajectory.reward,
        "reward_parts": trajectory.reward_parts,
    }


def _turn(turn: Turn, change: TurnChange | None) -> dict[str, Any]:
    row: dict[str, Any] = {"text": turn.text, "observation": turn.observation_text, "hits": list(turn.hits)}
    if isinstance(turn.action, Search):
        row["query"] = turn.action.query
    if isinstance(turn.action, Read):
        row["read"] = turn.action.passage
    if isinstance(turn.action, Call):
        row |= {"call": turn.action.tool, "arguments": turn.action.arguments}
        row |= {"failed": turn.result.failed} if turn.result is not None else {}
    if change is not None:
        row |= {"token_chars": list(change.chars), "token_changes": list(map(_short, change.changes))}
    return row


def _short(value: float) -> float | None:
    """Rounded to four digits, enough for a chart; None for NaN and infinities, which JSON does not have."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
