"""A recipe that both hosts can run, and the ways to change it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.config import Config, load

SMALL = (
    "--run.name=small",
    "--data.train=questions.jsonl",
    "--retrieval.url=http://127.0.0.1:8000/retrieve",
    "--model.path=Qwen/Qwen2.5-0.5B-Instruct",
    "--train.questions=40",
)

MakeRecipe = Callable[..., Config]


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
