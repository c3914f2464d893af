"""The folder of an evaluation: settings, one line per answer, results. It can be continued after a stop at any time.

settings.json      what the answers depend on; a folder is never continued under other settings
questions.jsonl    one row per question and sample, in complete lines
results.json       written last, from the rows alone
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.base.errors import ConfigError, DataError
from holdfast.base.files import write_whole
from holdfast.base.jsonl import own_rows, write_jsonl
from holdfast.base.stored import read_object

FORMAT = "holdfast-eval-1"
SETTINGS, ROWS, RESULTS = "settings.json", "questions.jsonl", "results.json"
OVER_TRAINING = "over_training.jsonl"
"""Scores of every checkpoint of a run, a line each."""
FAILED = ("retrieval_failed", "error")
"""Statuses that say nothing about the model. Such a question is asked again."""

Row = dict[str, Any]


class EvalFolder:
    """The files of one evaluation."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        """The answers by id. Failures of earlier runs are left out, so they are asked again; those of this run are
        kept."""
        self.failed_before: set[str] = set()
        """Ids of the answers that failed in earlier runs."""

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Read the answers that the folder has already.

        Raises `ConfigError` when the folder was made under other settings, except for the size of a batch, or cannot be
        written.
        """
        new = json.loads(json.dumps(settings))
        old = self._settings()
        if old is not None and (name := _differing(old, new)) is not None:
            raise ConfigError(
                f"{self.path} contains an evaluation with {name} = {_shown(old.get(name))}, and this one has "
                f"{_shown(new.get(name))}; give another --out, or delete that folder"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if old is None and (self.path / ROWS).exists():
                raise ConfigError(f"{self.path} contains answers without {SETTINGS}; give another --out")
            if old != new:
                write_json(self.path / SETTINGS, new)
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be written ({error.strerror}); give --out a folder that can"
            ) from error
        rows = read_whole_rows(self.path / ROWS)
        self.rows = {row["id"]: row for row in rows if row["status"] not in FAILED}
        self.failed_before = {row["id"] for row in rows if row["status"] in FAILED}
        if (self.path / ROWS).exists():  # its last line may be cut off
            write_jsonl(self.path / ROWS, self.rows.values())

    def add(self, rows: Iterable[Row]) -> None:
        """Append answers with new ids, in one write."""
        new = [row for row in rows if row["id"] not in self.rows]
        if not new:
            return
        text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in new)
        with (self.path / ROWS).open("a", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self.rows.update((row["id"], row) for row in new)

    def discard(self) -> None:
        """Remove the answers and their settings."""
        for name in (ROWS, SETTINGS):
            (self.path / name).unlink(missing_ok=True)
        self.rows = {}

    def finish(self, ids: Sequence[str], results: Mapping[str, Any]) -> None:
        """Sort the rows into the order of the questions, and write the results."""
        ordered = [self.rows[id] for id in ids]
        if [row["id"] for row in read_whole_rows(self.path / ROWS)] != list(ids):
            write_jsonl(self.path / ROWS, ordered)
        write_json(self.path / RESULTS, results)

    def _settings(self) -> dict[str, Any] | None:
        path = self.path / SETTINGS
        return read_object(path, ConfigError, "give another --out, or delete that folder") if path.exists() else None


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """The first setting that differs; another batch size moves only the last bits of a logit, and may be needed to fit
    into memory."""
    return next((name for name in {**new, **old} if name != "batch" and old.get(name) != new.get(name)), None)


def read_whole_rows(path: Path) -> list[Row]:
    """The answers in a file, which may be missing. Raises `DataError` as `own_rows`."""
    problem = "is not an answer of an evaluation; remove the line, and the question is asked again"
    return list(own_rows(path, problem, id=str, status=str))


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a crash leaves the old file or the new one."""
    write_whole(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_results(path: Path) -> dict[str, Any]:
    """The results of an evaluation folder, or of its results.json. Raises `DataError`."""
    file = path / RESULTS if path.is_dir() else path
    if not file.exists():
        unfinished = (file.parent / ROWS).is_file()
        hint = "the evaluation is unfinished; the same command continues it" if unfinished else "give a folder of eval"
        raise DataError(f"{file} does not exist: {hint}")
    results = read_object(file, DataError, "evaluate again to renew it")
    if results.get("format") != FORMAT:
        raise DataError(f"{file} is not a results file of holdfast eval (its format is not {FORMAT!r})")
    return results


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:80] + " …"
