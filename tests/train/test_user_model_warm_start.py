"""The warm start of a model of one's own: from episodes in a file, from a run, from the scripts of the world."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.base.errors import CheckpointError, ConfigError
from holdfast.base.run_folder import list_checkpoints
from holdfast.model.language_model import load_model
from holdfast.model.logprobs import token_logprobs
from holdfast.recipe import Config, Model
from holdfast.train.run import resume, train
from holdfast.train.start import warm_start_only

from .whole_runs import Recipe
from .whole_runs import comparable as rows_of

CPU = torch.device("cpu")


def test_a_warm_start_teaches_what_the_episodes_say(base: Path, home: Path) -> None:
    tokenizer = load_model(Model(path="x"), base, CPU).tokenizer
    prompt, answer = (
        tokenizer(text)["input_ids"] for text in ("Question: What is place 0?\n", "<answer> town </answer>")
    )
    ids = torch.tensor([prompt + answer])
    mask = torch.tensor([[False] * len(prompt) + [True] * len(answer)])
    with torch.no_grad():
        after, before = (
            token_logprobs(load_model(Model(path="x"), folder, CPU).model, ids, mask)[0].sum()
            for folder in (base, home / "raw")
        )
    assert after > before + 20


def test_a_run_does_its_warm_start_first(own: Callable[..., Config], lesson: dict[str, Any], tmp_path: Path) -> None:
    """In one go or in two stages it is the same start."""
    start = warm_start_only(own("raw", lesson), tmp_path / "start")
    train(own("raw", lesson | {"train.steps": 1}), tmp_path / "one")
    train(own(start, {"train.steps": 1}), tmp_path / "two")
    assert rows_of(tmp_path / "one") == rows_of(tmp_path / "two")


def test_adapters_are_warm_started_and_trained_on(
    own: Callable[..., Config], lesson: dict[str, Any], base: Path, tmp_path: Path
) -> None:
    few = {"warm_start": lesson["warm_start"] | {"steps": 2}, "model.lora_rank": 4, "train.steps": 1}
    train(own(base, few), tmp_path / "run")
    assert rows_of(tmp_path / "run")[0]["penalty/noise_floor"] == 0
    start, saved = (
        load_model(own(base, few).model, folder, CPU).model
        for folder in (base, list_checkpoints(tmp_path / "run")[0] / "model")
    )
    ids = torch.arange(2, 14)[None]
    with torch.no_grad(), saved.disable_adapter():
        torch.testing.assert_close(saved(ids).logits, start(ids).logits)


def test_a_changed_model_folder_is_started_from_anew(
    own: Callable[..., Config],
    lesson: dict[str, Any],
    tmp_path: Path,
    home: Path,
    told: Any,
    make_model: Callable[..., Any],
) -> None:
    """The cache goes by what the folder holds, not by its name."""
    shutil.copytree(home / "raw", tmp_path / "mine")
    config = own(tmp_path / "mine", {"warm_start": lesson["warm_start"] | {"steps": 1}})
    one = warm_start_only(config, tmp_path / "one")
    make_model(seed=9).save_pretrained(tmp_path / "mine")
    two = warm_start_only(config, tmp_path / "two", listener=told)
    assert ("warm start", 1) in told.stages
    assert (one / "model.safetensors").read_bytes() != (two / "model.safetensors").read_bytes()


def test_trajectories_of_a_run_are_episodes_to_start_from(
    own: Callable[..., Config], base: Path, tmp_path: Path, told: Any
) -> None:
    train(own(base, {"train.steps": 1}), tmp_path / "run")
    episodes = {"warm_start": {"data": str(tmp_path / "run" / "trajectories.jsonl"), "steps": 2}}
    warm_start_only(own("raw", episodes), tmp_path / "start", listener=told)
    assert ("warm start", 2) in told.stages and not any("skipped" in note for note in told.notes)
    with pytest.raises(CheckpointError, match=r"is a finished warm start, .*--model\.path .*start/model"):
        resume(tmp_path / "start")


def test_bad_and_overlong_episodes_are_left_out_and_said(
    own: Callable[..., Config], tmp_path: Path, told: Any, write_rows: Callable[..., str]
) -> None:
    good = {"question": "What?", "turns": [{"text": "<answer> a </answer>"}]}
    endless = {"question": "What?", "turns": [{"text": "why " * 300 + "<answer> a </answer>"}]}
    path = write_rows(tmp_path / "e.jsonl", [good, good, endless, {"question": "What?"}])
    warm_start_only(own("raw", {"warm_start": {"data": path, "steps": 1}}), tmp_path / "run", listener=told)
    assert any("1 row(s)" in note and "e.jsonl:4: turns" in note for note in told.notes)
    assert any("1 of 3 demonstrations" in note and "max_total_tokens = 200" in note for note in told.notes)
    path = write_rows(tmp_path / "long.jsonl", [endless])
    with pytest.raises(ConfigError, match=r"1 of 1 demonstrations .* longer than protocol\.max_total_tokens = 200"):
        warm_start_only(own("raw", {"warm_start": {"data": path, "steps": 1}}), tmp_path / "next")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"warm_start.steps": 3}, r"warm_start\.data is not set, and only the bundled world has scripts"),
        ({"world.scripts.plain_steps": 3}, r"world\.scripts\.plain_steps = 3 with data\.train = .*: not used"),
    ],
)
def test_scripts_are_the_worlds(
    own: Callable[..., Config], tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        warm_start_only(own("raw", changes), tmp_path / "run")


def test_a_model_of_ones_own_learns_the_worlds_scripts_too(
    recipe: Recipe, home: Path, tmp_path: Path, told: Any
) -> None:
    config = recipe({"model": {"path": str(home / "raw")}, "warm_start.steps": 2, "protocol.max_total_tokens": 512})
    warm_start_only(config, tmp_path / "run", listener=told)
    assert ("warm start", 2) in told.stages and told.advanced[-1][0] == 2
