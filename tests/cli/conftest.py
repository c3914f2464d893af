from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.base.run_folder import begin
from holdfast.cli.main import app
from holdfast.recipe import Config, dump
from holdfast.train.listener import Listener
from holdfast.train.prepare import Prepared
from holdfast.train.summary import Sample, SampleTurn, Summary

SAMPLES = (
    Sample(
        question="Who is the mentor of Mira Tolvan?",
        golden_answers=("Kelan Orso",),
        turns=(
            SampleTurn(
                [("thinks", "her mentor"), ("searches", "Mira Tolvan mentor")],
                "\n\n<information>Doc 1(Title: Mira Tolvan) Mira Tolvan has teacher Kelan Orso.\n"
                "Doc 2(Title: [bold] Zed) Zed has rival Bo.</information>\n\n",
                False,
            ),
            SampleTurn([("answers", "Kelan Orso")], "", False),
        ),
        answer="Kelan Orso",
        reward=1.0,
    ),
    Sample(
        question="Who?",
        golden_answers=("A",),
        turns=(SampleTurn([("says", "hm")], "", False),),
        answer=None,
        reward=0.0,
    ),
)


@dataclass
class FakeTrainer:
    """`holdfast.train.run` without the training: keeps what it was called with, and behaves as `script` says."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    script: Callable[[Path, Listener], None] = lambda run_dir, listener: None

    def train_prepared(self, prepared: Prepared, run_dir: Path, *, listener: Listener) -> Summary:
        self.calls.append(("train", prepared.config))
        begin(run_dir, dump(prepared.config))
        return self._finish(run_dir, listener)

    def resume(self, run_dir: Path, *, moved: Sequence[str], listener: Listener) -> Summary:
        self.calls.append(("resume", run_dir, *moved))
        return self._finish(run_dir, listener)

    def warm_start_prepared(self, prepared: Prepared, run_dir: Path, *, listener: Listener) -> Path:
        self.calls.append(("warm start", prepared.config))
        self.script(run_dir, listener)
        return run_dir / "model"

    def _finish(self, run_dir: Path, listener: Listener) -> Summary:
        self.script(run_dir, listener)
        return Summary(
            run_dir=run_dir,
            seconds=83.0,
            steps=60,
            verdict="Learned, and stayed stable. Reward rose from 0.24 to 0.48.",
            before={"em": 0.2, "em_greedy": 0.4},
            after={"em": 0.45, "em_greedy": 0.39},
            split="test",
            samples=SAMPLES,
        )

    @property
    def config(self) -> Config:
        return self.calls[-1][1]  # type: ignore[no-any-return]


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeTrainer:
    """A fake trainer in place of the real one; the working directory is an empty folder."""
    fake = FakeTrainer()
    monkeypatch.setattr("holdfast.cli.train.load_trainer", lambda module: fake)
    monkeypatch.chdir(tmp_path)
    return fake


@pytest.fixture
def holdfast() -> Callable[..., Any]:
    """Runs the command: `holdfast("train", "--dry-run").stdout`."""

    def run(*arguments: str, code: int = 0, stdin: str | None = None) -> Any:
        result = CliRunner().invoke(app, list(arguments), input=stdin)
        assert result.exit_code == code, result.output
        return result

    return run


def printed(*arguments: str, code: int = 0) -> str:
    """What the command prints, on one line and without frames."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return " ".join(result.output.replace("│ ", "").split())


def then_raise(error: BaseException, first: Callable[[Path, Listener], None] | None = None) -> Any:
    """A script for the fake trainer: does `first`, and raises."""

    def script(run_dir: Path, listener: Listener) -> None:
        if first is not None:
            first(run_dir, listener)
        raise error

    return script


def rows(first: int, last: int, *, failing: bool = True) -> str:
    """Rows of metrics.jsonl. The retriever fails from step 21."""
    numbers = ((step, failing and step > 20) for step in range(first, last + 1))
    return "".join(
        json.dumps(
            {
                "step": step,
                "time": 1e9 + step,
                "reward/mean": 0.0 if fails else 0.4 + 0.01 * step,
                "retrieval/error_fraction": 0.9 if fails else 0.0,
                "entropy/mean": 1.0,
            }
        )
        + "\n"
        for step, fails in numbers
    )
