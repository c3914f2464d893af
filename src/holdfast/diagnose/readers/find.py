"""From a path to files of metrics and their readers. Contents decide; names only help in folders."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from holdfast.base.errors import DataError
from holdfast.base.opening import left_out, opened
from holdfast.base.run_folder import CONFIG, METRICS
from holdfast.base.stored import bounded_json
from holdfast.diagnose.readers.console import CONSOLE
from holdfast.diagnose.readers.database import DATABASE, MLFLOW
from holdfast.diagnose.readers.dicts import DICTS
from holdfast.diagnose.readers.event_file import TENSORBOARD
from holdfast.diagnose.readers.inside import NOTEBOOK
from holdfast.diagnose.readers.jsonl import LINES, STATE, STATE_FILE
from holdfast.diagnose.readers.objects import ARRAY, COLUMNS, OBJECTS
from holdfast.diagnose.readers.prints import COUNTED, PRINTS, SCORES
from holdfast.diagnose.readers.reader import LogFile, Reader
from holdfast.diagnose.readers.records import SUMMARY, SWANLAB, WANDB
from holdfast.diagnose.readers.rollouts.files import ROLLOUTS, has_rollouts
from holdfast.diagnose.readers.tables import CSV, TABLE
from holdfast.diagnose.readers.text import head, is_binary

_logger = logging.getLogger("holdfast")

READABLE = (
    "holdfast can read the output of TRL, ms-swift, Unsloth, verl, slime, SkyRL and OpenRLHF (`python train.py 2>&1 "
    "| tee run.log`), and lines such as `step 1 loss 0.3 reward 0.5`. It reads run folders, trainer_state.json (from "
    "`trainer.save_state()`), and notebooks (.ipynb) or their tables. It reads metrics.jsonl of holdfast, prime-rl "
    "or tinker, verl's file log, and a W&B history as CSV or JSONL. It reads files and folders of W&B (.wandb), "
    "TensorBoard, trackio, MLflow and SwanLab. It reads rollouts of TRL, ms-swift, verl, SkyRL, prime-rl, verifiers, "
    "rLLM, NeMo-RL, ART, slime, miles or tinker-cookbook, and JSON lines of prompt, completion and reward"
)

STORES: tuple[Reader[bytes], ...] = (WANDB, SWANLAB, TENSORBOARD, DATABASE, MLFLOW)
"""The trackers' own files."""

CONSOLES: tuple[Reader[str], ...] = (DICTS, CONSOLE, PRINTS, COUNTED, SCORES, SUMMARY)
"""What a trainer or a script prints. What W&B prints at the end counts where nothing else has rows."""

READERS: tuple[Reader[str], ...] = (NOTEBOOK, STATE, ARRAY, COLUMNS, LINES, OBJECTS, CSV, TABLE, *CONSOLES)
"""Every kind of text that is read. The first reader that recognises a file reads it. Any other text can be a console
log without a row."""

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_NO_LOGS = ("debug.log", "debug-internal.log")  # W&B's logs about itself
_MAX_FILES = 1000
_MAX_BESIDE = 50
_DEPTH = 3
_PICKLE = "training_args.bin"


def find_logs(path: Path) -> list[LogFile]:
    """The logs at a path: one for a file or the folder of a run, several for a folder of runs.

    Raises `DataError` if none can be read.
    """
    try:
        return _in_folder(path) if path.is_dir() else [_file(path)]
    except DataError:
        raise
    except PermissionError as error:
        raise DataError(f"{error.filename or path} cannot be read: its permissions forbid it") from None
    except (OSError, ValueError) as error:  # a name too long, a loop of links, a NUL in a name
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _file(path: Path) -> LogFile:
    reader = reader_of(path)
    if reader is None:
        pickle = "a pickle of settings; the log is in trainer_state.json, in a checkpoint folder"
        raise DataError(f"{path} is {pickle if _PICKLE in path.name else 'a binary file, not a log'}. {READABLE}")
    full = path.resolve()
    if path.name == METRICS:
        settings = full.parent / CONFIG
        return LogFile(reader, path, full.parent.name, settings if settings.is_file() else None)
    if path.name == STATE_FILE:
        folder = full.parent
        return LogFile(reader, path, folder.parent.name if _CHECKPOINT.fullmatch(folder.name) else folder.name)
    return LogFile(reader, path, path.name.removesuffix(".gz").rpartition(".")[0] or path.name)


def _in_folder(folder: Path) -> list[LogFile]:
    """The logs of a run's folder, or of a folder of such folders and files."""
    logs = [*_below(folder, _DEPTH)]
    if not logs and has_rollouts(folder):
        return [LogFile(ROLLOUTS, folder, folder.resolve().name)]
    if not logs:
        why = " It has checkpoints, but none with a trainer_state.json." if _checkpoints(folder) else ""
        raise DataError(f"{folder} is a folder without a log.{why} {READABLE}")
    if len([log for log in logs if not log.beside]) == 1:
        return [log if log.beside else replace(log, name=folder.resolve().name) for log in logs]
    count = Counter(log.name for log in logs if not log.beside)
    return [log if count[log.name] < 2 else replace(log, name=_relative(log.path, folder)) for log in logs]


