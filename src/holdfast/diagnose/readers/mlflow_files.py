"""MLflow's store of files: `mlruns/<experiment>/<run>`, with a file for each metric. Written and checked with MLflow
3.17.

A line of `metrics/<name>` is `timestamp value step`. Names may have slashes, and then lie in folders.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from pathlib import Path

import numpy as np

from holdfast.diagnose.readers.names import host_of
from holdfast.diagnose.readers.points import Points
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader
from holdfast.diagnose.readers.settings import read_yaml, setting
from holdfast.diagnose.readers.text import Tally, lines

_METRICS, _PARAMS, _META = "metrics", "params", "meta.yaml"
_LARGEST_PARAM = 1 << 14  # bytes
_LARGEST = (1 << 63) - 1


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    """The metrics of a run, in the order of their times."""
    names: list[str] = []
    which, times, steps, values, places = array("I"), array("q"), array("q"), array("d"), array("I")
    for name, path in _below(file.path / _METRICS).items():
        for first, some in lines(path, tally):
            for place, line in enumerate(some, first):
                try:
                    time, value, step = line.split()[:3]
                    row = min(max(int(time), 0), _LARGEST), min(max(int(step), -1), _LARGEST), float(value)
                except ValueError:
                    if line.strip():
                        tally.add("skipped {n lines} that are not `timestamp value step`", place, f"{name}: {line}")
                    continue
                times.append(row[0])
                steps.append(row[1])
                values.append(row[2])
                which.append(len(names))
                places.append(place)
        names.append(name)
    points = Points(tally)
    order = np.argsort(np.array(times), kind="stable")
    points.add((places[i], names[which[i]], steps[i], values[i]) for i in order)
    columns = points.columns()
    title = read_yaml(file.path / _META).get("run_name")
    return [Raw("mlflow", host_of(columns.names()), str(title or file.name), columns, _settings(file.path / _PARAMS))]


def _below(folder: Path) -> dict[str, Path]:
    """Name -> file, in the order of the names."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _settings(folder: Path) -> dict[str, object]:
    result: dict[str, object] = {}
    for name, path in _below(folder).items():
        with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
            result[name.replace("/", ".")] = setting(file.read(_LARGEST_PARAM))
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
