"""Question files in any of the four forms: read row by row, written atomically, checked; and the task set of them."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from holdfast.base.errors import ConfigError, DataError
from holdfast.base.files import replacing
from holdfast.base.jsonl import BadField, Skipped, Skips, write_jsonl
from holdfast.base.parquet import import_pyarrow
from holdfast.base.rows import iter_rows, read_rows
from holdfast.base.scoring import normalize_answer
from holdfast.recipe import Config
from holdfast.recipe.paths import QUESTIONS, require
from holdfast.tasks.catalogue import SETS, Form
from holdfast.tasks.questions import Example, hold_out
from holdfast.tasks.rows import example_of, row_of
from holdfast.tasks.task_set import Questions, TaskSet

_SPLITS = ("train", "dev", "test", "validation")
_ROWS = 1024  # written at a time
_SHOWN = 3
_MARKS = ("|", ";", " / ")
"""What people put between several answers in one text."""


def read_questions(
    path: str | os.PathLike[str],
    *,
    source: str | None = None,
    split: str = "train",
    on_skip: Callable[[Skipped], None] | None = None,
) -> tuple[Example, ...]:
    """The questions of a file to train on, of any kind and form (`holdfast.base.rows`, `holdfast.tasks.rows`).

    `source` defaults to the file's name without its ending; the names of source, split and index in a row do not count.
    A row is skipped, counted and reported (to `on_skip`, else in one logged warning) when it has no question or no
    golden answers, or when normalisation leaves nothing of any of these, because no prediction could then be correct.
    Raises `DataError` for a file that cannot be read, that holds no usable row, or in which more than half of the rows
    cannot be used.
    """
    name = Path(path).name.removesuffix(".gz")
    source = source or Path(name).stem

    def parse(row: dict[str, Any], line: int) -> Example:
        example = matchable(example_of(row, source=source, split=split, index=line - 1))
        return replace(example, source=source, split=split, index=line - 1)

    return tuple(read_rows(path, parse, what="question", on_skip=on_skip))


def matchable(example: Example) -> Example:
    """The example. Raises `BadField` if no answer can score."""
    if not can_match(example):
        shown = ", ".join(map(repr, example.golden_answers))
        raise BadField("golden_answers", f"{shown} is empty without punctuation and articles")
    return example


def can_match(example: Example) -> bool:
    """Whether an answer can score: normalisation leaves something of a golden answer."""
    return any(map(normalize_answer, example.golden_answers))


def unmatched(examples: Iterable[Example]) -> str | None:
    """A sentence on the questions to which no answer can score; None if there are none.

    >>> grade = Example(source="s", split="dev", index=1, question="Which grade?", golden_answers=("A",))
    >>> unmatched([grade])
    "1 question has no golden answer that scoring can match: s/dev/1 ('A')"
    """
    lost = [example for example in examples if not can_match(example)]
    if not lost:
        return None
    s = "questions have" if len(lost) > 1 else "question has"
    shown = ", ".join(f"{e.id} ({', '.join(map(repr, e.golden_answers))})" for e in lost[:_SHOWN])
    return f"{len(lost):,} {s} no golden answer that scoring can match: {shown}{', …' * (len(lost) > _SHOWN)}"


def joined(examples: Sequence[Example]) -> str | None:
    """A sentence if most questions have one golden answer that looks like several in one text; else None.

    >>> texts = ("Mira|M. Tolvan", "Orsa|Lake Orsa", "Lomme")
    >>> joined([Example(source="s", split="dev", index=1, question="?", golden_answers=(text,)) for text in texts])
    "2 of 3 questions have one golden answer with '|' in it ('Mira|M. Tolvan', …); write a list, or columns answer 1, …"
    """
    golds = [example.golden_answers for example in examples]
    for mark in _MARKS:
        found = [texts[0] for texts in golds if len(texts) == 1 and mark in texts[0]]
        if 2 * len(found) > len(golds):
            return (
                f"{len(found):,} of {len(golds):,} questions have one golden answer with {mark!r} in it ({found[0]!r}, "
                "…); write a list, or columns answer 1, …"
            )
    return None


def read_examples(
    path: str | os.PathLike[str], *, source: str | None = None, split: str | None = None
) -> tuple[Example, ...]:
    """Every question of a file of any form. Strict, because an evaluation must not drop a question silently.

    Raises `DataError` for the first row that cannot be used and for two rows with one id, both named by row and field.
    """
    seen: dict[str, int] = {}
    examples = []
    for row, example in enumerate(iter_examples(path, source=source, split=split), start=1):
        if example.id in seen:
            raise DataError(
                f"{path}: questions {seen[example.id]} and {row} both have the id {example.id}; ids must be unique"
            )
        seen[example.id] = row
        examples.append(example)
    return tuple(examples)


def iter_examples(
    path: str | os.PathLike[str],
    *,
    source: str | None = None,
    split: str | None = None,
    on_bad: Callable[[Skipped], None] | None = None,
    on_taken: Callable[[str], None] | None = None,
) -> Iterator[Example]:
    """The questions of a file of any kind and form, in order, in memory that does not grow with the file.

    A row names its own source, split and index; else `source` and `split` are the file's (see `place_of`), and the
    index is its line or row, from 0. `on_taken` as in `example_of`. Rows that cannot be used go to `on_bad`. Raises
    `DataError` for the first of them when there is no `on_bad`, for a file that cannot be read, and when more than half
    of its rows are bad.
    """
    path = Path(path)
    file_source, file_split = place_of(path)
    source, split = source or file_source, split or file_split

    def parse(row: dict[str, Any], number: int) -> Example:
        return example_of(row, source=source, split=split, index=number - 1, on_taken=on_taken)

    return iter_rows(path, parse, what="question", on_skip=on_bad or _refuse)


def place_of(path: str | os.PathLike[str]) -> tuple[str, str]:
    """(source, split) from a file's name, for rows that do not name them: `nq/test.jsonl`, or `nq.jsonl` (a test set).

    >>> place_of("data/nq/dev.jsonl.gz"), place_of("data/mine.parquet")
    (('nq', 'dev'), ('mine', 'test'))
    """
    path = Path(path)
    name = path.name.split(".")[0]
    if name in _SPLITS:
        return path.absolute().parent.name or "questions", name
    return name, "test"


def file_type_of(path: str | os.PathLike[str]) -> Literal["jsonl", "parquet"]:
    """The format to write that a file's ending names. Raises `DataError` for any but .jsonl, .json and .parquet."""
    name = Path(path).name
    if name.endswith((".jsonl", ".jsonl.gz", ".json")):
        return "jsonl"
    if name.endswith(".parquet"):
        return "parquet"
    raise DataError(f"{path}: a file of questions ends in .jsonl, .jsonl.gz or .parquet")