def _relative(path: Path, folder: Path) -> str:
    """The path of a run in a folder, without the usual name of its log."""
    inner = path.relative_to(folder)
    return str(inner.parent if path.name in (METRICS, STATE_FILE) else inner)


def _below(folder: Path, depth: int) -> Iterator[LogFile]:
    """The log of a run's folder; in any other folder, the logs of its files and folders."""
    run = _run_folder(folder)
    if run is not None:
        yield run
        if run.path.name == STATE_FILE:
            yield from islice(_beside(folder), _MAX_BESIDE)
        elif run.settings is None:  # prime-rl's trainer has its orchestrator's in a folder
            parts = (entry / METRICS for entry in _entries(folder) if (entry / METRICS).is_file())
            yield from (replace(_file(path), beside=True) for path in islice(parts, _MAX_BESIDE))
        return
    if (left := len(list(folder.iterdir())) - _MAX_FILES) > 0:
        _logger.warning("left out %d files and folders of %s; only %d are searched", left, folder, _MAX_FILES)
    yield from _files(folder)
    for inner in _entries(folder) if depth else ():
        if inner.is_dir() and not inner.is_symlink():
            try:
                with left_out(inner):
                    yield from _below(inner, depth - 1)
            except DataError as error:
                _logger.warning("left out: %s", error)


def _run_folder(folder: Path) -> LogFile | None:
    if (folder / METRICS).is_file():
        return _file(folder / METRICS)
    states = [state for inner in (folder, *_checkpoints(folder)) if (state := inner / STATE_FILE).is_file()]
    return _newest(states) if states else _stored(folder)


def _stored(folder: Path) -> LogFile | None:
    """The tracker's own files of one run."""
    paths = ((store, store.of_run(folder)) for store in STORES)
    return next((LogFile(store, path, folder.resolve().name) for store, path in paths if path is not None), None)


def _beside(folder: Path, depth: int = 2) -> Iterator[LogFile]:
    """Trackers' files of runs in the output folder of a trainer. They have rows after the last checkpoint."""
    if (run := _stored(folder)) is not None:
        yield replace(run, beside=True)
        return
    for inner in _entries(folder) if depth else ():
        if inner.is_dir() and not inner.is_symlink() and not _CHECKPOINT.fullmatch(inner.name):
            yield from _beside(inner, depth - 1)


def _newest(states: list[Path]) -> LogFile:
    """The newest state of a run, from its folder and its checkpoints (highest number first).

    A checkpoint is newer than the state in the folder if the run was continued. It may also be newer than one with a
    higher number that an earlier run left. Within one run the highest number is read, because copies may have any time.
    """
    newest = max(states, key=lambda state: state.stat().st_mtime)
    last = next((state for state in states if _CHECKPOINT.fullmatch(state.parent.name)), newest)
    if newest == last or not _CHECKPOINT.fullmatch(newest.parent.name):
        return _file(newest)
    if _continues(newest, last):
        return _file(last)
    name, left = newest.parent.name, last.parent.name
    why = f"read {name}: {left} has a higher number, but is older and from another run. To read it, give its path"
    return replace(_file(newest), note=why)


def _continues(first: Path, last: Path) -> bool:
    """Whether the history of the second state begins with all of the first."""
    try:
        begun, whole = (bounded_json(path.read_bytes())["log_history"] for path in (first, last))
        return json.dumps(begun) == json.dumps(whole[: len(begun)])  # as texts, because NaN does not equal itself
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _checkpoints(folder: Path) -> list[Path]:
    """`checkpoint-<step>` folders, the highest number first."""
    numbered = [(int(match[1]), inner) for inner in _entries(folder) if (match := _CHECKPOINT.fullmatch(inner.name))]
    return [inner for _, inner in sorted(numbered, reverse=True) if inner.is_dir()]


def _files(folder: Path) -> Iterator[LogFile]:
    readers: tuple[Reader[Any], ...] = (*STORES, *READERS)
    suffixes = tuple({suffix for reader in readers for suffix in reader.suffixes})
    for path in _entries(folder):
        if path.is_file() and path.name.endswith(suffixes) and path.name not in _NO_LOGS:
            try:
                with left_out(path):
                    reader = reader_of(path)
                    if reader is not None and reader is not ROLLOUTS and reader.certain(path):
                        yield _file(path)
            except DataError as error:
                _logger.warning("left out: %s", error)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())[:_MAX_FILES]


def reader_of(path: Path) -> Reader[Any] | None:
    """The reader of a file, by its first block; None for an unknown binary file. Raises `DataError` for an empty
    file."""
    with opened(path) as file:
        first = file.read(64)
    store = next((store for store in STORES if store.recognises(path, first)), None) if first else None
    if store is not None:
        return store
    text = head(path)
    start = text.lstrip("\ufeff \t\r\n")
    if not start:
        raise DataError(f"{path} is empty: the run has logged nothing yet, or the file was cut off")
    binary = is_binary(text)
    reader = None if binary else next((one for one in READERS if one.recognises(path, start)), CONSOLE)
    may_be_rollouts = reader in (None, ARRAY, LINES, OBJECTS) or (
        path.suffix == ".json" and reader not in (STATE, COLUMNS)
    )
    return ROLLOUTS if may_be_rollouts and ROLLOUTS.recognises(path, first) else reader
