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
import torch
from typer.testing import CliRunner

from holdfast.agent.language_model import load_model
from holdfast.cli.main import app
from holdfast.evaluate.probes import open_run, per_sample, roll_out_questions
from holdfast.evaluate.probes.subject import batch_of
from holdfast.evaluate.probes.updates import update_once
from holdfast.recipe import dump, load
from holdfast.train.listener import Listener
from holdfast.train.loading import load_questions
from holdfast.train.trainer import make_trainer

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
    assert "but the group of a question has 4 rollouts" in text
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

    # The same seed gives the same numbers and the same figure; another seed other ones.
    probe(*arguments, "--out", "again")
    for kind in ("json", "svg"):
        name = f"per-sample-step-000002-seed-0.{kind}"
        assert Path("first", name).read_bytes() == Path("again", name).read_bytes()
    probe(*arguments, "--out", "again", "--seed", 5)
    assert written(Path("again"), "per-sample-step-000002-seed-5")["result"] != result


def test_the_weights_of_a_model_are_what_they_were(trained: Path) -> None:
    subject = open_run(trained, "last", [], Listener(), with_reference=True)
    assert subject.reference is not None  # the recipe has a KL to it
    model = subject.language_model.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = roll_out_questions(subject, 6, 0, Listener())
    one = per_sample(subject, first, seed=0, listener=Listener())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert one == per_sample(subject, roll_out_questions(subject, 6, 0, Listener()), seed=0, listener=Listener())


def test_the_reference_is_the_policy_the_run_started_from(trained: Path) -> None:
    subject = open_run(trained, "1", [], Listener(), with_reference=True)
    assert subject.reference is not None
    token_ids = torch.tensor([[5, 6, 7, 8]])
    mask = torch.tensor([[False, True, True, True]])
    with torch.no_grad():
        now, _ = subject.language_model.logprobs(token_ids, mask)
    start = subject.reference.logprobs(token_ids, mask)
    assert not torch.allclose(now, start)
    assert open_run(trained, "1", ["--loss.kl_coef", "0"], Listener(), with_reference=True).reference is None
    assert open_run(trained, "1", [], Listener(), with_reference=False).reference is None


def test_moments_are_the_runs_own(trained: Path) -> None:
    step = trained / "checkpoints" / "step-000001"
    settings = ["--loss.kl_coef", "0"]
    subject = open_run(trained, "1", settings, Listener(), with_reference=True, optimizer_state=True)
    config = subject.config
    batch = batch_of(subject, roll_out_questions(subject, 6, 0, Listener()).groups)
    (change,) = update_once(batch, subject, config, mean_searches=1.0, seed=4, note=pytest.fail)

    policy = load_model(config.model, step / "model", torch.device("cpu"))
    trainer = make_trainer(config, policy, subject.questions, subject.agent.retriever)
    trainer.restore(step)
    plan = trainer.learner.plan(batch, torch.Generator().manual_seed(4))
    minibatches, batch, _ = trainer.learner.old_pass(batch, plan)
    trainer.learner.step(minibatches, mean_searches=1.0)
    expected = trainer.learner.likelihood_change(batch, plan) * batch.loss_mask.sum(-1)
    assert torch.equal(change, expected)

    fresh = open_run(trained, "1", settings, Listener(), with_reference=True)
    (other,) = update_once(batch, fresh, config, mean_searches=1.0, seed=4, note=pytest.fail)
    assert not torch.allclose(other, expected, atol=1e-3)


def test_moments_by_command(probe: Probe, trained: Path) -> None:
    text = probe(trained, "--what", "ratio-tail", "--optimizer-state", "--out", ".").stdout
    found = written(Path(), "ratio-tail-step-000002-optimizer-state-seed-0")
    assert found["optimizer_state"] == str(trained / "checkpoints" / "step-000002")
    assert "seed 0, the run's optimizer" in text
    shutil.copytree(trained, "mine")
    best = Path("mine/checkpoints/best")
    shutil.copytree("mine/checkpoints/step-000002", best)
    (best / "optimizer.safetensors").unlink()
    sums = json.loads((best / "checksums.json").read_text())
    del sums["optimizer.safetensors"]
    (best / "checksums.json").write_text(json.dumps(sums))
    stderr = probe("mine", "--what", "ratio-tail", "--optimizer-state", "--checkpoint", "best", code=2).stderr
    assert "best holds a policy without its optimizer" in " ".join(stderr.split())


def test_drift_of_a_run(probe: Probe, trained: Path) -> None:
    text = probe(trained, "--what", "ratio-tail", "--checkpoint", 1, "--out", ".").stdout
    result = written(Path(), "ratio-tail-step-000001-seed-0")["result"]
    (arm,) = result["arms"]
    assert (arm["penalty"], arm["optimizer_steps"], len(arm["rollouts"])) == ("llds", 3, 24)
    shares = arm["share_below"]["all"]
    assert len(shares) == 3 and all(len(row) == len(result["epsilons"]) for row in shares)
    assert all(row == sorted(row, reverse=True) for row in shares)  # ε falls from left to right
    assert "P(∏ r < ε)" in text and "after each optimizer step" in text