def write_examples(
    path: str | os.PathLike[str], examples: Iterable[Example], form: Form, *, reword: bool = False
) -> int:
    """Write a file of a form; returns the number of questions. After an error the old file is unchanged.

    Raises `DataError` when form and ending do not fit, `MissingExtra` for pyarrow.
    """
    path = Path(path)
    if path.name.endswith(".gz"):
        raise DataError(f"{path}: questions cannot be written compressed; leave out .gz")
    if file_type_of(path) != ("jsonl" if form == "jsonl" else "parquet"):
        ending = ".jsonl" if form == "jsonl" else ".parquet"
        raise DataError(f"{path}: a file of the format {form} must end in {ending}")
    rows = (row_of(example, form, reword=reword) for example in examples)
    return write_jsonl(path, rows) if form == "jsonl" else _write_parquet(path, rows, form)


def _refuse(bad: Skipped) -> None:
    raise DataError(str(bad))


def _write_parquet(path: Path, rows: Iterator[dict[str, Any]], form: Form) -> int:
    pyarrow, parquet = import_pyarrow()
    schema = _schema(pyarrow, form)
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with replacing(path) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        while chunk := list(islice(rows, _ROWS)):
            writer.write_table(pyarrow.Table.from_pylist(chunk, schema=schema))
            count += len(chunk)
    return count


