"""`holdfast probe` on a run and on a model of seconds: what it writes, that it can be made again, what it refuses."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.recipe import dump, load

Probe = Callable[..., Any]


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Probe:
    """probe("runs/x", "--what", …): the command's result, in an empty folder; nothing it writes lands elsewhere."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, code: int = 0) -> Any:
        result = CliRunner().invoke(app, ["probe", *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result

    return run


def written(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    ElementTree.parse(folder / f"{name}.svg")
    return found


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# ---- what it writes


def test_per_sample_of_a_run(probe: Probe, trained: Path, tmp_path: Path) -> None:
    before = digests(trained)
    arguments = (trained, "--what", "per-sample", "--compare", "none,llds", "--train.optimizer_steps_per_rollout", 9)
    text = probe(*arguments, "--out", "first").stdout
    found = written(Path("first"), "per-sample-step-000002-seed-0")
    assert digests(trained) == before
    result = found["result"]
    assert [arm["penalty"] for arm in result["arms"]] == ["none", "llds"]
    assert result["asked"] == found["questions"] == 6
    assert result["optimizer_steps"] == 4
    told = "optimizer_steps_per_rollout = 9, but the group of a question has 4 rollouts"
    assert " ".join(text.split()).count(told) == 1
    plain, llds = result["arms"]
    assert plain["questions_used"] == len(plain["questions"]) > 0
    assert plain["displaced"] == sum(q["displacement"] < 0 for q in plain["questions"])
    (line,) = (line for line in text.splitlines() if line.startswith("none "))
    assert line.split()[1:4] == [str(plain["displaced"]), "of", str(plain["questions_used"])]
    assert [[r["tokens"] for r in q["responses"]] for q in plain["questions"]] == [
        [r["tokens"] for r in q["responses"]] for q in llds["questions"]
    ]
    assert plain["questions"] != llds["questions"]
    changes = [r["change"] for q in plain["questions"] for r in q["responses"]]
    assert len(set(changes)) > 2

    config = load(trained / "config.toml", ["--train.optimizer_steps_per_rollout", "9"])
    assert found["config_hash"] == hashlib.sha256(dump(config).encode()).hexdigest()[:16]
    assert found["recipe"] == config.model_dump(mode="json")
    assert found["versions"]["torch"] == version("torch")
    assert found["of"] == str(trained / "checkpoints" / "step-000002" / "model")

    # The same seed gives the same numbers and the same figure.
    probe(*arguments, "--out", "again")
    for kind in ("json", "svg"):
        name = f"per-sample-step-000002-seed-0.{kind}"
        assert Path("first", name).read_bytes() == Path("again", name).read_bytes()


def test_moments_by_command(probe: Probe, trained: Path) -> None:
    text = probe(trained, "--what", "per-sample", "--optimizer-state", "--out", ".").stdout
    found = written(Path(), "per-sample-step-000002-optimizer-state-seed-0")
    assert found["optimizer_state"] == str(trained / "checkpoints" / "step-000002")
    assert "seed 0, the run's optimizer" in text
    shutil.copytree(trained, "mine")
    best = Path("mine/checkpoints/best")
    shutil.copytree("mine/checkpoints/step-000002", best)
    (best / "optimizer.safetensors").unlink()
    sums = json.loads((best / "checksums.json").read_text())
    del sums["optimizer.safetensors"]
    (best / "checksums.json").write_text(json.dumps(sums))
    stderr = probe("mine", "--what", "per-sample", "--optimizer-state", "--checkpoint", "best", code=2).stderr
    assert "best holds a policy without its optimizer" in " ".join(stderr.split())


def test_the_leak_of_a_truncated_sampler(probe: Probe, trained: Path) -> None:
    options = ("--what", "tail-leak", "--out", ".", "--questions", 18)
    text = probe(trained, *options, "--sampling.top_p", 0.8).stdout
    found = written(Path(), "tail-leak-step-000002-seed-0")["result"]
    assert found["turns"][0]["rollouts"] == found["whole"]["rollouts"] == 72
    assert sum(turn["tokens"] for turn in found["turns"]) == found["whole"]["tokens"]
    assert 0.8 <= found["whole"]["mask_mass"] < 1 and found["whole"]["tail_advantage"] is not None
    assert "advantage of the tail" in text
    whole = probe(trained, *options).stdout
    assert "not truncated, so nothing can leak" in " ".join(whole.split())
    assert any(line.endswith("–") for line in whole.splitlines())
    assert "Wrote tail-leak-step-000002-seed-0-2.json" in whole, "another question keeps what was there"
    assert written(Path(), "tail-leak-step-000002-seed-0")["result"] == found
    second = written(Path(), "tail-leak-step-000002-seed-0-2")["result"]["whole"]
    assert (second["mask_mass"], second["tail_advantage"]) == (1.0, None)


def test_the_default_folder_is_the_runs_and_without_matplotlib_there_are_the_numbers(
    probe: Probe, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained, "runs/mine")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = probe("mine", "--what", "tail-leak", "--questions", 6).stdout
    assert "No figure is drawn: matplotlib is not installed. Run: pip install 'holdfast-rl[figures]'" in text
    assert [path.name for path in Path("runs/mine/probes").iterdir()] == ["tail-leak-step-000002-seed-0.json"]


def test_a_model_with_a_recipe(probe: Probe, trained: Path, home: Path) -> None:
    model = trained / "checkpoints" / "step-000002" / "model"
    recipe = home / "recipe.toml"
    probe(model, "--recipe", recipe, "--what", "per-sample", "--loss.kl_coef", 0)
    probe(trained, "--what", "per-sample", "--loss.kl_coef", 0, "--out", ".")
    as_model, as_run = (
        written(Path("probes"), "per-sample-model-seed-0"),
        written(Path(), "per-sample-step-000002-seed-0"),
    )
    assert as_model["result"] == as_run["result"]
    assert as_model["recipe"]["warm_start"]["steps"] == 0


# ---- what it refuses


def test_refusals_of_a_run(probe: Probe, trained: Path, home: Path) -> None:
    def refused(*arguments: object) -> str:
        return " ".join(str(probe(*arguments, "--out", "out", code=2).stderr).split())

    what = ("--what", "per-sample")
    assert "has no checkpoint 7. Give last, best, a saved step (1, 2)" in refused(trained, *what, "--checkpoint", 7)
    assert "has no checkpoint best" in refused(trained, *what, "--checkpoint", "best")
    assert "--questions 99, but the recipe has 18 training questions" in refused(trained, *what, "--questions", 99)
    assert "--compare foo: there is no such penalty" in refused(trained, *what, "--compare", "none,foo")
    assert "this probe makes no update" in refused(trained, "--what", "tail-leak", "--compare", "none")
    assert "--optimizer-state with --what tail-leak: this probe makes no update" in refused(
        trained, "--what", "tail-leak", "--optimizer-state"
    )
    assert "without an optimizer" in refused(home / "raw", *what, "--recipe", home / "recipe.toml", "--optimizer-state")
    assert "is a run and has a recipe" in refused(trained, *what, "--recipe", home / "recipe.toml")
    assert "leave --model.path out" in refused(trained, *what, "--model.path", "x")
    assert "is not a run folder" in refused("runs/nothing", *what)
    assert "to probe a model, give the recipe of its questions with --recipe" in refused("runs/nothing", *what)
    assert "is read as a model; leave it out" in refused(
        home / "raw", *what, "--recipe", home / "recipe.toml", "--checkpoint", "last"
    )
    assert not Path("out", "per-sample-step-000002-seed-0.json").exists()


def test_a_policy_that_is_never_right(probe: Probe, home: Path) -> None:
    arguments = (home / "raw", "--recipe", home / "recipe.toml", "--loss.kl_coef", 0)
    stderr = " ".join(probe(*arguments, "--what", "per-sample", code=2).stderr.split())
    assert "0 of 24 rollouts on 6 questions are correct" in stderr
    stderr = " ".join(probe(*arguments, "--what", "tail-leak", code=2).stderr.split())
    assert "every advantage is 0. Raise --questions" in stderr