@pytest.mark.parametrize("what", ["first-action", "by-searches"])
def test_probes_that_look(probe: Probe, trained: Path, what: str) -> None:
    probe(trained, "--what", what, "--out", ".", "--questions", 18)
    result = written(Path(), f"{what}-step-000002-seed-0")["result"]
    if what == "by-searches":
        assert sum(r["everyone"]["rollouts"] for r in result["rounds"]) == 72
        for found in result["rounds"]:
            assert found["everyone"]["rollouts"] == found["correct"]["rollouts"] + found["incorrect"]["rollouts"]
    else:
        assert 0 <= result["matching"] <= result["compared"]
        assert result["first_matching"]["rollouts"] == result["matching"]
        assert all(level["logprob"] < 0 for level in result["correct"])


def test_the_leak_of_a_truncated_sampler(probe: Probe, trained: Path) -> None:
    options = ("--what", "tail-leak", "--out", ".", "--questions", 18)
    text = probe(trained, *options, "--sampling.top_p", 0.8).stdout
    found = written(Path(), "tail-leak-step-000002-seed-0")["result"]
    assert found["turns"][0]["rollouts"] == found["whole"]["rollouts"] == 72
    assert sum(turn["tokens"] for turn in found["turns"]) == found["whole"]["tokens"]
    assert 0.8 <= found["whole"]["mask_mass"] < 1 and found["whole"]["tail_advantage"] is not None
    assert "advantage of the tail" in text
    assert "not truncated" in probe(trained, *options).stdout
    assert "Wrote tail-leak-step-000002-seed-0-2.json" in probe(trained, *options).stdout, "the same question again"
    assert written(Path(), "tail-leak-step-000002-seed-0")["result"] == found, "another one keeps what was there"
    assert len(list(Path().glob("*.json"))) == 2


def test_influence_of_a_run(probe: Probe, trained: Path) -> None:
    before = digests(trained)
    options = ("--what", "influence", "--out", ".", "--questions", 18)
    text = probe(trained, *options).stdout
    found = written(Path(), "influence-step-000002-seed-0")["result"]
    assert digests(trained) == before
    assert 0 < found["used"] <= found["asked"] == 18
    assert len([u for u in found["units"] if u["action"] == 0]) >= found["used"]
    assert all(u["optimizer"] != 0 for u in found["units"])
    assert "Mean cosine of two rollouts" in text
    probe(trained, *options, "--optimizer-state")
    other = written(Path(), "influence-step-000002-optimizer-state-seed-0")["result"]
    assert [u["predicted"] for u in other["units"]] == [u["predicted"] for u in found["units"]]
    assert [u["optimizer"] for u in other["units"]] != [u["optimizer"] for u in found["units"]]


def test_cases_of_a_run(probe: Probe, trained: Path) -> None:
    before = digests(trained)
    text = probe(trained, "--what", "cases", "--out", ".", "--questions", 18, "--top", 2).stdout
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
    assert f"Wrote {name}.json and {name}.svg and {name}.md" in text


def test_a_model_with_a_recipe(probe: Probe, trained: Path, home: Path) -> None:
    model = trained / "checkpoints" / "step-000002" / "model"
    recipe = home / "recipe.toml"
    probe(model, "--recipe", recipe, "--what", "ratio-tail", "--loss.kl_coef", 0)
    probe(trained, "--what", "ratio-tail", "--loss.kl_coef", 0, "--out", ".")
    as_model, as_run = (
        written(Path("probes"), "ratio-tail-model-seed-0"),
        written(Path(), "ratio-tail-step-000002-seed-0"),
    )
    assert as_model["result"] == as_run["result"]
    assert as_model["recipe"]["warm_start"]["steps"] == 0


def test_the_default_folder_is_the_runs(probe: Probe, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, "runs/mine")
    text = probe("mine", "--what", "by-searches", "--questions", 2).stdout
    folder = Path("runs/mine/probes")
    assert sorted(path.name for path in folder.iterdir()) == [
        f"by-searches-step-000002-seed-0.{kind}" for kind in ("json", "svg")
    ]
    assert f"Wrote {folder}/by-searches-step-000002-seed-0.json and" in text