def _schema(pa: Any, form: Form) -> Any:
    """The columns of `row_of`."""
    text, texts = pa.string(), pa.list_(pa.string())
    target = pa.struct([("target", texts)])
    reward = pa.struct([("style", text), ("ground_truth", target)])
    extra = [("split", text), ("index", pa.int64())]
    if form != "searchr1":
        arguments = pa.struct([("question", text), ("ground_truth", target), ("data_source", text)])
        tools = pa.struct([("search", pa.struct([("create_kwargs", arguments)]))])
        extra += [("question", text), ("need_tools_kwargs", pa.bool_()), ("tools_kwargs", tools)]
    columns = [("id", text), ("question", text), ("golden_answers", texts), ("data_source", text)]
    columns += [("prompt", pa.list_(pa.struct([("role", text), ("content", text)]))), ("ability", text)]
    columns += {
        "searchr1": [("reward_model", reward)],
        "verl": [("agent_name", text), ("reward_model", reward)],
        "skyrl": [("env_class", text), ("reward_spec", reward)],
    }[form]
    return pa.schema([*columns, ("extra_info", pa.struct(extra)), ("metadata", text), ("fields", text)])


# ---- the task set of files

Note = Callable[[str], None]
"""Takes a sentence for people."""


class FileTasks(TaskSet):
    """Questions in files. `note` gets the number of skipped rows of a file by reason."""

    def __init__(self, config: Config, note: Note) -> None:
        self._config, self._data, self._note = config, config.data, note

    def questions(self) -> Questions:
        """Without a dev file, some training questions are held out. Errors name the file and the line."""
        require(self._config, *QUESTIONS)
        data = self._data
        train, dev, test = (self._read(path, split) for split, path in data.files())
        if data.dev is None:
            train, dev = held_out(train, f"data.train = {data.train!r}", "add questions or set data.dev")
        return Questions(train=train, dev=dev, test=test)

    @property
    def has_test(self) -> bool:
        return self._data.test is not None

    def refusals(self, config: Config) -> Iterator[str]:
        """None: its settings are the files."""
        return iter(())

    def fingerprint(self) -> Mapping[str, str]:
        """The digest of the training file, and whether some of its questions are held out; empty if demonstrations are
        not made of them."""
        if self._config.warm_start.data is not None:
            return {}
        digest = hashlib.sha256(Path(self._data.train).read_bytes()).hexdigest()
        return {"questions": digest, "held out": "some" if self._data.dev is None else "none"}

    def _read(self, path: str | None, split: str) -> tuple[Example, ...]:
        if path is None:
            return ()
        with skipped_rows(path, f"data.{split}", self._note) as on_skip:
            questions = read_questions(path, split=split, on_skip=on_skip)
        if told := joined(questions):
            self._note(f"data.{split} = {path!r}: {told}")
        return questions


def held_out(examples: tuple[Example, ...], where: str, remedy: str) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """`hold_out`. Raises `ConfigError` if no training questions are left."""
    train, dev = hold_out(examples)
    if not train:
        raise ConfigError(f"{where} has only {len(dev)} question(s), too few to keep some for evaluation; {remedy}")
    return train, dev


@contextmanager
def skipped_rows(path: str, setting: str, note: Note) -> Iterator[Callable[[Skipped], None]]:
    """An `on_skip` for a reader of rows. What was skipped goes to `note` by reason. A `DataError` inside gets the name
    of the setting."""
    skips = Skips()
    try:
        yield skips
    except DataError as error:
        raise DataError(f"{setting}: {error}") from error
    if told := skips.sentences():
        note(f"{setting} = {path!r}: {'; '.join(told)}")


# ---- checks of question files: rows that cannot be used, ids that repeat, sizes

_Seen = dict[str, tuple[str, tuple[str, tuple[str, ...]]]]
"""id -> where it was first, and its question and golden answers."""

MAX_PROBLEMS = 10
"""Listed per file; the rest is counted."""


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
        """Count a problem; the first `MAX_PROBLEMS` are kept in words."""
        self.bad += 1
        if self.bad <= MAX_PROBLEMS:
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
