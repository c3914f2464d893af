"""The stores of trackio and MLflow: SQLite databases (`<project>.db`, `mlflow.db`) with every run in them, and MLflow's
folders (`mlruns/<experiment>/<run>`). Written and checked with trackio 0.43 and MLflow 3.17.

A database is opened so that nothing is written. A folder has a file for each metric: a line of `metrics/<name>` is
`timestamp value step`. Names may have slashes, and then lie in folders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast.base.errors import DataError
from holdfast.base.jsonl import BadField, json_object
from holdfast.base.opening import MAX_LINE, opened
from holdfast.base.stored import bounded_json
from holdfast.diagnose.readers.columns import Point, columns_of
from holdfast.diagnose.readers.names import host_of
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader, Row, dotted, read_rows
from holdfast.diagnose.readers.settings import read_yaml, setting
from holdfast.diagnose.readers.text import Tally, lines

if TYPE_CHECKING:
    from sqlite3 import Connection

_MARK = b"SQLite format 3\0"
_WAL = 18  # byte of the file that is 2 if the database keeps a write-ahead log
_FIRST = 500  # rows of a run in which its axis is looked for
_INSTRUCTIONS = 4000
"""Instructions of SQLite for each 1,000 bytes of a database. A log takes 100, a table of empty rows 2,300."""
_LARGEST = 1.7976931348623157e308  # MLflow writes it for infinity
_NO_SETTINGS = "the settings are unknown: they cannot be read"
_DAMAGED = "the database is damaged: only the part before the damage was read"


def _errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """What a damaged or locked database raises; a name in it can be bytes that are not text."""
    import sqlite3

    return (sqlite3.Error, ValueError, *more)


def _connect(path: Path, tally: Tally) -> Connection:
    """A connection that cannot write. A database whose writer is gone is opened as an immutable file, because SQLite
    would otherwise create files next to it. Raises `DataError` if it cannot be read."""
    import sqlite3

    with opened(path) as file:
        waits = file.read(_WAL + 1)[_WAL:] == b"\2"
    log = path.with_name(path.name + "-wal")
    quiet = waits and not (log.is_file() and log.stat().st_size)
    for how in ("immutable=1",) if quiet else ("mode=ro", "immutable=1"):
        connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?{how}", uri=True, timeout=1.0)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LINE)  # a column can be computed, and of any length
        # A page that is below many others, as no writer leaves it, has endless rows.
        stored = sum(part.stat().st_size for part in (path, log) if part.is_file())
        connection.set_progress_handler(_stop_after(10 + stored // 1000), _INSTRUCTIONS)
        try:
            connection.execute("SELECT name FROM sqlite_master").fetchall()
            if not quiet and how == "immutable=1":
                tally.add("another program is writing to the database: its newest rows may be missing")
            return connection
        except _errors() as error:
            reason = error
            connection.close()
    raise DataError(f"{path} is a database that cannot be read: {reason}. Copy it while nothing writes to it")


def _stop_after(most: int) -> Callable[[], bool]:
    calls = count(1)
    return lambda: next(calls) > most


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    runs: list[Raw] = []
    tally.unit = "row"
    with closing(_connect(file.path, tally)) as database:
        try:
            names = _columns_of(database)
            if {"run_name", "step", "metrics"} <= names:
                runs += _trackio(database, file, "run_id" if "run_id" in names else "run_name", tally)
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


def _rows_by_run(database: Connection, run: str, columns: str, tally: Tally) -> dict[Any, list[tuple[Any, ...]]]:
    """For each run in the column `run`, (number of the row, values of the columns) of its rows. One pass over the
    table, because a query for each run would take as many passes as there are runs, without an index."""
    runs: dict[Any, list[tuple[Any, ...]]] = {}
    for value, *row in _sound(database.execute(f"SELECT {run}, rowid, {columns} FROM metrics ORDER BY rowid"), tally):
        tally.count(1)
        runs.setdefault(value, []).append(tuple(row))
    return runs


# ---- trackio


def _trackio(database: Connection, file: LogFile, key: str, whole: Tally) -> Iterator[Raw]:
    names = dict(_sound(database.execute(f"SELECT {key}, run_name FROM metrics"), whole))
    configs = _configs(database, key, whole)
    for run, rows in _rows_by_run(database, key, "step, metrics", whole).items():
        tally = Tally(file.path, "row")
        config = _config(configs.get(run, "{}"), tally)
        yield from read_rows(_metrics(rows, tally), tally, str(names.get(run, run)), form="trackio", settings=config)


def _metrics(rows: list[tuple[Any, ...]], tally: Tally) -> Iterator[tuple[int, Row]]:
    """A row's metrics, with its step as `_step`: TRL's own step is among the metrics."""
    for place, step, text in rows:
        try:
            metrics = json_object(text if isinstance(text, str | bytes) else str(text))
        except BadField:
            tally.add("skipped {n rows}: not a JSON object", place)
        else:
            yield place, {"_step": step, **metrics}


def _configs(database: Connection, key: str, tally: Tally) -> dict[Any, Any]:
    """Run -> its settings as JSON."""
    try:
        return dict(database.execute(f"SELECT {key}, config FROM configs"))
    except _errors():
        tally.add(_NO_SETTINGS)
        return {}


def _config(text: Any, tally: Tally) -> dict[str, object]:
    try:
        return dotted({name: value for name, value in bounded_json(text).items() if not name.startswith("_")})
    except (ValueError, TypeError, AttributeError):
        tally.add(_NO_SETTINGS)
        return {}


# ---- MLflow


def _mlflow(database: Connection, file: LogFile, whole: Tally) -> Iterator[Raw]:
    runs = database.execute("SELECT run_uuid, name FROM runs WHERE lifecycle_stage != 'deleted' ORDER BY start_time")
    params: dict[Any, dict[str, str]] = {}
    for run, key, value in _sound(database.execute("SELECT run_uuid, key, value FROM params"), whole):
        params.setdefault(run, {})[str(key)] = str(value)
    rows = _rows_by_run(database, "run_uuid", "key, value, step, is_nan, timestamp", whole)
    for run, name in list(_sound(runs, whole)):
        tally = Tally(file.path, "row")
        yield mlflow_run(_logged(rows.get(run, []), tally), str(name or run), params.get(run, {}), tally)


def _logged(rows: list[tuple[Any, ...]], tally: Tally) -> Iterator[tuple[int, Point]]:
    """The values of a run with their times. NaN and infinity have numbers of their own in MLflow's database."""
    for place, key, value, step, is_nan, time in rows:
        if type(value) is not float or type(step) is not int or type(key) is not str:
            tally.add("left out {n values}: not a number", place)
            continue
        number = math.nan if is_nan else value if -_LARGEST < value < _LARGEST else 2 * value
        yield time if type(time) is int else 0, (place, key, step, number)