def test_without_matplotlib_there_are_the_numbers(probe: Probe, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = probe(trained, "--what", "by-searches", "--questions", 2, "--out", ".").stdout
    assert "No figure is drawn: matplotlib is not installed. Run: pip install 'holdfast-rl[figures]'" in text
    assert [path.name for path in Path().iterdir()] == ["by-searches-step-000002-seed-0.json"]


# ---- what it asks


def test_policies_are_asked_the_same_and_the_recipes_questions(trained: Path) -> None:
    one = open_run(trained, "1", [], Listener(), with_reference=False)
    two = open_run(trained, "2", [], Listener(), with_reference=False)
    asked = [[e.id for e in roll_out_questions(s, 5, 3, Listener()).examples] for s in (one, two)]
    assert asked[0] == asked[1]
    assert set(asked[0]) <= {e.id for e in load_questions(one.config).train}
    assert [e.id for e in roll_out_questions(two, 5, 4, Listener()).examples] != asked[0]


def test_another_seed_is_another_episode(trained: Path) -> None:
    subject = open_run(trained, "2", [], Listener(), with_reference=False)
    said = [
        {
            e.id: [t.token_ids for t in g.trajectories]
            for rolled in [roll_out_questions(subject, 18, seed, Listener())]
            for e, g in zip(rolled.examples, rolled.groups, strict=True)
        }
        for seed in (0, 1)
    ]
    assert said[0].keys() == said[1].keys()  # all questions there are
    assert said[0] != said[1]


def test_rollouts_do_not_depend_on_how_many_others_there_are(trained: Path, heard: Any) -> None:
    subject = open_run(trained, "2", [], Listener(), with_reference=False)
    few, many = (roll_out_questions(subject, n, 0, heard) for n in (3, 15))
    assert [[t.token_ids for t in g.trajectories] for g in few.groups] == [
        [t.token_ids for t in g.trajectories] for g in many.groups[:3]
    ]
    assert heard.totals["rollouts"] == heard.done == 15


# ---- what it refuses


def test_refusals_of_a_run(probe: Probe, trained: Path, home: Path) -> None:
    def refused(*arguments: object) -> str:
        return " ".join(str(probe(*arguments, "--out", "out", code=2).stderr).split())

    what = ("--what", "per-sample")
    assert "--checkpoint 7:" in refused(trained, *what, "--checkpoint", 7)
    assert "give last, best, or a saved step (1, 2)" in refused(trained, *what, "--checkpoint", 7)
    assert "has no best checkpoint" in refused(trained, *what, "--checkpoint", "best")
    assert "--questions 99, but the recipe has 18 training questions" in refused(trained, *what, "--questions", 99)
    assert "--compare foo: there is no such penalty" in refused(trained, *what, "--compare", "none,foo")
    assert "this probe makes no update" in refused(trained, "--what", "by-searches", "--compare", "none")
    assert "this update is plain GRPO" in refused(trained, "--what", "influence", "--compare", "none")
    assert "--compare with --what cases: this update is plain GRPO" in refused(
        trained, "--what", "cases", "--compare", "none"
    )
    assert "only --what cases shows individual questions" in refused(trained, *what, "--top", 2)
    assert "--optimizer-state with --what by-searches: this probe makes no update" in refused(
        trained, "--what", "by-searches", "--optimizer-state"
    )
    assert "without an optimizer" in refused(home / "raw", *what, "--recipe", home / "recipe.toml", "--optimizer-state")
    assert "is a run and has a recipe" in refused(trained, *what, "--recipe", home / "recipe.toml")
    assert "leave --model.path out" in refused(trained, *what, "--model.path", "x")
    assert "is not a run folder" in refused("runs/nothing", *what)
    assert "To probe a model, give the recipe of its questions with --recipe" in refused("runs/nothing", *what)
    assert "is read as a model; leave it out" in refused(
        home / "raw", *what, "--recipe", home / "recipe.toml", "--checkpoint", "last"
    )
    assert not Path("out", "per-sample-step-000002-seed-0.json").exists()


def test_a_run_without_a_checkpoint(probe: Probe, trained: Path) -> None:
    Path("begun").mkdir()
    shutil.copy(trained / "config.toml", "begun")
    for what in ("ratio-tail", "cases"):
        stderr = probe("begun", "--what", what, code=2).stderr
        assert "begun has no complete checkpoint; let the run reach one (checkpoint.every) or finish" in stderr


def test_a_damaged_checkpoint(probe: Probe, trained: Path) -> None:
    shutil.copytree(trained, "hurt")
    Path("hurt/checkpoints/step-000001/model/config.json").write_text("{}")
    stderr = " ".join(probe("hurt", "--what", "ratio-tail", "--checkpoint", 1, code=2).stderr.split())
    assert "step-000001 cannot be used: model/config.json does not match its checksum" in stderr


@pytest.mark.parametrize("what", ["per-sample", "first-action", "ratio-tail", "influence", "cases"])
def test_a_policy_that_is_never_right(probe: Probe, home: Path, what: str) -> None:
    recipe = home / "recipe.toml"
    stderr = probe(home / "raw", "--recipe", recipe, "--what", what, "--loss.kl_coef", 0, code=2).stderr
    assert "0 of 24 rollouts on 6 questions are correct" in " ".join(stderr.split())


def test_likelihoods_need_nothing_right(probe: Probe, home: Path) -> None:
    text = probe(home / "raw", "--recipe", home / "recipe.toml", "--what", "by-searches").stdout
    (line,) = (line for line in text.splitlines() if line.startswith("0  "))
    assert line.split()[2:] == ["(24)", "–", line.split()[1], "(24)"]
