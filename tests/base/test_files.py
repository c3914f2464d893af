"""Folders that are filled and then renamed: what killed processes leave of them is deleted, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.base.files import delete_left_partial, locked, partial_folder


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