def mlflow_run(logged: Iterable[tuple[int, Point]], name: str, params: Mapping[str, str], tally: Tally) -> Raw:
    """A run of MLflow from its values, each with its time, and its parameters."""
    columns = columns_of((point for _, point in sorted(logged, key=lambda one: one[0])), tally)
    settings = {key.replace("/", "."): setting(value) for key, value in params.items()}
    return Raw("mlflow", host_of(columns.names()), name, columns, settings)


def _has_metrics(path: Path) -> bool:
    try:
        with closing(_connect(path, Tally(path))) as database:
            return bool({"run_name", "run_uuid"} & _columns_of(database))
    except _errors(DataError, OSError):
        return False


def _columns_of(database: Connection) -> set[str]:
    """The columns of the table `metrics`, which both have. None if a table that is read is a view or a virtual table:
    these have no page, and their rows are whatever the file's author had computed."""
    read = "('metrics', 'configs', 'runs', 'params')"
    computed = database.execute(f"SELECT 1 FROM sqlite_master WHERE rootpage = 0 AND lower(name) IN {read}").fetchone()
    return set() if computed else {name for _, name, *_ in database.execute("PRAGMA table_info(metrics)")}


DATABASE: Reader[bytes] = Reader(
    recognises=lambda path, start: start.startswith(_MARK),
    read=_read,
    lacks="is an SQLite database without a run of trackio or MLflow",
    suffixes=(".db", ".sqlite", ".sqlite3"),
    certain=_has_metrics,
)


# ---- MLflow's store of files


_METRICS, _PARAMS, _META = "metrics", "params", "meta.yaml"
_MAX_PARAM = 1 << 14  # bytes


def _read_folder(file: LogFile, tally: Tally) -> list[Raw]:
    """The run of a folder."""
    logged: list[tuple[int, Point]] = []
    for name, path in _below(file.path / _METRICS).items():
        for place, line in lines(path, tally):
            try:
                time, value, step = line.split()[:3]
                logged.append((int(time), (place, name, int(step), float(value))))
            except ValueError:
                if line.strip():
                    tally.add("skipped {n lines} that are not `timestamp value step`", place, f"{name}: {line}")
    title = read_yaml(file.path / _META).get("run_name")
    return [mlflow_run(logged, str(title or file.name), _params(file.path / _PARAMS), tally)]


def _below(folder: Path) -> dict[str, Path]:
    """Name -> file, in the order of the names."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _params(folder: Path) -> dict[str, str]:
    result: dict[str, str] = {}
    for name, path in _below(folder).items():
        with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
            result[name] = file.read(_MAX_PARAM)
    return result


def _of_run(folder: Path) -> Path | None:
    return folder if (folder / _META).is_file() and (folder / _METRICS).is_dir() else None


MLFLOW: Reader[bytes] = Reader(
    recognises=lambda path, start: False,  # always a folder
    read=_read_folder,
    lacks="has no metric with a value",
    suffixes=(),
    of_run=_of_run,
)
