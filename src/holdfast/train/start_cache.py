"""Where the policies that runs start from are kept: those that come with holdfast, and the cache of those made here."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.base.environment import cache_dir
from holdfast.base.errors import DataError
from holdfast.model.hub import stored
from holdfast.recipe import BUNDLED, Config
from holdfast.retrieval.corpus import files_seen
from holdfast.retrieval.storage import MANIFEST
from holdfast.tasks.task_set import TaskSet

SHIPPED = BUNDLED / "starts"
"""A folder for each start that comes with holdfast: a checkpoint, whose state says what made it."""


def has_warm_start(config: Config) -> bool:
    """Whether the recipe has supervised steps before reinforcement learning."""
    return bool(config.warm_start.steps or config.world.scripts.plain_steps)


def from_model(config: Config, model: Path | str) -> str:
    """Settings for a command that starts a run of the recipe from a model, without a warm start."""
    plain = " --world.scripts.plain_steps 0" if config.world.scripts.plain_steps else ""
    return f"--model.path {shlex.quote(str(model))} --warm_start.steps 0{plain}"


def shipped_start(config: Config) -> Path | None:
    """The folder of the policy that comes with holdfast for these settings; None if the recipe needs another one.

    It is the same policy on every machine. One made again differs between processors, which round sums differently.
    """
    if not config.model.is_tiny or not has_warm_start(config):
        return None
    settings = settings_hash(config)
    states = sorted(SHIPPED.glob("*/state.json"))
    return next((path.parent for path in states if json.loads(path.read_text())["settings"] == settings), None)


def settings_hash(config: Config) -> str:
    """A hash of the settings that a start depends on; 16 hex digits."""
    return _hash(config.start_parts())


def start_folder(config: Config, tasks: TaskSet) -> Path:
    """Where the cache keeps the policy that a recipe's warm start makes. Raises `DataError`.

    Its name is a hash of everything the policy depends on, wherever that lies: a run may have been moved. A file of
    demonstrations and a chat template count with their content, an index with its manifest, a corpus and a model folder
    with the names, sizes and times of their files, and a hub id with its name.
    """
    parts: dict[str, Any] = {"version": __version__, **config.start_parts(), "tasks": tasks.fingerprint()}
    if config.retrieval.index and (manifest := Path(config.retrieval.index, MANIFEST)).is_file():
        parts["retrieval"]["index"] = _digest(str(manifest), "retrieval.index")
    if (corpus := config.retrieval.corpus) is not None:  # `train` and `warm-start` may write its path in two ways
        parts["retrieval"]["corpus"] = files_seen(Path(corpus), config.retrieval.fields)
    if config.warm_start.data is not None:
        parts["warm_start"]["data"] = _digest(config.warm_start.data, "warm_start.data")
    if config.model.chat_template not in ("auto", "none"):
        parts["model"]["chat_template"] = _digest(config.model.chat_template, "model.chat_template")
    folder = stored(config.model.path) or Path(config.model.path)
    if folder.is_dir():
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        names = [(str(f.relative_to(folder)), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
        parts["model"]["path"] = names
    return cache_dir() / "start" / _hash(parts)


def _hash(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _digest(path: str, setting: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{setting} = {path!r} cannot be read: {error.strerror}") from None
