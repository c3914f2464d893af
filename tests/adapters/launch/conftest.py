"""A recipe that both hosts can run, and the ways to change it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.recipe import Config, load

SMALL = (
    "--run.name=small",
    "--data.train=questions.jsonl",
    "--retrieval.url=http://127.0.0.1:8000/retrieve",
    "--model.path=Qwen/Qwen2.5-0.5B-Instruct",
    "--train.questions=40",
)

MakeRecipe = Callable[..., Config]


OWN_CODE = """
from torch import where
from holdfast.penalties import Penalty

class Hinge(Penalty):
    coef: float = 0.3
    margin: float = 0.1

    def per_token(self, logprobs, old_logprobs, advantages, loss_mask, *, preserved, **_):
        return where(preserved, (old_logprobs.detach() - logprobs - self.margin).clamp(min=0), 0.0)

class Ramp(Hinge):
    coef: float = 0.1
    label: str = ""
    words: dict[str, int] = {}

def brevity(trajectory, golden_answers):
    return 1 / max(len(trajectory.turns), 1)
"""
CUSTOM = ("--loss.penalty.name=custom", "--loss.penalty.path=own_code_of_launch:Hinge")


@pytest.fixture(scope="session", autouse=True)
def own_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The module `own_code_of_launch`, which recipes name."""
    folder = tmp_path_factory.mktemp("own_code")
    (folder / "own_code_of_launch.py").write_text(OWN_CODE)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


@pytest.fixture
def recipe() -> MakeRecipe:
    """`recipe("--train.lr=1")`: the small recipe with overrides; what cannot be loaded is an error of the test."""
    return lambda *overrides: load(None, [*SMALL, *overrides])


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """60 questions in `questions.jsonl` of the folder that the test runs in."""
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"Who is number {i}", "golden_answers": [f"Person {i}", str(i)]} for i in range(60)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


WATCH = ["-m", "holdfast.adapters.verl_watch", "python3"]


def run_with_fakes(folder: Path, program: str, *arguments: str, **environment: str) -> list[str]:
    """Run `run.sh` with a stand-in for the program it starts, and return the words that got there: those of verl's own
    command, without what watches it."""
    bin_ = folder / "bin"
    bin_.mkdir(exist_ok=True)
    fake = bin_ / program
    fake.write_text('#!/usr/bin/env bash\nprintf "%s\\0" "$@" "THREADS=${OMP_NUM_THREADS:-}" "W=${WANDB_PROJECT:-}"\n')
    fake.chmod(0o755)
    path = f"{bin_}:{os.environ['PATH']}"
    inherited = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "WANDB_PROJECT")}
    done = subprocess.run(
        [folder / "run.sh", *arguments], env={**inherited, "PATH": path, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.split("\0")[:-1]
    return words[len(WATCH) :] if words[: len(WATCH)] == WATCH else words
