"""Runs that never ran: series as a list, with a closing evaluation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from holdfast_research.__main__ import program
from holdfast_research.series import RunSeries

RISE = [0.3, 0.4, 0.5, 0.6, 0.7, 0.75] + [0.8] * 24
"""Thirty steps: up, and a plateau."""
FALL = [0.7, 0.6, 0.5, 0.4, 0.3] + [0.2] * 25
SCORES = {"em": 0.2, "em_greedy": 0.3}

MakeRun = Callable[..., RunSeries]


def rows_of(reward: Sequence[float], metrics: Mapping[str, Sequence[float] | float]) -> list[dict[str, float]]:
    """A row a step; a single value stands for all of them, and a shorter list leaves the rest without the metric."""
    rows = []
    for i, value in enumerate(reward):
        row: dict[str, float] = {"step": i + 1, "reward/mean": value}
        for name, values in metrics.items():
            if isinstance(values, int | float):
                row[name] = float(values)
            elif i < len(values):
                row[name] = values[i]
        rows.append(row)
    return rows


@pytest.fixture
def make_run() -> MakeRun:
    """make_run("GRPO", 1, RISE + FALL, {"entropy/mean": 1.0}, em=0.5)"""

    def make(
        arm: str = "GRPO",
        seed: int = 1,
        reward: Sequence[float] = (*RISE, *FALL),
        metrics: Mapping[str, Sequence[float] | float] | None = None,
        em: float = 0.5,
    ) -> RunSeries:
        after = {"em": em, "em_greedy": em + 0.1}
        results = {"before": SCORES, "after": after, "questions": 400, "seconds": 60.0}
        return RunSeries(arm=arm, seed=seed, rows=tuple(rows_of(reward, metrics or {})), results=results)

    return make


@pytest.fixture
def write_run() -> Callable[..., Path]:
    """write_run(folder, reward, metrics): a finished run's metrics and results on disk."""

    def write(folder: Path, reward: Sequence[float], metrics: Mapping[str, Any] | None = None, em: float = 0.5) -> Path:
        folder.mkdir(parents=True)
        rows = rows_of(reward, metrics or {})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        results = {"before": SCORES, "after": {"em": em, "em_greedy": em}, "seconds": 1.0}
        (folder / "results.json").write_text(json.dumps(results))
        return folder

    return write


@pytest.fixture
def run() -> Callable[..., subprocess.CompletedProcess[str]]:
    """run("pages.seeds", *options): a script of the study in a process of its own, on one thread."""

    def run(module: str, *options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", f"holdfast_research.{module}", *map(str, options)]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})

    return run


@pytest.fixture
def holdfast() -> Callable[..., str]:
    """holdfast("reproduce", "list", code=0): what a command prints, on one line."""
    app = typer.Typer(add_completion=False)

    @app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
    def whole(ctx: typer.Context) -> None:
        program()(args=ctx.args, prog_name="holdfast")

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, result.output
        return " ".join(result.output.replace("│ ", "").split())

    return run
