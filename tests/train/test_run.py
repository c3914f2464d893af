"""Whole runs in seconds: what they write, who is told, and runs in which something is off."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from holdfast import __version__
from holdfast.cli.main import app
from holdfast.diagnose.log import glossary_entry
from holdfast.diagnose.readers import read_log
from holdfast.evaluate.folder import OVER_TRAINING
from holdfast.model.checkpoint import find_damage
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import load
from holdfast.tasks import machine
from holdfast.tasks.machine import choose_threads, fastest_threads
from holdfast.tasks.opening import load_agent
from holdfast.train import run
from holdfast.train.evaluate import Evaluator
from holdfast.train.listener import Listener, StepResult
from holdfast.train.run import resume, train

from .whole_runs import EVERYTHING, Recipe, comparable, weights_of


def test_the_run_folder(whole: Path, recipe: Recipe) -> None:
    assert {p.name for p in whole.iterdir()} == {
        "config.toml",
        "metrics.jsonl",
        "trajectories.jsonl",
        "displacement.jsonl",
        "findings.json",
        "report.html",
        "checkpoints",
        "answers.jsonl",
        "results.json",
    }
    assert load(whole / "config.toml") == recipe(EVERYTHING)
    assert {p.name for p in (whole / "checkpoints").iterdir()} == {"best", "step-000002", "step-000004"}
    assert all(find_damage(p) is None for p in (whole / "checkpoints").iterdir())


def test_the_answers_to_each_question_give_the_scores(whole: Path, recipe: Recipe) -> None:
    rows = [json.loads(line) for line in (whole / "answers.jsonl").read_text().splitlines()]
    results = json.loads((whole / "results.json").read_text())
    assert len(rows) == results["questions"] == len({row["id"] for row in rows})
    for name, key in (("sampled", "em"), ("greedy", "em_greedy")):
        assert mean(em for row in rows for em in row[f"em_{name}"]) == pytest.approx(results["after"][key])
    for name in ("em", "em_greedy"):
        low, high = results["intervals"][name]
        assert low <= results["after"][name] <= high
        low, high = results["intervals"][f"{name}_change"]
        assert low <= results["after"][name] - results["before"][name] <= high
    assert {len(row["sampled"]) for row in rows} == {recipe(EVERYTHING).eval.samples}
    assert {len(row["greedy"]) for row in rows} == {1}


def test_the_metrics(whole: Path) -> None:
    rows = comparable(whole)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert ["eval/em" in row for row in rows] == [True, False, True, False, True]
    assert set(rows[0]) == {"step", "eval/em", "eval/f1", "eval/em_greedy", "eval/f1_greedy", "eval/searches"}
    assert all(glossary_entry(name) for row in rows for name in row if name != "step")
    for step, row in enumerate(rows[1:], start=1):
        assert 0 <= row["rollout/repetition"] < 1
        assert row["penalty/noise_floor"] == 0.0 and row["optimizer_steps_per_rollout"] == 3
        assert row["lr"] == pytest.approx(3e-3 * min(1, step / 4))  # three steps of warm-up
        assert row["loss/kl"] >= 0 and abs(row["sampler/logprob_gap"]) < 1e-4
        assert ("displacement/rollouts" in row) == (step % 2 == 1)  # every second one, the first among them
    assert all(row["grad/norm"] > 0 for row in rows[2:])
    assert rows[1]["loss/kl"] < rows[4]["loss/kl"]  # the policy leaves its reference


def test_the_trajectories(whole: Path) -> None:
    rows = [json.loads(line) for line in (whole / "trajectories.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [step for step in range(1, 5) for _ in range(4)]
    first = rows[0]
    assert first["id"].startswith("world/train/") and first["question"].endswith("?") and first["golden_answers"]
    keys = {"text", "observation", "hits"}
    for row in rows:  # displacement is measured at every second step, the first among them
        for turn in row["turns"]:
            assert set(turn) - {"query"} == (keys | {"token_chars", "token_changes"} if row["step"] % 2 else keys)
            if row["step"] % 2:
                assert sum(turn["token_chars"]) == len(turn["text"])
                assert len(turn["token_chars"]) == len(turn["token_changes"])
    assert any(change for row in rows for turn in row["turns"] for change in turn.get("token_changes", ()))
    assert first["reward"] == pytest.approx(
        first["reward_parts"]["em"] + first["reward_parts"]["f1"] + 0.5 * first["reward_parts"]["format"]
    )


def test_the_results(whole: Path) -> None:
    results = json.loads((whole / "results.json").read_text())
    assert (results["split"], results["questions"], results["steps"]) == ("test", 5, 4)
    assert results["made_by"]["holdfast"] == __version__
    assert set(results["before"]) == set(results["after"]) == {"em", "f1", "em_greedy", "f1_greedy", "searches"}
    assert results["verdict"].startswith("Too few steps to judge.") and results["seconds"] > 0
    parts, observation, is_result = results["samples"][0]["turns"][0]
    assert len(results["samples"]) == 3 and isinstance(parts, list) and isinstance(observation, str) and not is_result


def test_the_test_questions_are_read_at_the_end_alone(
    recipe: Recipe, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, int]] = []
    evaluate = Evaluator.__call__

    def spy(self: Evaluator, examples: Any, *progress: Any) -> Any:
        read.append((examples[0].split, len(told.steps)))
        return evaluate(self, examples, *progress)

    monkeypatch.setattr(Evaluator, "__call__", spy)
    train(recipe({"eval.every": 1, "train.steps": 1}), tmp_path / "run", listener=told)
    assert read == [("dev", 0), ("dev", 1), ("test", 2), ("test", 2)]  # after, and before
    resume(tmp_path / "run")
    assert len(read) == 4


# ---- the agent of a run


def test_the_agent_of_a_run_answers(whole: Path) -> None:
    last, best = load_agent(whole), load_agent(whole, "best")
    newest = weights_of(whole)
    assert torch.equal(last.policy.model.state_dict()["model.norm.weight"], newest["model.norm.weight"])
    assert not last.policy.model.training and best.policy.model is not last.policy.model
    assert (last.policy.temperature, last.policy.top_p, last.policy.top_k, last.policy.greedy) == (0.9, 1.0, 0, True)
    assert last.ask("Who?").turns == last.ask("Who?", seed=1).turns
    assert not load_agent(whole, greedy=False).policy.greedy
    assert last.retriever.search(["mentor"], 1)[0] and last.protocol.max_turns == 3


# ---- runs in which something is off


@pytest.mark.usefixtures("told_what_to_say")
def test_a_run_without_contrast_is_told_of_and_ends(recipe: Recipe, tmp_path: Path, told: Any) -> None:
    """Nothing is right, so all rewards are equal: advantages and gradients are exactly 0, and somebody should know."""
    config = recipe({"reward": {"em": 1.0}, "train.steps": 6, "train.weight_decay": 0.0})
    train(config, tmp_path / "run", listener=told)
    rows = comparable(tmp_path / "run")
    assert all(row["rollout/mixed_group_fraction"] == 0 and row["grad/norm"] == 0 for row in rows)
    assert all(row["penalty/active_fraction"] == 0 for row in rows)
    assert ("GRP001", 1) in [(alarm.code, alarm.step) for alarm in told.alarms]
    assert "PEN001" not in [alarm.code for alarm in told.alarms]  # with nothing to learn, nothing drifts


# ---- the number of CPU threads


Speed = Callable[[int], float]


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Speed], None]:
    """Makes a pass take as many seconds as a function of the threads says."""

    def be(seconds: Speed) -> None:
        monkeypatch.setattr(machine, "_median_seconds", lambda _: seconds(torch.get_num_threads()))

    return be


@pytest.mark.parametrize(
    ("most", "seconds", "tried", "best"),
    [
        (1, lambda n: 1 / n, [1], 1),
        (8, lambda n: 1 / n, [1, 2, 4, 8], 8),
        (6, lambda n: 1 / n, [1, 2, 4, 6], 6),
        (8, lambda n: max(1 / n, 0.5), [1, 2, 4], 2),  # four bring no more than two
        (8, lambda n: 1 if n == 1 else 17, [1, 2], 1),  # another program has the other cores
    ],
)
def test_as_many_threads_as_make_a_pass_faster(
    language_model: LanguageModel,
    speed: Callable[[Speed], None],
    most: int,
    seconds: Speed,
    tried: list[int],
    best: int,
) -> None:
    torch.set_num_threads(most)  # the fixture of this folder puts back what was
    speed(seconds)
    assert list(fastest_threads(language_model)) == tried
    assert torch.get_num_threads() == best


@pytest.mark.parametrize(
    ("changes", "measured"),
    [
        ({"run.threads": 0, "model.path": "some/model"}, True),
        ({"run.threads": 0}, False),
        ({"run.threads": 3, "model.path": "some/model"}, False),
    ],
)
def test_measured_only_where_the_recipe_leaves_it_open(
    language_model: LanguageModel,
    recipe: Recipe,
    speed: Callable[[Speed], None],
    changes: dict[str, Any],
    measured: bool,
) -> None:
    torch.set_num_threads(2)
    speed(lambda n: 1.0)
    said = choose_threads(language_model, recipe(changes))
    assert (said is not None) is measured
    assert torch.get_num_threads() == (1 if measured else 2)
    if said is not None:
        assert "CPU threads: 1" in said and "run.threads" in said


def test_a_resumed_run_keeps_its_threads(
    recipe: Recipe, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise sums would be rounded differently, and its metrics would drift away."""

    class StopAtTwo(Listener):
        def step(self, result: StepResult) -> None:
            if result.step == 2:
                raise KeyboardInterrupt

    config = recipe({"train.steps": 3, "checkpoint.every": 1, "run.threads": 0})
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", listener=StopAtTwo())
    torch.set_num_threads(1)
    state = tmp_path / "run" / "checkpoints" / "step-000001" / "state.json"
    assert json.loads(state.read_text())["machine"]["threads"] == 1
    monkeypatch.setattr(run, "set_up_torch", lambda _: torch.set_num_threads(4))  # a trial might find another number
    resume(tmp_path / "run", listener=told)
    assert torch.get_num_threads() == 1
    assert not [note for note in told.notes if "rounded differently" in note]


# ---- `holdfast eval run RUN --checkpoint all`: the scores of every checkpoint that a run has kept


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


def test_what_has_no_checkpoints_is_refused(run_dir: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(run_dir, tmp_path / "run")
    checkpoint = str(run_dir / "checkpoints" / "step-000001")
    assert "is not a run folder" in holdfast("eval", "run", checkpoint, "--checkpoint", "all", code=2)
    for folder in (run_dir / "checkpoints").glob("step-*"):
        (folder / "checksums.json").unlink()
    assert "has no complete checkpoint" in holdfast("eval", "run", str(run_dir), "--checkpoint", "all", code=2)
