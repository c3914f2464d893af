"""`holdfast study-probe` on a run and on a model of seconds: what it writes, and what it refuses."""

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

from holdfast.recipe import dump, load

Probe = Callable[..., str]


@pytest.fixture
def probe(holdfast: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Probe:
    """probe("runs/x", "--what", …): what the command prints, on one line, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, code=0: holdfast("study-probe", *map(str, arguments), code=code)


def written(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    ElementTree.parse(folder / f"{name}.svg")
    return found


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# ---- what it writes


def test_per_sample_of_a_run(probe: Probe, trained: Path) -> None:
    before = digests(trained)
    arguments = (trained, "--what", "per-sample", "--compare", "none,llds", "--train.optimizer_steps_per_rollout", 9)
    text = probe(*arguments, "--out", "first")
    found = written(Path("first"), "per-sample-step-000002-seed-0")
    assert digests(trained) == before
    result = found["result"]
    assert [arm["penalty"] for arm in result["arms"]] == ["none", "llds"]
    assert result["asked"] == found["questions"] == 6
    assert result["optimizer_steps"] == 4
    told = "optimizer_steps_per_rollout = 9, but the group of a question has 4 rollouts"
    assert text.count(told) == 1
    plain, llds = result["arms"]
    assert plain["questions_used"] == len(plain["questions"]) > 0
    assert plain["displaced"] == sum(q["displacement"] < 0 for q in plain["questions"])
    assert f" none {plain['displaced']} of {plain['questions_used']} (" in text
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
    text = probe(trained, "--what", "per-sample", "--optimizer-state", "--out", ".")
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
    refused = probe("mine", "--what", "per-sample", "--optimizer-state", "--checkpoint", "best", code=2)
    assert "best holds a policy without its optimizer" in refused


def test_the_leak_of_a_truncated_sampler(probe: Probe, trained: Path) -> None:
    options = ("--what", "tail-leak", "--out", ".", "--questions", 18)
    text = probe(trained, *options, "--sampling.top_p", 0.8)
    found = written(Path(), "tail-leak-step-000002-seed-0")["result"]
    assert found["turns"][0]["rollouts"] == found["whole"]["rollouts"] == 72
    assert sum(turn["tokens"] for turn in found["turns"]) == found["whole"]["tokens"]
    assert 0.8 <= found["whole"]["mask_mass"] < 1 and found["whole"]["tail_advantage"] is not None
    assert "advantage of the tail" in text
    whole = probe(trained, *options)
    assert "not truncated, so nothing can leak" in whole
    assert " – " in whole
    assert "Wrote tail-leak-step-000002-seed-0-2.json" in whole, "another question keeps what was there"
    assert written(Path(), "tail-leak-step-000002-seed-0")["result"] == found
    second = written(Path(), "tail-leak-step-000002-seed-0-2")["result"]["whole"]
    assert (second["mask_mass"], second["tail_advantage"]) == (1.0, None)


def test_the_default_folder_is_the_runs_and_without_matplotlib_there_are_the_numbers(
    probe: Probe, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained, "runs/mine")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = probe("mine", "--what", "tail-leak", "--questions", 6)
    assert "No figure is drawn: matplotlib is not installed. Run: pip install 'holdfast-rl[figures]'" in text
    assert [path.name for path in Path("runs/mine/probes").iterdir()] == ["tail-leak-step-000002-seed-0.json"]


def test_the_runs_optimizer_moves_otherwise(probe: Probe, trained: Path) -> None:
    options = (trained, "--what", "ratio-tail", "--out", ".", "--compare", "none,llds")
    assert "seed 0, the run's optimizer" in probe(*options, "--optimizer-state")
    found = written(Path(), "ratio-tail-step-000002-optimizer-state-seed-0")
    assert found["optimizer_state"] == str(trained / "checkpoints" / "step-000002")
    assert [arm["penalty"] for arm in found["result"]["arms"]] == ["none", "llds"]
    assert "P(∏ r < ε)" in probe(*options)
    fresh = written(Path(), "ratio-tail-step-000002-seed-0")
    assert fresh["optimizer_state"] is None and fresh["result"] != found["result"]
    arm = fresh["result"]["arms"][1]
    assert (arm["optimizer_steps"], len(arm["rollouts"])) == (3, 24)
    shares = arm["share_below"]["all"]
    assert len(shares) == 3 and all(row == sorted(row, reverse=True) for row in shares)  # ε falls from left to right


def test_cases_of_a_run(probe: Probe, trained: Path) -> None:
    before = digests(trained)
    text = probe(trained, "--what", "cases", "--out", ".", "--questions", 18, "--top", 2)
    name = "cases-step-000002-seed-0"
    found = written(Path(), name)["result"]
    assert digests(trained) == before
    assert len(found["cases"]) == 2 <= found["used"] <= found["asked"] == 18
    for case in found["cases"]:
        right, wrong = case["correct"], case["incorrect"]
        assert right["answer"] in case["golden_answers"] and wrong["answer"] not in case["golden_answers"]
        for rollout in (right, wrong):
            tokens = [token for turn in rollout["turns"] for token in turn["tokens"]]
            assert rollout["tokens"] == len(tokens)
            assert rollout["change"] == pytest.approx(sum(t["after"] - t["before"] for t in tokens))
            assert sum(t["push"] for t in tokens) == pytest.approx(case["push"], rel=1e-3, abs=1e-5)
    page = Path(f"{name}.md").read_text()
    assert page.count("\n## ") == 2 and found["cases"][0]["question"] in page
    assert f"Wrote {name}.json and {name}.svg Wrote {name}.md" in text


def test_a_model_with_a_recipe(probe: Probe, trained: Path, home: Path, recipe_file: Path) -> None:
    model = trained / "checkpoints" / "step-000002" / "model"
    probe(model, "--recipe", recipe_file, "--what", "ratio-tail", "--loss.kl_coef", 0)
    probe(trained, "--what", "ratio-tail", "--loss.kl_coef", 0, "--out", ".")
    as_model = written(Path("probes"), "ratio-tail-model-seed-0")
    as_run = written(Path(), "ratio-tail-step-000002-seed-0")
    assert as_model["result"] == as_run["result"]
    assert as_model["recipe"]["warm_start"]["steps"] == 0


# ---- what it refuses


def test_refusals_of_a_run(probe: Probe, trained: Path, home: Path, recipe_file: Path) -> None:
    def refused(*arguments: object) -> str:
        return probe(*arguments, "--out", "out", code=2)

    what = ("--what", "per-sample")
    assert "has no checkpoint 7. Give last, best, a saved step (1, 2)" in refused(trained, *what, "--checkpoint", 7)
    assert "has no checkpoint best" in refused(trained, *what, "--checkpoint", "best")
    assert "--questions 99, but the recipe has 18 training questions" in refused(trained, *what, "--questions", 99)
    assert "--compare foo: there is no such penalty" in refused(trained, *what, "--compare", "none,foo")
    assert "without an optimizer" in refused(home / "raw", *what, "--recipe", recipe_file, "--optimizer-state")
    assert "is a run and has a recipe" in refused(trained, *what, "--recipe", recipe_file)
    assert "leave --model.path out" in refused(trained, *what, "--model.path", "x")
    assert "is not a run folder" in refused("runs/nothing", *what)
    assert "to probe a model, give the recipe of its questions with --recipe" in refused("runs/nothing", *what)
    assert "is read as a model; leave it out" in refused(
        home / "raw", *what, "--recipe", recipe_file, "--checkpoint", "last"
    )
    assert not Path("out", "per-sample-step-000002-seed-0.json").exists()


def test_options_that_a_probe_does_not_have(probe: Probe, trained: Path) -> None:
    def refused(what: str, *options: object) -> str:
        return probe(trained, "--what", what, *options, "--out", "out", code=2)

    for what in ("tail-leak", "by-searches"):
        assert f"--compare with --what {what}: this probe makes no update" in refused(what, "--compare", "none")
        assert f"--optimizer-state with --what {what}: this probe makes no update" in refused(what, "--optimizer-state")
    for what in ("influence", "cases"):
        assert f"--compare with --what {what}: this update is plain GRPO" in refused(what, "--compare", "none")
    assert "only --what cases shows individual questions" in refused("ratio-tail", "--top", 2)
    assert not list(Path().rglob("*.json"))


def test_a_run_without_a_checkpoint(probe: Probe, trained: Path) -> None:
    Path("begun").mkdir()
    shutil.copy(trained / "config.toml", "begun")
    text = probe("begun", "--what", "ratio-tail", code=2)
    assert "begun has no complete checkpoint; let the run reach one (checkpoint.every) or finish" in text


@pytest.mark.parametrize("what", ["per-sample", "tail-leak", "first-action", "ratio-tail", "cases"])
def test_a_policy_that_is_never_right(probe: Probe, home: Path, recipe_file: Path, what: str) -> None:
    text = probe(home / "raw", "--recipe", recipe_file, "--what", what, "--loss.kl_coef", 0, code=2)
    why = "every advantage is 0" if what == "tail-leak" else "0 of 24 rollouts on 6 questions are correct"
    assert why in text


# ---- code that a file names


@pytest.fixture
def coded(tmp_path: Path, recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """coded("my.toml"): the recipe with a part of the reward in a file, which leaves a mark when it is imported."""
    monkeypatch.syspath_prepend(tmp_path)
    code = "from pathlib import Path\nPath('it ran').touch()\ndef brevity(trajectory, golden_answers): return 1.0\n"
    (tmp_path / "code_of_a_file.py").write_text(code)

    def write(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump(load(recipe_file, ['--reward.custom="code_of_a_file:brevity" = 0.2'])))
        return path

    yield write
    sys.modules.pop("code_of_a_file", None)


def test_a_recipe_says_which_code_it_runs(probe: Probe, coded: Callable[[str], Path], home: Path) -> None:
    text = probe(home / "raw", "--recipe", coded("my.toml"), "--what", "first-action", code=2)
    assert "this recipe runs code:" in text and "code_of_a_file.py (reward.custom)" in text and "are correct" in text


def test_a_run_folder_runs_code_only_if_allowed(probe: Probe, coded: Callable[[str], Path]) -> None:
    run = coded("theirs/config.toml").parent
    text = probe(run, "--what", "per-sample", code=2)
    assert "theirs/config.toml names code: reward.custom runs code_of_a_file:brevity" in text
    assert "--trust-code" in text and not Path("it ran").exists()
    assert "has no complete checkpoint" in probe(run, "--what", "per-sample", "--trust-code", code=2)
