"""The run folders of `holdfast train`: how they are named, and what is never deleted."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import ConfigError, RolloutError
from holdfast.base.files import locked
from holdfast.cli.runs import claim
from holdfast.recipe import load, validate

from .conftest import then_raise

Run = Callable[..., Any]


def test_a_taken_name_gets_a_number(trainer: Any, holdfast: Run) -> None:
    for expected in ("quickstart", "quickstart-2", "quickstart-3"):
        holdfast("train")
        assert trainer.config.run.name == expected  # so that config.toml and W&B say it too
        assert Path("runs", expected, "config.toml").is_file()


def test_a_name_given_by_hand_is_taken_as_it_is(trainer: Any, holdfast: Run) -> None:
    holdfast("train", "--run.name", "night", "--run.dir", "elsewhere")
    stderr = holdfast("train", "--run.name", "night", "--run.dir", "elsewhere", code=2).stderr
    assert "elsewhere/night exists; replace it with --overwrite" in stderr
    assert "hint: to continue it: holdfast resume elsewhere/night\n" in stderr
    assert len(trainer.calls) == 1


def test_overwrite_replaces_a_run(trainer: Any, holdfast: Run) -> None:
    holdfast("train")
    Path("runs/quickstart/metrics.jsonl").write_text("old")
    holdfast("train", "--overwrite")
    assert trainer.config.run.name == "quickstart"
    assert not Path("runs/quickstart/metrics.jsonl").exists()
    assert list(Path("runs").iterdir()) == [Path("runs/quickstart")]


def test_overwrite_deletes_runs_only(trainer: Any, holdfast: Run) -> None:
    Path("runs/thesis").mkdir(parents=True)
    Path("runs/thesis/chapter.tex").write_text("years of work")
    stderr = holdfast("train", "--run.name=thesis", "--overwrite", code=2).stderr
    assert "--overwrite would delete runs/thesis, which is not a run folder" in stderr
    assert Path("runs/thesis/chapter.tex").read_text() == "years of work"


def test_an_unreadable_recipe_does_not_cost_the_old_run(trainer: Any, holdfast: Run) -> None:
    holdfast("train")
    holdfast("train", "--overwrite", "--train.steps", "0", code=2)
    assert Path("runs/quickstart/config.toml").is_file()


def test_a_run_that_never_began_leaves_no_folder(trainer: Any, holdfast: Run) -> None:
    trainer.script = then_raise(RolloutError("the retriever is down"))
    assert holdfast("train", code=2).stderr == "error: the retriever is down\n"
    assert not Path("runs/quickstart").exists()


@pytest.mark.parametrize("name", ["\udcff", "x" * 300, "a\0b", "a\tb", "a\nb"])
def test_a_name_that_no_folder_can_have_leaves_nothing(trainer: Any, holdfast: Run, name: str) -> None:
    assert "run.name" in holdfast("train", "--run.name", name, code=2).stderr
    assert not Path("runs").exists() and trainer.calls == []


def test_a_path_that_is_too_long(trainer: Any, holdfast: Run) -> None:
    assert "the name is too long" in holdfast("train", "--run.dir", "x" * 300, code=2).stderr
    assert "the name is too long" in holdfast("resume", "x" * 300, code=2).stderr


def test_a_run_under_way_is_not_replaced(trainer: Any, holdfast: Run) -> None:
    holdfast("train")
    with locked(Path("runs/quickstart/config.toml")):
        said = holdfast("train", "--overwrite", code=2).stderr
    assert "--overwrite would replace runs/quickstart, in which another process is training" in said
    assert Path("runs/quickstart/config.toml").is_file()


def test_two_runs_never_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load()
    with ThreadPoolExecutor(8) as threads:
        folders = list(threads.map(lambda _: claim(config, named=False, overwrite=False), range(32)))
    assert len(set(folders)) == 32
    Path("runs/empty").mkdir()
    night = validate({"run": {"name": "empty"}})
    assert claim(night, named=True, overwrite=False) == Path("runs/empty")
    with pytest.raises(ConfigError, match="runs/empty exists"):
        claim(night, named=True, overwrite=False)


def test_a_file_in_the_way_of_the_run_folder(trainer: Any, holdfast: Run) -> None:
    Path("runs").write_text("")
    assert "the run folder runs/quickstart cannot be made" in holdfast("train", code=2).stderr
