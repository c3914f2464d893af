"""`holdfast watch`: new rows and findings of a log that grows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


def rows(first: int, last: int) -> str:
    """Rows of metrics.jsonl; the retriever fails from step 21."""
    return "".join(
        json.dumps(
            {
                "step": step,
                "time": 1e9 + step,
                "reward/mean": 0.5 if step <= 20 else 0.0,
                "retrieval/error_fraction": 0.0 if step <= 20 else 0.9,
            }
        )
        + "\n"
        for step in range(first, last + 1)
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder / "metrics.jsonl"


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`meanwhile(a, b)`: what happens while the command sleeps; after the last one, Ctrl-C."""

    def script(*events: Callable[[], object]) -> None:
        queue = list(events)

        def sleep(seconds: float) -> None:
            if not queue:
                raise KeyboardInterrupt
            queue.pop(0)()

        monkeypatch.setattr("holdfast.cli.watch.time.sleep", sleep)

    return script


def test_a_log_is_followed_and_its_findings_come_once(log: Path, meanwhile: Any, holdfast: Run) -> None:
    log.write_text(rows(1, 15))

    def grow(first: int, last: int) -> Callable[[], object]:
        return lambda: log.open("a").write(rows(first, last))

    meanwhile(grow(16, 17), lambda: None, grow(18, 23), grow(24, 30))
    lines = holdfast("watch", str(log), code=1).stdout.splitlines()
    steps = [int(line.split()[1]) for line in lines if line.startswith("step ")]
    assert steps == list(range(15, 31))
    assert len([line for line in lines if line.startswith("RET001 step 21: ")]) == 1
    assert lines.index(next(line for line in lines if "RET001" in line)) < lines.index(
        next(line for line in lines if line.startswith("step 24"))
    )


def test_a_run_that_has_not_begun_is_waited_for_and_ends_by_itself(log: Path, meanwhile: Any, holdfast: Run) -> None:
    (log.parent / "config.toml").write_text("")
    meanwhile(lambda: log.write_text(rows(1, 5)), lambda: (log.parent / "results.json").write_text("{}"))
    stdout = holdfast("watch", str(log.parent)).stdout
    assert "waiting for the first row" in stdout and "step 5" in stdout


def test_a_resumed_run_goes_back(log: Path, meanwhile: Any, holdfast: Run) -> None:
    log.write_text(rows(1, 15))
    meanwhile(lambda: log.write_text(rows(1, 10)), lambda: log.write_text(rows(1, 11)))
    stdout = holdfast("watch", str(log)).stdout
    assert [int(line.split()[1]) for line in stdout.splitlines() if line.startswith("step ")] == [15, 10, 11]


def test_a_file_that_is_cut_off_for_a_moment_is_read_again(log: Path, meanwhile: Any, holdfast: Run) -> None:
    log.write_text(rows(1, 4))
    meanwhile(lambda: log.write_text(""), lambda: log.write_text(rows(1, 6)))
    assert "step 6" in holdfast("watch", str(log)).stdout


def test_what_cannot_be_watched(log: Path, tmp_path: Path, holdfast: Run) -> None:
    assert "does not exist" in holdfast("watch", str(tmp_path / "gone"), code=2).stderr
    other = tmp_path / "other" / "metrics.jsonl"
    other.parent.mkdir()
    for path in (log, other):
        path.write_text(rows(1, 5))
    assert "holds 2 runs; watch one of them: other, run" in holdfast("watch", str(tmp_path), code=2).stderr
