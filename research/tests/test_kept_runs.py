"""`pages.kept_runs` keeps the runs behind a page, and puts them back."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import tomli_w

from holdfast.base.errors import ConfigError
from holdfast.recipe import dump, load
from holdfast_research.experiments import find
from holdfast_research.jobs import refuse_other_runs
from holdfast_research.pages import curves, kept_runs
from holdfast_research.plan import Plan, finished
from holdfast_research.results import results_of

EXPERIMENT = find("death-spiral")
PLAN = Plan(experiment=EXPERIMENT, arms=(EXPERIMENT.arm("GRPO"),), seeds=(11, 12, 13), settings={})
SCORES = {"em": 0.25, "em_greedy": 0.5}
DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Plain GRPO on three seeds, two of which are finished; no policy in the cache, whatever this machine has."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "no-cache"))
    out = tmp_path / "elsewhere" / "lab"
    PLAN.save(out)
    for job in PLAN.jobs(out):
        job.folder.mkdir(parents=True)
        (job.folder / "config.toml").write_text(dump(job.config))
        row = {"time": 1.5e9, "reward/mean": 1 / 3, "entropy/mean": 1.23456789}
        (job.folder / "metrics.jsonl").write_text("".join(json.dumps({"step": i, **row}) + "\n" for i in range(1, 9)))
        (job.folder / "checkpoints").mkdir()
        if job.seed != 13:
            (job.folder / "results.json").write_text(json.dumps({"before": SCORES, "after": SCORES, "seconds": 1.0}))
    return out


def test_finished_runs_come_back_as_runs_of_the_experiment(folder: Path, tmp_path: Path) -> None:
    kept, back = tmp_path / "kept", tmp_path / "back"
    assert kept_runs.keep(folder, kept) == ["grpo-s11", "grpo-s12"]
    assert kept_runs.restore("death-spiral", back, kept) == ["grpo-s11", "grpo-s12"]

    jobs = PLAN.jobs(back)
    refuse_other_runs(jobs)
    runs = finished(jobs)["GRPO"]
    assert [run.seed for run in runs] == [11, 12]
    assert runs[0].series("reward/mean")[1] == [0.33333] * 8
    assert runs[0].results["after"] == SCORES
    assert not (back / "runs" / "grpo-s11" / "checkpoints").exists()
    # What is kept names no machine.
    assert load(back / "runs" / "grpo-s11" / "config.toml").run.dir == "runs/lab/death-spiral/runs"
    for path in back.rglob("*"):
        assert path.is_dir() or "elsewhere" not in path.read_text()


def test_a_run_kept_in_older_words_comes_back_in_todays(tmp_path: Path) -> None:
    """As the runs of SAPO in the repository were written: every setting of every penalty, and "paper"."""
    older = tomllib.loads(dump(load(overrides=["--loss.penalty.name=sapo"])))
    older["loss"]["penalty"] |= {"gate": "action", "threshold": 0.0, "answer_weight": 1.0, "normalizer": "paper"}
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps(older))
    with pytest.raises(ConfigError, match="'preserved'"):
        load(path)
    path.write_text(kept_runs.as_now(path.read_text()))
    assert load(path) == load(overrides=["--loss.penalty.name=sapo", "--loss.penalty.normalizer=preserved"])


def test_a_run_of_an_older_version_is_kept(folder: Path, tmp_path: Path) -> None:
    path = folder / "runs" / "grpo-s11" / "config.toml"
    older = tomllib.loads(path.read_text())
    older["train"]["per_sample_every"] = 0  # a setting that is gone
    path.write_text(tomli_w.dumps(older))
    with pytest.raises(ConfigError, match="per_sample_every"):
        load(path)
    assert kept_runs.keep(folder, tmp_path / "kept") == ["grpo-s11", "grpo-s12"]
    kept_runs.restore("death-spiral", tmp_path / "back", tmp_path / "kept")
    refuse_other_runs(PLAN.jobs(tmp_path / "back"))


def test_results_kept_in_older_words_say_who_made_them() -> None:
    older = json.loads(kept_runs.results_as_now('{"holdfast": "0.1.0", "seconds": 2}'))
    assert older == {"made_by": {"holdfast": "0.1.0"}, "seconds": 2}
    assert json.loads(kept_runs.results_as_now(json.dumps(older))) == older


def test_the_same_runs_are_the_same_bytes_and_gone_ones_go(folder: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    kept_runs.keep(folder, first)
    kept_runs.restore("death-spiral", tmp_path / "back", first)
    kept_runs.keep(tmp_path / "back", second)
    files = [path.relative_to(first) for path in first.rglob("*") if path.is_file()]
    assert len(files) == 2 and all((first / f).read_bytes() == (second / f).read_bytes() for f in files)
    (folder / "runs" / "grpo-s12" / "results.json").unlink()
    metrics = folder / "runs" / "grpo-s11" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("1.23456789", "1.5"))  # made again
    kept_runs.keep(folder, first)
    after = kept_runs.packed("death-spiral", first)
    assert list(after) == ["runs/grpo-s11"] and "1.5" in after["runs/grpo-s11"]["metrics.jsonl"]


@pytest.mark.grid(4)
@pytest.mark.parametrize("name", sorted(path.parent.name for path in kept_runs.KEPT.glob("*/plan.json")))
def test_the_page_in_the_documentation_is_that_of_the_kept_runs(name: str, tmp_path: Path) -> None:
    kept_runs.restore(name, tmp_path)
    plan = kept_runs.load_plan(tmp_path)
    jobs = plan.jobs(tmp_path)
    refuse_other_runs(jobs)
    runs = finished(jobs)
    results = results_of(plan, runs, tmp_path)
    page = curves.text_of(results, curves.picture_line(plan.experiment, runs))
    if name in curves.SMALL:
        assert page.strip() in curves.SMALL_PAGE.read_text(encoding="utf-8")
    else:
        assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == page
        drawn = curves.picture_of(plan.experiment, runs)
        assert (DOCS / "figures" / f"{name}.svg").read_text(encoding="utf-8") == drawn
    assert (kept_runs.KEPT / name / "runs.csv").read_text(encoding="utf-8") == curves.runs_as_csv(results)
