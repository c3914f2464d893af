"""Checks of question files: rows that cannot be used, ids that repeat, sizes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.base.errors import DataError
from holdfast.base.jsonl import Skipped
from holdfast.tasks.catalogue import SETS
from holdfast.tasks.files import iter_examples, joined, unmatched
from holdfast.tasks.questions import Example

_Seen = dict[str, tuple[str, tuple[str, tuple[str, ...]]]]
"""id -> where it was first, and its question and golden answers."""

SHOWN = 10
"""Problems listed per file; the rest is counted."""


@dataclass(slots=True)
class FileReport:
    """`problems` make a file unfit; `notes` are worth knowing."""

    path: str
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(source, split) -> questions."""
    problems: list[str] = field(default_factory=list)
    bad: int = 0
    """Number of problems, including those not listed."""
    notes: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Count a problem; the first `SHOWN` are kept in words."""
        self.bad += 1
        if self.bad <= SHOWN:
            self.problems.append(problem)


def check_files(paths: Iterable[str | os.PathLike[str]]) -> list[FileReport]:
    """A report for each file: rows that cannot be used, ids that occur twice in or between files, sizes, and questions
    that no answer can match."""
    first: _Seen = {}
    return [_check(Path(path), first) for path in paths]


def _check(path: Path, first: _Seen) -> FileReport:
    report = FileReport(str(path))
    examples: list[Example] = []
    unit = "row" if path.suffix == ".parquet" else "line"

    def on_bad(skipped: Skipped) -> None:
        report.add(f"{unit} {skipped.line}: {skipped.field}: {skipped.reason}")

    try:
        for row, example in enumerate(iter_examples(path, on_bad=on_bad), start=1):
            report.counts[example.source, example.split] += 1
            content = (example.question, example.golden_answers)
            if example.id not in first:
                first[example.id] = (f"question {row} of {path}", content)
            else:
                where, before = first[example.id]
                other = "" if before == content else ", with another question or other golden answers"
                report.add(f"question {row}: {example.id} is also {where}{other}")
            examples.append(replace(example, metadata={}))
    except DataError as error:
        report.add(str(error).partition("\n")[0])
    if (note := unmatched(examples)) is not None:
        report.notes.append(f"{note}; training skips them")
    if (note := joined(examples)) is not None:
        report.notes.append(note)
    return report


def size_lines(report: FileReport) -> Sequence[tuple[str, int, str]]:
    """(source/split, questions, verdict) for each part of a file."""
    lines = []
    for (source, split), count in report.counts.items():
        size = SETS[source].size(split) if source in SETS else None
        verdict = "" if size is None else "as published" if size == count else f"published: {size:,}"
        lines.append((f"{source}/{split}", count, verdict))
    return lines
