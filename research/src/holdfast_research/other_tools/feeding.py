"""What drivers share: every case fed in both ways, and the answer written.

A line of the input is `{"name", "logged", "mapped"}`, both lists of rows with a `step`. The output has `version`, and
under `alarms` for each name and way of feeding a list of [kind of alarm, its severity].
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

Row = dict[str, Any]
Alarms = list[tuple[str, str]]
Fed = Callable[[list[Row], Path], Alarms]
"""(rows, an empty folder) -> alarms."""


def main(package: str, as_logged: Fed, as_mapped: Fed) -> None:
    """The command line of a driver: `PYTHON DRIVER CASES.jsonl ALARMS.json`."""
    cases, result = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    alarms: dict[str, dict[str, Alarms]] = {}
    for line in Path(cases).read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        said = alarms[case["name"]] = {}
        for feed, fed in (("logged", as_logged), ("mapped", as_mapped)):
            quiet = io.StringIO()
            with (
                tempfile.TemporaryDirectory() as folder,
                contextlib.redirect_stdout(quiet),
                contextlib.redirect_stderr(quiet),
            ):
                said[feed] = sorted(set(fed(case[feed], Path(folder))))
    Path(result).write_text(json.dumps({"version": version(package), "alarms": alarms}), encoding="utf-8")


def split(row: Row) -> tuple[int, Row]:
    """The step of a row, and the rest."""
    return int(row["step"]), {name: value for name, value in row.items() if name != "step"}


def stand_in_for_transformers() -> None:
    """A module with the base class of callbacks, which is all that they need of transformers (and so of torch)."""
    module = ModuleType("transformers")
    vars(module)["TrainerCallback"] = type("TrainerCallback", (), {})
    sys.modules["transformers"] = module
