"""`holdfast reproduce`: refusals at once, and one tiny experiment for real: killed, hindered, finished."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast_research.commands.reproduce import _plan
from holdfast_research.experiments import EXPERIMENTS

Command = Callable[..., str]


FIRST_ACTION = ("reproduce", "run", "first-action", "--short")


def test_without_a_name_the_experiments_are_listed(holdfast: Command) -> None:
    text = holdfast("reproduce", "list")
    for name in EXPERIMENTS:
        assert name in text
    # 5 seeds × 18 arms, and 10 swept arms × 3 coefficients × 2 seeds: 90 + 60
    assert "runs hours" in text and " 150 " in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "death-spirl"], "'death-spirl' is not an experiment; did you mean death-spiral?"),
        (["run", "death-spiral", "--arms", "ppo"], "no arm of death-spiral has that in its name"),
        (["run", "death-spiral", "--run.seed", "3"], "--run.seed: this is set for each of the runs"),
        (["run", "death-spiral", "--train.step", "3"], "did you mean train.steps?"),
        (["run", "death-spiral", "--train.optimizer_steps_per_rollout", "1"], "this penalty is always zero"),
        (
            ["run", "death-spiral", "--arms", "LLDS action", "--loss.penalty.tau", "0.9"],
            "no run has a penalty with this setting, which is of sapo",
        ),
        (["report", "death-spiral"], "holds no experiment"),
        (["run", "death-spiral", "--sort"], "did you mean --short?"),
    ],
)
def test_refusals(
    holdfast: Command, arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = holdfast("reproduce", *arguments, code=2).replace("│ ", "")
    assert said in text
    assert not list(tmp_path.rglob("config.toml"))


@pytest.mark.parametrize(("short", "own", "steps"), [(False, {}, 160), (True, {}, 3), (True, {"train.steps": 7}, 7)])
def test_an_experiments_own_settings_yield(short: bool, own: dict[str, int], steps: int) -> None:
    plan = _plan(EXPERIMENTS["testbeds"], None, [], own, short=short, sweep=False)
    assert plan.jobs(Path("out"))[0].config.train.steps == steps


@pytest.mark.parametrize(
    ("where", "lacks", "said"),
    [
        ("importlib.util.find_spec", "matplotlib", "matplotlib is not installed"),
        (
            "holdfast.base.importing.find_spec",
            "Stemmer",
            "PyStemmer is not installed. Run: pip install 'holdfast-rl[train]'",
        ),
    ],
)
def test_no_runs_start_without_what_they_need(
    holdfast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, lacks: str, said: str
) -> None:
    monkeypatch.setattr(where, lambda name: None if name == lacks else name)
    assert said in holdfast(*FIRST_ACTION, "--out", str(tmp_path), code=2)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_another_experiment_is_refused(holdfast: Command, tmp_path: Path) -> None:
    plan = {"experiment": "sapo", "arms": [], "seeds": [1], "settings": {}, "sweep": False, "short": True}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert "holds sapo, not masking" in holdfast("reproduce", "report", "masking", "--out", str(tmp_path), code=2)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """tiny(*options): the command in a process of its own, with a cache of its own."""
    folder = tmp_path_factory.mktemp("tiny")
    environment = os.environ | {"HOLDFAST_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "holdfast_research", "reproduce"]

    def start(*options: str, verb: str = "run") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*command, verb, "first-action", "--out", str(folder / "out"), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=folder,
        )

    return folder / "out", start


def finish(process: subprocess.Popen[str], code: int) -> str:
    text, _ = process.communicate(timeout=240)
    assert process.returncode == code, text
    return text


@pytest.mark.long
def test_killed_hindered_and_finished(tiny: Any) -> None:
    out, start = tiny
    options = ("--short", "--jobs", "1")

    # Killed in the middle: what is finished stays, and nothing runs on.
    process = start(*options)
    first = out / "runs" / "grpo-s11" / "results.json"
    deadline = time.monotonic() + 120
    while not first.is_file() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert first.is_file(), finish(process, 143)
    process.send_signal(signal.SIGTERM)
    assert "The same command continues" in finish(process, 143)
    made = first.stat().st_mtime_ns
    assert not (out / "index.html").exists()

    # One arm cannot run: the others do, and the page says so.
    obstacle = out / "runs" / "llds-action-s11"
    obstacle.write_text("in the way")
    text = finish(start(*options), 1)
    assert "failed: LLDS action, seed 11: " in text and "is not a run folder" in text
    results = json.loads((out / "results.json").read_text())
    assert results["unfinished"] == ["LLDS action, seed 11"]
    assert {arm["name"]: len(arm["runs"]) for arm in results["arms"]} == {
        "GRPO": 1,
        "GRPO, reliable search": 1,
        "LLDS action": 0,
    }

    # Out of the way: the rest runs, and what was finished is read.
    obstacle.unlink()
    text = finish(start(*options), 0)
    assert "2 finished before" in text and "LLDS action, seed 11: done" in text
    assert first.stat().st_mtime_ns == made
    results = json.loads((out / "results.json").read_text())
    assert results["unfinished"] == [] and results["short"]
    assert {claim["verdict"] for claim in results["claims"]} == {"cannot tell"}
    assert len([path.name for path in (out / "starts").iterdir()]) == 1

    # The page again, from the same runs.
    page = (out / "index.html").read_bytes()
    assert b"<svg" in page and b"A short run" in page
    (out / "index.html").unlink()
    finish(start(verb="report"), 0)
    assert (out / "index.html").read_bytes() == page
