"""`holdfast data` as a user types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.tasks.files import read_examples

Data = Callable[..., Any]


@pytest.fixture
def data(holdfast: Callable[..., Any]) -> Data:
    """data("convert", path, …): `holdfast data`."""
    return lambda *words, code=0: holdfast("data", *map(str, words), code=code)


@pytest.fixture
def sample(tmp_path: Path, data: Data) -> Path:
    said = data("prepare", "sample", "--out", tmp_path / "sample").output
    assert "questions.jsonl: 37 questions" in said and "corpus.jsonl: 91 passages" in said
    return tmp_path / "sample" / "questions.jsonl"


def test_there_and_back_but_not_over_itself(data: Data, sample: Path, tmp_path: Path) -> None:
    before = sample.read_bytes()
    data("convert", sample, sample, code=2)
    assert sample.read_bytes() == before
    for form in ("searchr1", "verl", "skyrl"):
        parquet, back = tmp_path / f"{form}.parquet", tmp_path / f"{form}.jsonl"
        data("convert", sample, parquet, "--format", form)
        assert "37 questions" in data("convert", parquet, back).output
        rows = [json.loads(line) for line in back.read_text(encoding="utf-8").splitlines()]
        assert [row.pop("prompt")[0]["role"] for row in rows] == ["user"] * 37
        assert rows == [json.loads(line) for line in sample.read_text(encoding="utf-8").splitlines()]


def test_bad_rows_stop_or_are_left_out(data: Data, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"question": "a?", "golden_answers": ["x"]}\n{"question": "b?", "golden_answers": []}\n')
    stopped = data("convert", path, tmp_path / "out.parquet", code=2)
    assert "x.jsonl:2: golden_answers: is an empty list" in stopped.stderr
    assert not (tmp_path / "out.parquet").exists()
    left_out = data("convert", path, tmp_path / "out.parquet", "--skip-bad", "--source", "own", "--split", "train")
    assert "skipped 1 row (line 2): golden_answers" in left_out.stderr
    assert [e.id for e in read_examples(tmp_path / "out.parquet")] == ["own/train/0"]


def test_validate_says_what_is_wrong_and_exits_1(data: Data, sample: Path) -> None:
    assert data("validate", sample).output.splitlines()[0] == f"{sample}: 37 questions"
    twice = data("validate", sample, sample, code=1).output
    assert "question 1: sample/test/0 is also question 1 of" in twice and "and 27 more" in twice


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["prepare", "hotpot", "--out", "o"], "did you mean 'hotpotqa'?"),
        (["prepare", "nq", "--out", "o", "--from", "gone/away/far"], "neither a folder nor"),
        (["prepare", "sample", "--out", "o", "--from", "x"], "sample needs no download"),
        (["convert", "a.csv", "o.parquet"], "a.csv does not exist"),
        (["convert", "a.xlsx", "o.parquet"], "save it as CSV"),
        (["convert", "a.jsonl", "o.csv"], "ends in .jsonl"),
        (["convert", "a.jsonl", "o.jsonl", "--format", "verl"], "must end in .parquet"),
    ],
)
def test_what_cannot_work_is_a_sentence(
    data: Data, words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in data(*words, code=2).stderr
    assert list(tmp_path.iterdir()) == []


def test_demonstrations_of_a_recipe_over_its_own_passages(data: Data, sample: Path, tmp_path: Path) -> None:
    recipe, file = tmp_path / "own.toml", tmp_path / "demonstrations.jsonl"
    recipe.write_text(
        f'[data]\ntrain = "{sample}"\n[retrieval]\ncorpus = "{sample.parent / "corpus.jsonl"}"\n'
        f'[model]\npath = "gpt2"\n[warm_start]\ndata = "{file}"\nsteps = 5\n'
    )
    said = data("demonstrate", recipe, "--out", file, "--most", 5).output
    assert "demonstrations.jsonl: 5 demonstrations of " in said
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert all(row["turns"][0]["observation"] for row in rows)
    everything = data("demonstrate", recipe, "--out", file).output
    assert "demonstrations of 33 questions, " in everything
    assert "\nleft out: " in everything and " whose answer is in no passage that was found: " in everything
    data("demonstrate", recipe, "--out", file, "--train.stps", "5", code=2)


def test_demonstrations_by_a_script_and_from_rollouts(
    data: Data, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = Path("own.toml")
    recipe.write_text(
        f'[data]\ntrain = "{sample}"\n[retrieval]\ncorpus = "{sample.parent / "corpus.jsonl"}"\n'
        '[model]\npath = "gpt2"\n'
    )
    rows = [json.loads(line) for line in sample.read_text(encoding="utf-8").splitlines()]
    answers = {row["question"]: row["golden_answers"][0] for row in rows}
    Path("own_script.py").write_text(
        f"ANSWERS = {answers!r}\n\n\ndef solve(question):\n"
        '    yield {"tool": "search", "arguments": {"query": question}}\n'
        "    return ANSWERS[question]\n"
    )
    done = data("demonstrate", recipe, "--script", "own_script:solve", "--out", "a.jsonl", "--most", 5)
    assert "own_script.py (--script)" in done.stderr and "a.jsonl: 5 demonstrations of 5 questions" in done.output
    written = [json.loads(line) for line in Path("a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(row["turns"][1]["text"] == f"<answer> {answers[row['question']]} </answer>" for row in written)

    done = data("demonstrate", recipe, "--rollouts", "a.jsonl", "--out", "b.jsonl", "--most", 3)
    assert "b.jsonl: 3 demonstrations of 5 questions" in done.output
    assert "left out: 2 questions whose answer already occurs often enough: " in done.output
    both = data("demonstrate", recipe, "--rollouts", "a.jsonl", "--script", "s:s", "--out", "c.jsonl", code=2)
    assert "--script and --rollouts cannot be combined" in both.stderr
