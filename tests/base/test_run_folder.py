from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.base import run_folder
from holdfast.base.errors import CheckpointError, ConfigError
from holdfast.base.files import delete_left_partial, locked, partial_folder
from holdfast.recipe import Config, dump, load_run


def test_checkpoints_are_listed_by_step_newest_first(tmp_path: Path) -> None:
    assert run_folder.list_checkpoints(tmp_path) == [] and run_folder.newest_step(tmp_path) is None
    for step in (9, 1_000_000, 20):
        folder = run_folder.step_folder(tmp_path, step)
        folder.mkdir(parents=True)
        (folder / "state.json").touch()
        (folder / "checksums.json").write_text('{"state.json": ""}')
    for other in ("best", "refused-step-000030", ".step-000040.123.partial", "step-last"):
        (run_folder.checkpoints_of(tmp_path) / other).mkdir()
    names = [path.name for path in run_folder.list_checkpoints(tmp_path)]
    assert names == ["step-1000000", "step-000020", "step-000009"] and run_folder.newest_step(tmp_path) == 1_000_000
    (run_folder.step_folder(tmp_path, 1_000_000) / "state.json").unlink()
    assert run_folder.newest_step(tmp_path) == 20
    (run_folder.step_folder(tmp_path, 20) / "checksums.json").write_text('{"state.js')
    assert run_folder.newest_step(tmp_path) == 9


def test_what_a_folder_is(tmp_path: Path) -> None:
    assert not run_folder.is_run(tmp_path) and not run_folder.is_run(Path("Who is it? " * 100))
    run_folder.begin(tmp_path, dump(Config()))
    assert run_folder.is_run(tmp_path) and not run_folder.is_finished(tmp_path)
    (tmp_path / run_folder.MODEL).mkdir()
    assert run_folder.is_finished(tmp_path, stage=True) and not run_folder.is_finished(tmp_path)
    (tmp_path / run_folder.RESULTS).touch()
    assert run_folder.is_finished(tmp_path)


@pytest.mark.parametrize("name", ["metrics.jsonl", "results.json", "checkpoints"])
def test_a_run_is_not_begun_twice(tmp_path: Path, name: str) -> None:
    run_folder.begin(tmp_path, dump(Config()))
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=rf"already contains a run \({name}\)"):
        run_folder.begin(tmp_path, dump(Config()))


def test_the_recipe_is_read_back(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a run folder: it has no config\.toml"):
        load_run(tmp_path)
    config = Config.model_validate({"train": {"steps": 7}})
    run_folder.begin(tmp_path, dump(config))
    assert load_run(tmp_path) == config


def test_an_emptied_recipe_is_not_taken_for_the_default_one(tmp_path: Path) -> None:
    """A process that is killed while it makes its folder may leave one."""
    run_folder.begin(tmp_path / "run", dump(Config()))
    (tmp_path / "run" / "config.toml").write_text("")
    with pytest.raises(CheckpointError, match=r"config\.toml is empty"):
        load_run(tmp_path / "run")


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    run_folder.begin(tmp_path, dump(Config()))
    refused = pytest.raises(ConfigError, match="another process is training in")
    with run_folder.writing(tmp_path), refused, run_folder.writing(tmp_path):
        pass
    with run_folder.writing(tmp_path):
        pass


# ---- folders that are filled and then renamed: what killed processes leave of them


def test_what_a_killed_process_left_is_deleted_also_if_it_is_empty(tmp_path: Path) -> None:
    full, empty, new, living = (tmp_path / f".index.0000000{i}.partial" for i in range(4))
    others = [tmp_path / name for name in (".index.x.partial", "index.00000000.partial", ".index.00000000")]
    for folder in (full, empty, new, living, *others):
        folder.mkdir()
        os.utime(folder, (0, 0))
    (full / "index").mkdir()
    os.utime(new)
    with locked(living):
        delete_left_partial(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([new, living, *others])


def test_a_folder_in_work_is_not_deleted(tmp_path: Path) -> None:
    with partial_folder(tmp_path / "a") as folder:
        os.utime(folder, (0, 0))
        delete_left_partial(tmp_path)
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []
