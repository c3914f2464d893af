"""Disks that are full or closed: a sentence, and nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import CheckpointError, ConfigError
from holdfast.recipe import Config
from holdfast.train.run import resume, train
from holdfast.train.start import warm_start_only

Recipe = Callable[..., Config]


def test_a_full_disk_is_a_sentence(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "run" / "metrics.jsonl"))

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.train.tracking.MetricsFile.step", full)
        with pytest.raises(CheckpointError, match=r"metrics\.jsonl cannot be written: the disk is full"):
            train(recipe(), tmp_path / "run")
    assert resume(tmp_path / "run").steps == 2  # once there is room


def test_other_errors_of_the_system_are_not_hidden(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr("holdfast.train.tracking.MetricsFile.step", broken)
    with pytest.raises(ConnectionResetError):
        train(recipe(), tmp_path / "run")


def test_a_run_folder_that_cannot_be_made_is_refused_before_anything_is_done(
    recipe: Recipe, tmp_path: Path, told: Any
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"run folder .* cannot be written \(.*run\.dir"):
        train(recipe(), tmp_path / "file" / "run", listener=told)
    assert told.stages == []


def test_a_cache_that_cannot_be_written_costs_the_cache_alone(
    recipe: Recipe, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "file" / "cache"))
    made = warm_start_only(recipe({"warm_start.steps": 2}), tmp_path / "run", listener=told)
    assert (made / "model.safetensors").is_file()
    assert any("could not be cached for later runs" in note and "HOLDFAST_CACHE" in note for note in told.notes)
