"""What is in question files, and what is wrong with them, across all files at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.data import Example
from holdfast.datasets.catalogue import SETS
from holdfast.datasets.files import iter_examples
from holdfast.errors import DataError
from holdfast.jsonl import Skipped
from holdfast.scoring import normalize_answer

_Seen = dict[str, tuple[str, tuple[str, tuple[str, ...]]]]
"""id -> where it was first, and its question and golden answers."""

SHOWN = 10
"""Problems of a kind that are spelled out for a file; the rest is counted."""


@dataclass(slots=True)
class FileReport:
    """`problems` make a file unfit; `notes` are worth knowing."""

    path: str
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(source, split) -> questions."""
    problems: list[str] = field(default_factory=list)
    bad: int = 0
    """Problems in all, those that are not spelled out included."""
    notes: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Count a problem; the first ones are kept as text."""
        self.bad += 1
        if self.bad <= SHOWN:
            self.problems.append(problem)


def check_files(paths: Iterable[str | os.PathLike[str]]) -> list[FileReport]:
    """A report for each file: rows that cannot be used by row and field, ids that occur twice in or between files,
    sizes beside the published ones, and questions that no answer can be right to."""
    first: _Seen = {}
    return [_check(Path(path), first) for path in paths]


def published_size(source: str, split: str) -> int | None:
    """Of a set's training or test questions, also under the name of the split that they are published as."""
    qa = SETS.get(source)
    if qa is None:
        return None
    return qa.size(split) or qa.sizes.get(split)


def _check(path: Path, first: _Seen) -> FileReport:
    report = FileReport(str(path))
    unscorable: list[Example] = []
    unit = "row" if path.suffix == ".parquet" else "line"

    def on_bad(skipped: Skipped) -> None:
        report.add(f"{unit} {skipped.line}: {skipped.field}: {skipped.reason}")

    try:
        for row, example in enumerate(iter_examples(path, on_bad=on_bad), start=1):
            report.counts[example.source, example.split] += 1
            said = (example.question, example.golden_answers)
            if example.id not in first:
                first[example.id] = (f"question {row} of {path}", said)
            else:
                where, before = first[example.id]
                other = "" if before == said else ", with another question or other golden answers"
                report.add(f"question {row}: {example.id} is also {where}{other}")
            if not any(map(normalize_answer, example.golden_answers)):
                unscorable.append(example)
    except DataError as error:
        report.add(str(error).partition("\n")[0])
    if unscorable:
        report.notes.append(
            f"{len(unscorable)} question(s) have only golden answers of which scoring leaves nothing, such as "
            f"{unscorable[0].id}: {', '.join(map(repr, unscorable[0].golden_answers))}; training skips them"
        )
    return report


def size_lines(report: FileReport) -> Sequence[tuple[str, int, str]]:
    """(source/split, questions, verdict) for each part of a file."""
    lines = []
    for (source, split), count in report.counts.items():
        size = published_size(source, split)
        verdict = "" if size is None else "as published" if size == count else f"published: {size:,}"
        lines.append((f"{source}/{split}", count, verdict))
    return lines
