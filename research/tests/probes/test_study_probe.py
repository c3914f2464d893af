"""`holdfast study-probe` on a run and on a model of seconds: what it writes, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.evaluate.probes.test_probe_cli import digests, written

Probe = Callable[..., str]


@pytest.fixture
def probe(holdfast: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Probe:
    """probe("runs/x", "--what", …): what the command prints, on one line, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, code=0: holdfast("study-probe", *map(str, arguments), code=code)


# ---- what it writes


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


def test_a_model_with_a_recipe(probe: Probe, trained: Path, home: Path) -> None:
    model = trained / "checkpoints" / "step-000002" / "model"
    probe(model, "--recipe", home / "recipe.toml", "--what", "ratio-tail", "--loss.kl_coef", 0)
    probe(trained, "--what", "ratio-tail", "--loss.kl_coef", 0, "--out", ".")
    as_model = written(Path("probes"), "ratio-tail-model-seed-0")
    as_run = written(Path(), "ratio-tail-step-000002-seed-0")
    assert as_model["result"] == as_run["result"]
    assert as_model["recipe"]["warm_start"]["steps"] == 0


# ---- what it refuses


def test_refusals(probe: Probe, trained: Path) -> None:
    def refused(what: str, *options: object) -> str:
        return probe(trained, "--what", what, *options, "--out", "out", code=2)

    assert "by-searches: this probe makes no update" in refused("by-searches", "--compare", "none")
    assert "by-searches: this probe makes no update" in refused("by-searches", "--optimizer-state")
    for what in ("influence", "cases"):
        assert f"--compare with --what {what}: this update is plain GRPO" in refused(what, "--compare", "none")
    assert "only --what cases shows individual questions" in refused("ratio-tail", "--top", 2)
    assert "--compare foo: there is no such penalty" in refused("ratio-tail", "--compare", "none,foo")
    assert "holdfast probe" in probe("--help") and not list(Path().rglob("*.json"))


def test_a_run_without_a_checkpoint(probe: Probe, trained: Path) -> None:
    Path("begun").mkdir()
    shutil.copy(trained / "config.toml", "begun")
    text = probe("begun", "--what", "ratio-tail", code=2)
    assert "begun has no complete checkpoint; let the run reach one (checkpoint.every) or finish" in text


@pytest.mark.parametrize("what", ["first-action", "ratio-tail", "cases"])
def test_a_policy_that_is_never_right(probe: Probe, home: Path, what: str) -> None:
    recipe = home / "recipe.toml"
    text = probe(home / "raw", "--recipe", recipe, "--what", what, "--loss.kl_coef", 0, code=2)
    assert "0 of 24 rollouts on 6 questions are correct" in text
