"""The SQLite databases of trackio (`<project>.db`) and MLflow (`mlflow.db`), with every run in them.

Opened so that nothing is written. Written and checked with trackio 0.43 and MLflow 3.17.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast.diagnostics.readers.jsonl import Batch, read_rows
from holdfast.diagnostics.readers.names import host_of
from holdfast.diagnostics.readers.points import Points
from holdfast.diagnostics.readers.reader import LogFile, Raw, Reader, dotted, history_frame
from holdfast.diagnostics.readers.settings import setting
from holdfast.diagnostics.readers.text import Tally
from holdfast.errors import DataError

if TYPE_CHECKING:
    from sqlite3 import Connection

_MARK = b"SQLite format 3\0"
_WAL = 18  # byte of the file that is 2 if the database keeps a write-ahead log
_MANY = 500
_LARGEST = 1.7976931348623157e308  # MLflow writes it for infinity
_DAMAGED = "the database is damaged: only the part before the damage was read"


def _errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """What a damaged or locked database raises; a name in it can be bytes that are not text."""
    import sqlite3

    return (sqlite3.Error, ValueError, *more)


def _connect(path: Path, tally: Tally) -> Connection:
    """A connection that cannot write. A database whose writer is gone is opened as an immutable file, because SQLite
    would otherwise create files next to it. Raises `DataError` if it cannot be read."""
    import sqlite3

    with path.open("rb") as file:
        waits = file.read(_WAL + 1)[_WAL:] == b"\2"
    log = path.with_name(path.name + "-wal")
    quiet = waits and not (log.is_file() and log.stat().st_size)
    for how in ("immutable=1",) if quiet else ("mode=ro", "immutable=1"):
        connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?{how}", uri=True, timeout=1.0)
        try:
            connection.execute("SELECT name FROM sqlite_master").fetchall()
            if not quiet and how == "immutable=1":
                tally.add("another program is writing to the database: its newest rows may be missing")
            return connection
        except _errors() as error:
            reason = error
            connection.close()
    raise DataError(f"{path} is a database that cannot be read: {reason}. Copy it while nothing writes to it")


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    runs: list[Raw] = []
    tally.unit = "row"
    with closing(_connect(file.path, tally)) as database:
        try:
            names = _columns_of(database)
            if {"run_name", "step", "metrics"} <= names:
                runs += _trackio(database, file, names, tally)
            elif {"key", "value", "step", "run_uuid"} <= names:
                runs += _mlflow(database, file, tally)
        except DataError:  # of more than is read
            raise
        except _errors():
            tally.add(_DAMAGED)
    return runs


def _sound(rows: Iterable[Any], tally: Tally) -> Iterator[Any]:
    """The rows before a damaged part of the database."""
    try:
        yield from rows
    except _errors():
        tally.add(_DAMAGED)


# ---- trackio


def _trackio(database: Connection, file: LogFile, names: set[str], whole: Tally) -> Iterator[Raw]:
    key = "run_id" if "run_id" in names else "run_name"
    runs = database.execute(f"SELECT {key}, run_name FROM metrics GROUP BY {key} ORDER BY min(id)")
    for run, name in list(_sound(runs, whole)):
        tally = Tally(file.path, "row")
        rows = database.execute(f"SELECT id, step, metrics FROM metrics WHERE {key} = ? ORDER BY id", (run,))
        batches = _batches(_sound(rows, tally), tally)
        first = next(batches, None)
        if first is None:
            continue
        frame = history_frame({name for row in first[1] for name in row})
        if frame is None:
            continue
        read = read_rows(_with(first, batches), tally, frame)
        if read is not None:
            yield Raw("trackio", frame.host, str(name), read[1], _config(database, key, run, tally))


def _with(first: Batch, others: Iterator[Batch]) -> Iterator[Batch]:
    yield first
    yield from others


def _batches(rows: Iterator[Any], tally: Tally) -> Iterator[Batch]:
    """A row's metrics, with its step as `_step`: TRL's own step is among the metrics."""
    while some := list(islice(rows, _MANY)):
        places, batch = [], []
        for place, step, text in some:
            try:
                metrics = json.loads(text)
                batch.append({"_step": step, **metrics})
                places.append(place)
            except (ValueError, TypeError, RecursionError):
                tally.add("skipped {n rows}: not a JSON object", place)
        if batch:
            yield places, batch


def _config(database: Connection, key: str, run: Any, tally: Tally) -> dict[str, object]:
    try:
        (text,) = database.execute(f"SELECT config FROM configs WHERE {key} = ?", (run,)).fetchone() or ("{}",)
        return dotted({name: value for name, value in json.loads(text).items() if not name.startswith("_")})
    except _errors(TypeError, AttributeError, RecursionError):
        tally.add("the settings are unknown: they cannot be read")
        return {}


# ---- MLflow


def _mlflow(database: Connection, file: LogFile, whole: Tally) -> Iterator[Raw]:
    runs = database.execute("SELECT run_uuid, name FROM runs WHERE lifecycle_stage != 'deleted' ORDER BY start_time")
    for run, name in list(_sound(runs, whole)):
        points = Points(Tally(file.path, "row"))
        rows = database.execute(
            "SELECT rowid, key, value, step, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, rowid", (run,)
        )
        points.add(_numbers(_sound(rows, points.tally), points.tally))
        columns = points.columns()
        params = database.execute("SELECT key, value FROM params WHERE run_uuid = ?", (run,))
        settings = {str(key).replace("/", "."): setting(str(value)) for key, value in _sound(params, points.tally)}
        yield Raw("mlflow", host_of(columns.names()), str(name or run), columns, settings)


def _numbers(rows: Iterable[Any], tally: Tally) -> Iterator[tuple[int, str, int, float]]:
    """(row, name, step, value). NaN and infinity have numbers of their own in MLflow's database."""
    for place, key, value, step, is_nan in rows:
        if type(value) is not float or type(step) is not int or type(key) is not str:
            tally.add("left out {n values}: not a number", place)
        elif is_nan:
            yield place, key, step, math.nan
        else:
            yield place, key, step, value if -_LARGEST < value < _LARGEST else 2 * value


def _has_metrics(path: Path) -> bool:
    try:
        with closing(_connect(path, Tally(path))) as database:
            return bool({"run_name", "run_uuid"} & _columns_of(database))
    except _errors(DataError, OSError):
        return False


def _columns_of(database: Connection) -> set[str]:
    """The columns of the table `metrics`, which both have."""
    return {name for _, name, *_ in database.execute("PRAGMA table_info(metrics)")}


DATABASE: Reader[bytes] = Reader(
    recognises=lambda path, start: start.startswith(_MARK),
    read=_read,
    lacks="is an SQLite database without a run of trackio or MLflow",
    suffixes=(".db", ".sqlite", ".sqlite3"),
    certain=_has_metrics,
)
