"""`holdfast runs`: a line for each run from what it stored; what is no run, or damaged, is named."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.files import locked
from holdfast.base.run_folder import headed
from holdfast.recipe import dump, load

Run = Callable[..., Any]


def results(steps: int, verdict: str) -> bytes:
    summary = {"seconds": 1.0, "steps": steps, "verdict": verdict, "before": {}, "after": {}, "split": "test"}
    return json.dumps(summary | {"samples": [], "questions": 1, "made_by": {}}).encode()


SUMMARY = results(12, "Held.")


def make(name: str, *, steps: int = 12, ended: str | None = None, hours_ago: float = 0) -> Path:
    """A run of 12 steps, of which it made `steps`, with rewards of 0.01, 0.02, …; `ended` is its verdict."""
    folder = Path("runs") / name
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(headed(dump(load(None, ["--train.steps=12"])), "flaky"))
    rows = [{"step": step, "reward/mean": step / 100} for step in range(1, steps + 1)]
    cut_off = '{"step": 99, "rew'
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + cut_off)
    finding = {"code": "LLD002", "step": 3, "level": "finding"}
    verdict = {"verdict": {"word": "fell"}, "fall_began": 9, "back_step": 11}
    (folder / "findings.json").write_text(json.dumps(verdict | {"findings": [finding | {"level": "note"}, finding]}))
    if ended is not None:
        (folder / "results.json").write_bytes(results(steps, ended))
    for path in folder.iterdir():
        os.utime(path, (time.time() - 3600 * hours_ago,) * 2)
    return folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def listed(holdfast: Run, *arguments: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(holdfast("runs", *arguments, "--json").stdout)
    return rows


def test_each_run_is_a_line_and_the_newest_comes_first(holdfast: Run) -> None:
    make("older", ended="Learned, and stayed stable. Reward rose.", hours_ago=2)
    make("extended", steps=11, ended="Fell. Reward fell.", hours_ago=1)  # its train.steps was raised afterwards
    model = make("start", steps=0, hours_ago=3) / "model"
    model.mkdir()
    with locked(make("now", steps=7) / "config.toml"):
        rows = listed(holdfast)
        assert [row["state"] for row in rows] == ["running", "stopped", "finished", "finished"]
        first, line, *_, last = holdfast("runs").stdout.splitlines()
    assert first.split() == ["run", "recipe", "state", "steps", "reward", "written", "verdict"]
    assert last.split()[:5] == ["start", "flaky", "finished", "0/12", "–"]
    assert [row["name"] for row in rows] == ["now", "extended", "older", "start"]
    told = "fell at 9, recovered at 11"
    assert [row["verdict"] for row in rows] == [told, told, told, "warm start"]
    assert {row["finding"] for row in rows} == {"LLD002 at 3"}
    assert (rows[0]["recipe"], rows[0]["steps"], rows[0]["planned"]) == ("flaky", 7, 12)
    assert rows[0]["reward"] == pytest.approx(0.05)  # the mean of 0.03 to 0.07
    half = 2.776 * 0.0158114 / 5**0.5  # Student's t of 4 degrees of freedom, their standard deviation
    assert rows[0]["reward_half_width"] == pytest.approx(half, rel=1e-3) and f"0.050 ±{half:.3f}" in line
    assert listed(holdfast, "runs/older") == rows[2:3]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", b"[run"),
        ("config.toml", b"\xff"),
        ("metrics.jsonl", b"no row\n"),
        ("metrics.jsonl", b'{"reward/mean": 1}\n'),
        ("findings.json", b"[" * 200_000),
        ("findings.json", b'{"findings": [1]}'),
        ("findings.json", b'{"findings": [], "verdict": {"word": "fell"}, "fall_began": "?", "back_step": null}'),
        ("results.json", b"{}"),
        ("results.json", SUMMARY.replace(b'"steps": 12', b'"steps": "12"')),
    ],
)
def test_a_damaged_run_is_named_and_the_others_are_listed(name: str, content: bytes, holdfast: Run) -> None:
    make("whole")
    (make("damaged") / name).write_bytes(content)
    Path("runs/evals").mkdir()
    done = holdfast("runs", "--json")
    assert [row["name"] for row in json.loads(done.stdout)] == ["whole"]
    assert f"runs/damaged/{name}" in done.stderr and "runs/evals is not a run" in done.stderr


def test_a_folder_that_is_missing_is_a_sentence_and_an_empty_one_a_list(holdfast: Run) -> None:
    assert "there is no folder runs" in holdfast("runs", code=2).stderr
    Path("runs").mkdir()
    assert listed(holdfast) == []


@pytest.mark.usefixtures("trainer")
def test_a_run_knows_the_recipe_it_was_started_by(holdfast: Run) -> None:
    Path("my.toml").write_text("[train]\nsteps = 9\n")
    for arguments in ((), ("flaky", "--run.name=a"), ("my.toml",)):
        holdfast("train", *arguments)
    assert {row["name"]: row["recipe"] for row in listed(holdfast)} == {
        "quickstart": "quickstart",
        "a": "flaky",
        "my": "my.toml",
    }
