"""What a run starts from: the warm start, watched, kept, shared, made alone; and starts that cannot work."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.checkpoint import find_damage
from holdfast.recipe import Config, absolute, load
from holdfast.recipe.loading import find_recipe
from holdfast.tasks.opening import open_tasks
from holdfast.train.prepare import prepare
from holdfast.train.run import train
from holdfast.train.start import starting_policy, warm_start_only
from holdfast.train.start_cache import settings_hash, shipped_start, start_folder

from .whole_runs import Recipe, a_start, assert_same_run, comparable


def test_a_warm_start_is_watched_and_kept(recipe: Recipe, tmp_path: Path, told: Any) -> None:
    config = recipe({"warm_start.seed": 5, "warm_start.steps": 6, "train.steps": 1})
    train(config, tmp_path / "one", listener=told)
    assert ("warm start", 6) in told.stages
    assert told.done[:6] == [*range(1, 7)] and told.advanced[0][1]["loss"] > 3
    train(config, tmp_path / "two")
    # From the cache it is the same policy, and one that is damaged there is made again.
    assert_same_run(tmp_path / "one", tmp_path / "two")
    weights = start_folder(config, open_tasks(config)) / "model" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    a_start(config)
    assert weights.read_bytes() == whole


def test_two_seeds_of_a_run_share_a_start_and_differ(recipe: Recipe, tmp_path: Path) -> None:
    for seed in (1, 2):
        train(recipe({"run.seed": seed, "eval.every": 1, "train.steps": 1}), tmp_path / str(seed))
    one, two = comparable(tmp_path / "1"), comparable(tmp_path / "2")
    assert one[0]["eval/em_greedy"] == two[0]["eval/em_greedy"]
    assert one[0]["eval/f1_greedy"] == two[0]["eval/f1_greedy"]
    assert one[1] != two[1]


def test_a_warm_start_alone(recipe: Recipe, tmp_path: Path) -> None:
    made = warm_start_only(recipe(), tmp_path / "run")
    assert made == tmp_path / "run" / "model"
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {path.name for path in made.iterdir()}
    # And a run may start from it as from any model.
    start = {"model.path": str(made), "warm_start.steps": 0, "train.steps": 1, "eval.every": 1}
    train(recipe(start), tmp_path / "next")
    train(recipe({"train.steps": 1, "eval.every": 1}), tmp_path / "direct")
    assert comparable(tmp_path / "next") == comparable(tmp_path / "direct")


@pytest.mark.usefixtures("told_what_to_say")
def test_the_tiny_model_learns_from_a_file_too(recipe: Recipe, tmp_path: Path) -> None:
    """The sampled episodes of a run are such a file."""
    train(recipe({"train.steps": 1}), tmp_path / "run")
    own = {"warm_start.data": str(tmp_path / "run" / "trajectories.jsonl"), "warm_start.steps": 3, "train.steps": 1}
    scripted = warm_start_only(recipe({"warm_start.steps": 3}), tmp_path / "scripted")
    learned = warm_start_only(recipe(own), tmp_path / "learned")
    assert (scripted / "tokenizer.json").read_bytes() == (learned / "tokenizer.json").read_bytes()
    assert (scripted / "model.safetensors").read_bytes() != (learned / "model.safetensors").read_bytes()


def test_another_start_is_made_where_a_file_that_it_depends_on_has_changed(
    recipe: Recipe, own: Recipe, home: Path, make_model: Callable[..., Any], tmp_path: Path
) -> None:
    """The cache goes by what files hold, not by their names; and by whether a model's code is run."""
    template, model = tmp_path / "chat.jinja", tmp_path / "mine"
    shutil.copytree(home / "raw", model)

    def folder(config: Config) -> Path:
        return start_folder(config, open_tasks(config))

    folders = [folder(own(model)), folder(own(model, {"model.trust_remote_code": True}))]
    for text, seed in (("a", 8), ("b", 9)):
        template.write_text(text)
        make_model(seed=seed).save_pretrained(model)
        folders += [folder(recipe({"model.chat_template": str(template)})), folder(own(model))]
    assert len(set(folders)) == len(folders)


def test_the_cache_knows_questions_and_passages_by_what_they_hold_however_their_paths_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`warm-start` writes the recipe with whole paths into its run folder, and `train` must find what it made."""
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/a.md").write_text("Orsa is a town.")
    Path("questions.jsonl").write_text('{"question": "What is Orsa?", "golden_answers": ["a town"]}\n')
    settings = ["--data.train", "questions.jsonl", "--retrieval.corpus", "docs", "--model.path", "some/model"]

    def folder(config: Config) -> Path:
        return start_folder(config, open_tasks(config))

    config = load(None, settings)
    before = folder(config)
    assert folder(absolute(config)) == before == folder(load(None, [*settings, "--run.name", "other"]))
    Path("docs/a.md").write_text("Orsa is a large town.")
    other_passages = folder(config)
    Path("questions.jsonl").write_text('{"question": "What is Mora?", "golden_answers": ["a town"]}\n')
    assert len({before, other_passages, folder(config)}) == 3


def test_a_start_that_has_learned_the_held_out_questions_is_not_taken_where_they_are_held_out(tmp_path: Path) -> None:
    """With a dev file every training question may be demonstrated; without one, a tenth is for evaluation."""
    train_file = tmp_path / "train.jsonl"
    train_file.write_text('{"question": "What is Orsa?", "golden_answers": ["a town"]}\n')

    def folder(*dev: str) -> Path:
        config = load(None, ["--data.train", str(train_file), "--model.path", "some/model", *dev])
        return start_folder(config, open_tasks(config))

    assert folder() != folder("--data.dev", "dev.jsonl") == folder("--data.dev", "other.jsonl")


# ---- the starts that come with holdfast belong to today's recipes


RECIPES = ("quickstart", "flaky")
LARGEST = 1_200_000


def bundled(name: str, *changes: str) -> Config:
    return load(find_recipe(name), changes)


def start_of(config: Config) -> Path:
    folder = shipped_start(config)
    assert folder is not None
    return folder


@pytest.mark.parametrize("name", RECIPES)
def test_a_start_is_whole_small_and_says_what_made_it(name: str) -> None:
    folder = start_of(bundled(name))
    assert folder.name == name and find_damage(folder) is None
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= LARGEST
    state = json.loads((folder / "state.json").read_text())
    assert state["settings"] == settings_hash(bundled(name)) and state["command"] == f"holdfast warm-start {name}"
    assert state["made_by"]["holdfast"] and 0 <= state["scores"]["em_greedy"] <= 1


@pytest.mark.parametrize(
    "change",
    [
        "--world.seed=1",
        "--warm_start.steps=10",
        "--warm_start.seed=3",
        "--warm_start.batches=mixed",
        "--world.model.hidden=32",
    ],
)
def test_other_settings_have_a_start_of_their_own(change: str) -> None:
    assert shipped_start(bundled("flaky", change)) is None


def test_what_a_start_does_not_depend_on_changes_nothing() -> None:
    changed = bundled("flaky", "--run.seed=5", "--train.lr=1e-3", "--loss.penalty.name=sapo", "--sampling.top_p=1")
    assert start_of(changed) == start_of(bundled("flaky"))


def test_a_run_begins_with_it_and_fills_no_cache(told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    config = bundled("flaky")
    policy = starting_policy(prepare(config), told)
    assert any("comes with holdfast" in note for note in told.notes)
    assert sum(p.numel() for p in policy.model.parameters()) > 200_000
    assert not start_folder(config, open_tasks(config)).exists()
