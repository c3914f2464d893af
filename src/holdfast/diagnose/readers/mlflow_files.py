"""MLflow's store of files: `mlruns/<experiment>/<run>`, with a file for each metric. Written and checked with MLflow
3.17.

A line of `metrics/<name>` is `timestamp value step`. Names may have slashes, and then lie in folders.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from holdfast.diagnose.readers.columns import Point, columns_of
from holdfast.diagnose.readers.names import host_of
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader
from holdfast.diagnose.readers.settings import read_yaml, setting
from holdfast.diagnose.readers.text import Tally, lines

_METRICS, _PARAMS, _META = "metrics", "params", "meta.yaml"
_MAX_PARAM = 1 << 14  # bytes


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    """The metrics of a run, in the order of their times."""
    logged: list[tuple[int, Point]] = []  # with the time of each
    for name, path in _below(file.path / _METRICS).items():
        for place, line in lines(path, tally):
            try:
                time, value, step = line.split()[:3]
                logged.append((int(time), (place, name, int(step), float(value))))
            except ValueError:
                if line.strip():
                    tally.add("skipped {n lines} that are not `timestamp value step`", place, f"{name}: {line}")
    logged.sort(key=lambda point: point[0])
    columns = columns_of((point for _, point in logged), tally)
    title = read_yaml(file.path / _META).get("run_name")
    return [Raw("mlflow", host_of(columns.names()), str(title or file.name), columns, _settings(file.path / _PARAMS))]


def _below(folder: Path) -> dict[str, Path]:
    """Name -> file, in the order of the names."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _settings(folder: Path) -> dict[str, object]:
    result: dict[str, object] = {}
    for name, path in _below(folder).items():
        with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
            result[name.replace("/", ".")] = setting(file.read(_MAX_PARAM))
    return result


def _of_run(folder: Path) -> Path | None:
    return folder if (folder / _META).is_file() and (folder / _METRICS).is_dir() else None


MLFLOW: Reader[bytes] = Reader(
    recognises=lambda path, start: False,  # always a folder
    read=_read,
    lacks="has no metric with a value",
    suffixes=(),
    of_run=_of_run,
)
