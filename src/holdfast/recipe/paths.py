"""Which settings of a recipe are paths, and where they lead.

A path in a recipe file is relative to the folder of that file, one on the command line to the current folder, and the
recipe of a run has absolute ones. Only `run.dir`, where new runs are written, is relative to the current folder always.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from holdfast.base.errors import ConfigError
from holdfast.base.importing import is_import_path
from holdfast.base.section import setting_values
from holdfast.model.settings import TINY
from holdfast.recipe.code import import_paths
from holdfast.recipe.config import Config
from holdfast.recipe.sections import FACTBOOK, WORLD

PATHS: Mapping[str, tuple[str, ...]] = {
    "run.code": (),
    "data.train": (WORLD, FACTBOOK),
    "data.dev": (),
    "data.test": (),
    "retrieval.corpus": (),
    "retrieval.index": (),
    "model.path": (TINY,),
    "model.chat_template": ("auto", "none"),
    "warm_start.data": (),
    "critic.path": (),
}
"""Settings that are paths -> their values that are not. An import path is none either, nor is a hub id: a `model.path`
that is no folder and does not begin with `.` or `/`."""

QUESTIONS = ("data.train", "data.dev", "data.test")


def is_path(name: str, value: Any, folder: Path | None = None) -> bool:
    """Whether the value of a setting is a path; one that may be relative to `folder`, by default the current one."""
    if name not in PATHS or not isinstance(value, str) or not value or value in PATHS[name]:
        return False
    if name == "data.train" and is_import_path(value):
        return False
    return name != "model.path" or value[0] in "./" or os.path.isdir(Path(folder or "", value))


def in_folder(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a recipe file in `folder`, by dotted name: its paths from the current folder, and where its code is."""
    if folder == Path():
        return dict(values)
    placed = {name: _under(folder, value) if is_path(name, value, folder) else value for name, value in values.items()}
    return {"run.code": str(folder), **placed} if import_paths(values) else placed


def _under(folder: Path, value: str) -> str:
    """The path from the current folder, for messages without `folder/..`, where no link makes that another place."""
    while value.startswith("../") and folder.name not in ("", "..") and not folder.is_symlink():
        folder, value = folder.parent, value.removeprefix("../")
    return str(folder / value)


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with other values, by dotted name `section.key`."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    return config.model_copy(
        update={section: getattr(config, section).model_copy(update=keys) for section, keys in sections.items()}
    )


def absolute(config: Config) -> Config:
    """The config as a run keeps it: its paths lead to the same files from any folder."""
    values = setting_values(config)
    if import_paths(values):
        values["run.code"] = values["run.code"] or "."
    paths = {name: os.path.abspath(value) for name, value in values.items() if is_path(name, value)}
    return with_values(config, paths)


def passages_of(config: Config) -> tuple[str, ...]:
    """The settings whose files have the passages of a recipe. An index beside a corpus is built if it is missing."""
    if config.retrieval.url is not None:
        return ()
    if config.retrieval.corpus is not None:
        return ("retrieval.corpus",)
    return ("retrieval.index",) if is_path("data.train", config.data.train) else ()  # else it is built from the set's


def require(config: Config, *names: str) -> None:
    """Refuse a config when files that these settings name are not there. Raises `ConfigError`."""
    values = setting_values(config)
    gone = [name for name in names if is_path(name, values[name]) and not os.path.exists(values[name])]
    if not gone:
        return
    given = dict.fromkeys(gone, "PATH")
    index = values["retrieval.index"]
    if "retrieval.corpus" in gone and index is not None:  # a corpus given alone would replace the index
        given["retrieval.index"] = quote(index) if os.path.exists(index) else "PATH"
    listed = ", ".join(f"{name} = {values[name]!r}" for name in gone)
    options = " ".join(f"--{name} {place}" for name, place in given.items())
    build = "; to build an index, name its retrieval.corpus too" if "retrieval.index" in gone else ""
    raise ConfigError(
        f"{listed}: there is no such file or folder. Say where it is with {options}, or in the recipe, whose paths are "
        f"relative to its own folder{build}"
    )
