"""`holdfast eval run RUN --checkpoint all`: the scores of every checkpoint that a run has kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.diagnose.readers import read_log
from holdfast.evaluate.folder import OVER_TRAINING
from holdfast.train.run import train

from .whole_runs import Recipe


def holdfast(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return " ".join(result.output.replace("│ ", "").split())


@pytest.fixture(scope="module")
def run_dir(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("over_training") / "run"
    changes: dict[str, Any] = {"train.steps": 2, "checkpoint.every": 1, "checkpoint.keep": 2, "train.lr": 3e-2}
    train(recipe(changes), run)
    return run


def test_a_table_a_log_and_results_of_every_step(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "evals"
    command = ("eval", "run", str(run_dir), "--checkpoint", "all", "--limit", "2", "--samples", "2", "--out", str(out))
    told = holdfast(*command)
    assert "EM (95 %) at step" in told and f"holdfast report {out / OVER_TRAINING}" in told
    folders = [out / f"step-{step:06d}" for step in (1, 2)]
    results = [json.loads((folder / "results.json").read_text()) for folder in folders]
    assert len({one["weights"] for one in results}) == 2
    assert [one["row"] for one in results] == [f"run search-r1 step {step}" for step in (1, 2)]
    sets = list(results[0]["sets"])
    assert len(sets) == 2
    rows = [json.loads(line) for line in (out / OVER_TRAINING).read_text().splitlines()]
    assert rows == [
        {"step": step, **{name: one["sets"][name]["em"] for name in sets}, "mean of sets": one["macro"]["em"]}
        for step, one in zip((1, 2), results, strict=True)
    ]
    assert read_log(out / OVER_TRAINING).series[sets[0]].steps.tolist() == [1, 2]
    assert "holdfast report" in holdfast(*command), "nothing is asked twice"


def test_what_has_no_checkpoints_is_refused(run_dir: Path) -> None:
    checkpoint = str(run_dir / "checkpoints" / "step-000001")
    assert "is not a run folder" in holdfast("eval", "run", checkpoint, "--checkpoint", "all", code=2)
    for folder in (run_dir / "checkpoints").glob("step-*"):
        (folder / "checksums.json").unlink()
    assert "has no complete checkpoint" in holdfast("eval", "run", str(run_dir), "--checkpoint", "all", code=2)
