"""What drivers share: every case fed in both ways, and the answer written.

A line of the input is `{"name", "logged", "mapped"}`, both lists of rows with a `step`. The output has `version`, and
for each name and way of feeding under `alarms` a list of [kind of alarm, its severity, its place], and under `seconds`
the processor time, with what the tool writes on the way and without starting Python. Alarms are shown or sent in the
order of their places; those of one row, or of one finding, have the same place.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

Row = dict[str, Any]
Alarms = list[tuple[str, str, int]]
Fed = Callable[[list[Row], Path], Alarms]
"""(rows, an empty folder) -> alarms, repeated ones too."""


def main(package: str, as_logged: Fed, as_mapped: Fed, **also: Callable[[list[Row], Path], Any]) -> None:
    """The command line of a driver: `PYTHON DRIVER CASES.jsonl ALARMS.json`; `also` asks more of the logged rows."""
    cases, result = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    answer: dict[str, Any] = {"version": version(package), "alarms": {}, "seconds": {}} | {name: {} for name in also}
    for line in Path(cases).read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        alarms = answer["alarms"][case["name"]] = {}
        seconds = answer["seconds"][case["name"]] = {}
        for feed, fed in (("logged", as_logged), ("mapped", as_mapped)):
            with _alone() as folder:
                begun = time.process_time()
                raised = fed(case[feed], folder)
                seconds[feed] = time.process_time() - begun
            alarms[feed] = first_places(raised)
        for name, ask in also.items():
            with _alone() as folder:
                answer[name][case["name"]] = ask(case["logged"], folder)
    Path(result).write_text(json.dumps(answer), encoding="utf-8")


@contextlib.contextmanager
def _alone() -> Any:
    """An empty folder, and nothing printed."""
    quiet = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(quiet),
        contextlib.redirect_stderr(quiet),
    ):
        yield Path(folder)


def first_places(raised: Iterable[tuple[str, str, int]]) -> Alarms:
    """Each kind and severity once, at the first of its places."""
    places: dict[tuple[str, str], int] = {}
    for kind, severity, place in raised:
        places[kind, severity] = min(place, places.get((kind, severity), place))
    return sorted(((*alarm, place) for alarm, place in places.items()), key=lambda alarm: (alarm[2], alarm))


def split(row: Row) -> tuple[int, Row]:
    """The step of a row, and the rest."""
    return int(row["step"]), {name: value for name, value in row.items() if name != "step"}


def stand_in_for_transformers() -> None:
    """A module with the base class of callbacks, which is all that they need of transformers (and so of torch)."""
    module = ModuleType("transformers")
    vars(module)["TrainerCallback"] = type("TrainerCallback", (), {})
    sys.modules["transformers"] = module
