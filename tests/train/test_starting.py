"""What a run starts from: the warm start, watched, kept, shared, made alone; and starts that cannot work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.base.environment import cache_dir
from holdfast.base.errors import ConfigError
from holdfast.train.run import train
from holdfast.train.start import warm_start_only
from holdfast.train.threads import set_up_torch

from .whole_runs import Recipe, assert_same_run, comparable


def test_a_warm_start_is_watched_and_kept(recipe: Recipe, tmp_path: Path, told: Any) -> None:
    config = recipe({"warm_start.seed": 5, "warm_start.steps": 6, "train.steps": 1})
    train(config, tmp_path / "one", listener=told)
    assert ("warm start", 6) in told.stages
    assert [done for done, _ in told.advanced][:6] == [*range(1, 7)] and told.advanced[0][1]["loss"] > 3
    train(config, tmp_path / "two")
    # From the cache it is the same policy.
    assert_same_run(tmp_path / "one", tmp_path / "two")


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


def test_a_warm_start_of_no_steps_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"warm_start\.steps = 0"):
        warm_start_only(recipe({"warm_start.steps": 0}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_tiny_model_learns_from_a_file_too(whole: Path, recipe: Recipe, tmp_path: Path) -> None:
    """The sampled episodes of a run are such a file."""
    own = {"warm_start.data": str(whole / "trajectories.jsonl"), "warm_start.steps": 3, "train.steps": 1}
    scripted = warm_start_only(recipe({"warm_start.steps": 3}), tmp_path / "scripted")
    learned = warm_start_only(recipe(own), tmp_path / "learned")
    assert (scripted / "tokenizer.json").read_bytes() == (learned / "tokenizer.json").read_bytes()
    assert (scripted / "model.safetensors").read_bytes() != (learned / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model.lora_rank": 4}, "the tiny model is too small for LoRA"),
        ({"data.train": "q.jsonl", "retrieval.corpus": "c.jsonl"}, "knows only the words of the bundled world"),
        ({"warm_start.data": "nowhere.jsonl"}, r"warm_start\.data: nowhere\.jsonl does not exist"),
    ],
)
def test_a_start_that_cannot_work_is_refused(
    recipe: Recipe,
    tmp_path: Path,
    write_rows: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    problem: str,
) -> None:
    write_rows(tmp_path / "q.jsonl", [{"question": f"{i}?", "golden_answers": "x"} for i in range(10)])
    write_rows(tmp_path / "c.jsonl", [{"id": "1", "contents": "a\nb"}])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=problem):
        train(recipe(changes), tmp_path / "run")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", "/a")
    assert cache_dir() == Path("/a")
    monkeypatch.delenv("HOLDFAST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_dir() == Path("/b/holdfast")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/c")
    assert cache_dir() == Path("/c/.cache/holdfast")


@pytest.mark.parametrize(
    ("changes", "threads"),
    [
        ({"run.threads": 0}, 1),
        ({"run.threads": 2}, 2),
        ({"run.threads": 0, "model.path": "some/model"}, 3),  # PyTorch's choice
    ],
)
def test_the_tiny_model_has_one_thread_unless_more_are_asked_for(
    recipe: Recipe, changes: dict[str, Any], threads: int
) -> None:
    torch.set_num_threads(3)  # the fixture of this folder puts back what was
    set_up_torch(recipe(changes))
    assert torch.get_num_threads() == threads
