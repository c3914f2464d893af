"""Question files in any of the four forms: read row by row, written atomically."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from holdfast.base.errors import DataError, MissingExtra
from holdfast.base.files import replacing
from holdfast.base.jsonl import BadField, Judge, Skipped, iter_rows, write_jsonl
from holdfast.data.catalogue import Form
from holdfast.data.questions import Example
from holdfast.data.rows import example_of, row_of

_SPLITS = ("train", "dev", "test", "validation")
_ROWS = 1024  # converted at a time; contexts of HotpotQA make a row 6 kB


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
            raise DataError(f"{path}: questions {seen[example.id]} and {row} are both {example.id}; ids must be unique")
        seen[example.id] = row
        examples.append(example)
    return tuple(examples)


def iter_examples(
    path: str | os.PathLike[str],
    *,
    source: str | None = None,
    split: str | None = None,
    on_bad: Callable[[Skipped], None] | None = None,
) -> Iterator[Example]:
    """The questions of a .jsonl, .jsonl.gz or .parquet file, in order, in memory that does not grow with the file.

    A row names its own source, split and index; else `source` and `split` are the file's (see `place_of`), and the
    index is its line or row, from 0. Rows that cannot be used go to `on_bad`. Raises `DataError` for the first of them
    when there is no `on_bad`, for a file that cannot be read, and when more than half of its rows are bad.
    """
    path = Path(path)
    file_source, file_split = place_of(path)
    source, split = source or file_source, split or file_split

    def parse(row: dict[str, Any], number: int) -> Example:
        return example_of(row, source=source, split=split, index=number - 1)

    on_bad = on_bad or _refuse
    if path.suffix == ".parquet":
        yield from _parquet_rows(path, parse, on_bad)
    else:
        yield from iter_rows(path, parse, what="question", on_skip=on_bad)


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
    """The format that a file's ending names. Raises `DataError` for any but .jsonl, .jsonl.gz, .json and .parquet."""
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


def _parquet_rows(
    path: Path, parse: Callable[[dict[str, Any], int], Example], on_bad: Callable[[Skipped], None]
) -> Iterator[Example]:
    pyarrow, parquet = import_pyarrow()
    if not path.is_file():
        raise DataError(f"{path} does not exist" if not path.exists() else f"{path} is a folder; name a file in it")
    judge = Judge(str(path), "question", on_bad, form="rows")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    try:
                        example = parse(row, number)
                    except BadField as bad:
                        judge.skip(number, bad)
                    else:
                        judge.good += 1
                        yield example
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {error}") from error
    judge.verdict()


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


def import_pyarrow() -> tuple[Any, Any]:
    """The modules `pyarrow` and `pyarrow.parquet`. Raises `MissingExtra`."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise MissingExtra("pyarrow", "data") from None
    return pyarrow, parquet
