"""Runs that another experiment has made are copied, if every setting is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.cli.recipes import find as find_recipe
from holdfast.recipe import dump
from holdfast_research.jobs import TrainingJob, reuse_runs
from holdfast_research.methods import Settings

RECIPE = find_recipe("flaky")


def job(folder: Path, arm: str, settings: Settings | None = None, *, seed: int = 11, kind: str = "runs") -> TrainingJob:
    place = folder / kind / f"{arm}-s{seed}"
    return TrainingJob(folder=place, arm=arm, seed=seed, recipe=RECIPE, settings=settings or {})


def finish(job: TrainingJob, version: str = __version__) -> Path:
    job.folder.mkdir(parents=True)
    (job.folder / "config.toml").write_text(dump(job.config))
    (job.folder / "results.json").write_text(json.dumps({"em": 1, "made_by": {"holdfast": version}}))
    (job.folder / "checkpoints").mkdir()
    (job.folder / "checkpoints" / "model").write_text("weights")
    return job.folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "coefficient"


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    return tmp_path / "death-spiral"


@pytest.mark.parametrize("kind", ["runs", "sweep"])
def test_the_same_run_under_another_name(here: Path, beside: Path, kind: str) -> None:
    made = finish(job(beside, "llds", {"loss.penalty.name": "llds", "loss.penalty.coef": 0.2}, kind=kind))
    wanted = job(here, "weak", {"loss.penalty.coef": 0.20, "loss.penalty.name": "llds"})
    assert reuse_runs([wanted, job(here, "other")], here) == [made]
    assert wanted.done and (wanted.folder / "checkpoints" / "model").read_text() == "weights"
    assert made.is_dir() and not job(here, "other").folder.exists()
    assert [path.name for path in (here / "runs").iterdir()] == ["weak-s11"]


def test_what_differs_is_not_taken(here: Path, beside: Path) -> None:
    finish(job(beside, "one", {"train.lr": 1e-4}))
    finish(job(beside, "two", seed=12))
    finish(job(beside, "old"), version="0.0.1")
    (finish(job(beside, "three")) / "results.json").unlink()
    (finish(job(beside, "broken")) / "results.json").write_text("{")
    (finish(job(beside, "foreign")) / "results.json").write_text("[]")
    half = finish(job(beside, "half"))
    half.rename(half.with_name(f".{half.name}.part"))  # another experiment is copying it
    finish(job(here, "four"))  # its own runs are no other experiment's
    assert reuse_runs([job(here, "mine")], here) == []
    assert not job(here, "mine").folder.exists()


def test_a_run_of_another_version_is_passed_over_and_one_that_has_begun_goes_on(here: Path, beside: Path) -> None:
    old = finish(job(beside, "grpo"))
    (old / "config.toml").write_text("[train]\nsetting_of_old = 1\n")
    newer = finish(job(beside, "grpo-again"))
    assert reuse_runs([job(here, "grpo")], here) == [newer]
    begun = job(here, "begun")
    begun.folder.mkdir(parents=True)
    assert reuse_runs([begun], here) == [] and not list(begun.folder.iterdir())
