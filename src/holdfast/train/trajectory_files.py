"""trajectories.jsonl and displacement.jsonl: sampled rollouts of each step, and their displacement by the step."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from holdfast.agent.trajectory import Call, Read, Search, Trajectory, Turn
from holdfast.base.jsonl import own_rows, write_jsonl
from holdfast.base.run_folder import DISPLACEMENT, TRAJECTORIES
from holdfast.data.questions import Example
from holdfast.train.listener import Listener, StepResult, TurnChange

LARGEST = 256 * 2**20
"""Bytes of each of the two files. Beyond that, every second of its steps is deleted, and left out from there on."""


class TrajectoryFiles(Listener):
    """Writes one rollout of each of the first `count` questions of a step, with its displacement."""

    def __init__(self, run_dir: Path, count: int) -> None:
        self._trajectories, self._displacement = _Bounded(run_dir / TRAJECTORIES), _Bounded(run_dir / DISPLACEMENT)
        self._count = count

    def step(self, result: StepResult) -> None:
        """Append the rows of this step."""
        displacement = result.displacement
        changes = displacement.by_turn if displacement is not None else {}
        questions = zip(result.groups[: self._count], result.examples, strict=False)
        self._trajectories.add(
            result.step,
            [
                _row(result.step, group.trajectories[0], example, changes.get(question, ()))
                for question, (group, example) in enumerate(questions)
            ],
        )
        if displacement is not None:
            kinds = {"correct": displacement.correct, "incorrect": displacement.incorrect}
            rows = {name: list(map(_short, changes)) for name, changes in kinds.items()}
            self._displacement.add(result.step, [{"step": result.step} | rows])


class _Bounded:
    """A file of rows with steps, of `LARGEST` bytes at most: its steps are the multiples of a growing power of two."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _stride(self) -> int:
        """1, or that of a large file that is continued by a resumed run."""
        if not self._path.is_file() or self._path.stat().st_size < LARGEST // 8:
            return 1
        common = math.gcd(*{row["step"] for row in own_rows(self._path, None, step=int)})
        return (common & -common) or 1  # its largest power of two; 1 where only step 0, or nothing, is left

    def add(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        if step % self._stride:
            return
        _append(self._path, rows)
        while self._path.is_file() and self._path.stat().st_size > LARGEST and self._stride <= step:
            self._stride *= 2
            written = own_rows(self._path, None, step=int)
            write_jsonl(self._path, [row for row in written if row["step"] % self._stride == 0])


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


def _append(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        with path.open("a", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
