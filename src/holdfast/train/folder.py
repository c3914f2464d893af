"""The run folder's files but the checkpoints and the metrics: recipe, sampled episodes, results."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast.config import Config, dump, load
from holdfast.data import Example
from holdfast.errors import CheckpointError, ConfigError
from holdfast.files import UNWRITABLE, locked, write_whole
from holdfast.jsonl import write_jsonl
from holdfast.tracking import METRICS_FILE, MetricsFile
from holdfast.train.displacement import Displacement, TurnChange
from holdfast.train.events import Sample, Summary
from holdfast.trajectory import Group, Search, Trajectory, Turn
from holdfast.versions import versions


class RunFolder:
    """Files of one run, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = MetricsFile(path / METRICS_FILE)
        self._config, self._trajectories, self._displacement, self._results = (
            path / name for name in ("config.toml", "trajectories.jsonl", "displacement.jsonl", "results.json")
        )

    def begin(self, config: Config) -> None:
        """Write the recipe. Raises `ConfigError` when the folder holds a run already, or cannot be written."""
        for there in (self.metrics.path, self._results, self.path / "checkpoints"):
            if there.exists():
                raise ConfigError(
                    f"{self.path} holds a run already ({there.name}); continue it with --resume {self.path}, or give "
                    "another run.name"
                )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self._config, dump(config))
        except OSError as error:
            raise ConfigError(
                f"the run folder {self.path} cannot be written ({error.strerror}); set run.dir to a folder that can"
            ) from error

    def config(self) -> Config:
        """The recipe the run began with."""
        if not self._config.is_file():
            raise CheckpointError(
                f"{self.path} is no run folder: it has no config.toml. Give the folder `holdfast train` named"
            )
        return load(self._config)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Alone: two processes in one folder would mix their steps. Turns a full or unwritable disk into a sentence.

        Raises `ConfigError` while another process writes here, `CheckpointError` for the disk.
        """
        try:
            with locked(self._config):
                yield
        except BlockingIOError:
            raise ConfigError(
                f"another process is training in {self.path}. Wait for it or stop it, or give another run.name"
            ) from None
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            raise CheckpointError(
                f"{error.filename or self.path} cannot be written: {UNWRITABLE[error.errno]}. Put that right, then go "
                f"on from the newest checkpoint with --resume {self.path}"
            ) from error

    def forget_after(self, step: int) -> None:
        """Drop what a stopped run logged after its checkpoint; it will be logged again."""
        self.metrics.truncate(step)
        for path in (self._trajectories, self._displacement):
            if path.is_file():
                write_jsonl(path, [row for row in _whole_rows(path) if row["step"] <= step])

    def add_samples(
        self,
        step: int,
        groups: Sequence[Group],
        examples: Sequence[Example],
        count: int,
        displacement: Displacement | None = None,
    ) -> None:
        """An episode each of the first `count` questions of a step, and what its update did to single rollouts."""
        changes = displacement.shown if displacement is not None else {}
        _append(
            self._trajectories,
            [
                _row(step, group.trajectories[0], example, changes.get(question, ()))
                for question, (group, example) in enumerate(zip(groups[:count], examples, strict=False))
            ],
        )
        if displacement is not None:
            kinds = {"correct": displacement.correct, "incorrect": displacement.incorrect}
            _append(self._displacement, [{"step": step} | {name: list(map(_short, c)) for name, c in kinds.items()}])

    def finish(self, summary: Summary, questions: int) -> None:
        """Write the results: from now on the run is finished, and its test questions have been read."""
        results: dict[str, Any] = {"made_by": versions(), "split": summary.split, "questions": questions}
        results |= asdict(summary)
        del results["run_dir"]
        write_whole(self._results, json.dumps(results, indent=1, ensure_ascii=False))

    def summary(self) -> Summary | None:
        """How the run ended; None when it has not."""
        try:
            results = json.loads(self._results.read_text(encoding="utf-8"))
            samples = tuple(
                Sample(**sample | {"turns": tuple(map(tuple, sample["turns"]))}) for sample in results.pop("samples")
            )
            del results["questions"]
            for maker in ("made_by", "holdfast"):  # the second is how older runs said it
                results.pop(maker, None)
            return Summary(run_dir=self.path, samples=samples, **results)
        except (OSError, ValueError, KeyError, TypeError):
            return None


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
    if change is not None:
        row |= {"token_chars": list(change.chars), "token_changes": list(map(_short, change.changes))}
    return row


def _short(value: float) -> float | None:
    """Four digits, which is what a chart can show of a log-prob; None for what JSON has no number for."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _append(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        with path.open("a", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _whole_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a file whose last line may be cut."""
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            row = json.loads(line)
            if isinstance(row["step"], int):
                yield row
        except (ValueError, KeyError, TypeError):
            continue
