"""Corpora of passages: JSONL, tab-separated tables of DPR, folders of Markdown and text."""

from __future__ import annotations

import csv
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from holdfast.errors import DataError
from holdfast.jsonl import BadField, Judge, Skipped, clean_text, iter_rows, json_kind, lines, text_field
from holdfast.retrieval.folder import folder_passages, text_files
from holdfast.retrieval.types import Document

MOST_CHARACTERS = 1_000_000
"""Of one passage. A search returns whole passages, and an agent reads about a hundred words of each."""


def passages(
    path: str | os.PathLike[str], *, on_skip: Callable[[Skipped], None], replace: bool = False
) -> Iterator[Document]:
    """The passages of a corpus, one after another.

    Args:
        path: JSONL (`.jsonl`, `.json`, `.jsonl.gz`), `{"id": str, "contents": "title\\ntext"}` a line or `title` and
            `text` in place of `contents`, other fields ignored, which covers wiki-18 and FlashRAG; a table of DPR
            (`.tsv`, `.tsv.gz`: id, text, title); or a folder of `.md` and `.txt` files, cut into passages.
        on_skip: told of every row that is malformed or whose id occurred before; such a row is left out.
        replace: put U+FFFD where a line is not UTF-8, instead of skipping it.

    Raises:
        DataError: nothing can be read, no passage can be used, or more than half cannot.

    Memory grows by one hash an id, some 70 bytes.
    """
    path = Path(path)
    if path.is_dir():
        return folder_passages(path, on_skip=on_skip, replace=replace)
    if ".tsv" in path.suffixes:
        return _table_passages(path, on_skip, replace)
    return iter_rows(path, _fresh(_document), what="passage", on_skip=on_skip, replace=replace)


def count_rows(path: str | os.PathLike[str]) -> int:
    """About how many passages a corpus holds: its lines, or for a folder its files."""
    path = Path(path)
    return len(text_files(path)) if path.is_dir() else sum(1 for _ in lines(path))


class CorpusDigest:
    """The fingerprint of passages and their order, one passage at a time."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, document: Document) -> None:
        for text in (document.id, document.contents):
            data = text.encode()
            # The length keeps ("a", "bc") and ("ab", "c") apart.
            self._digest.update(len(data).to_bytes(8, "big") + data)

    def hexdigest(self) -> str:
        """Of what was added so far."""
        return self._digest.hexdigest()


def corpus_hash(documents: Iterable[Document]) -> str:
    """Fingerprint of the passages and their order: an index answers for exactly one."""
    digest = CorpusDigest()
    for document in documents:
        digest.add(document)
    return digest.hexdigest()


def _document(row: dict[str, Any]) -> Document:
    return Document(id=_id(row), contents=_contents(row))


def _contents(row: dict[str, Any]) -> str:
    if "contents" in row or "text" not in row:
        return _bounded(text_field(row, "contents"), "contents")
    title, text = clean_text(row.get("title") or "", "title", empty=True), text_field(row, "text")
    return _bounded(f"{title.strip()}\n{text}", "text")


def _bounded(text: str, field: str) -> str:
    if len(text) > MOST_CHARACTERS:
        raise BadField(
            field, f"holds {len(text):,} characters; a passage may have {MOST_CHARACTERS:,}: cut it into passages"
        )
    return text


def _id(row: dict[str, Any]) -> str:
    value = row.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # row numbers are common ids
    if value is not None and not isinstance(value, str):
        raise BadField("id", f"must be a text, is {json_kind(value)}")
    return text_field(row, "id")


def _fresh(parse: Callable[[Any], Document]) -> Callable[[Any, int], Document]:
    """`parse`, refusing an id that came before. Of an id its 64-bit hash is kept: that two of a million collide has a
    probability of 3e-8."""
    seen: set[int] = set()

    def checked(row: Any, line: int) -> Document:
        document = parse(row)
        key = hash(document.id)
        if key in seen:
            raise BadField("id", f"{document.id!r} occurred on an earlier line")
        seen.add(key)
        return document

    return checked


def _table_passages(path: Path, on_skip: Callable[[Skipped], None], replace: bool) -> Iterator[Document]:
    """A table with a header line that names `id`, `text` and, if there are titles, `title`, in any order. Quoted as
    spreadsheets do; a passage is one line. Titles are put in quotes, as wiki-18 has them."""
    judge = Judge(str(path), "passage", on_skip, "a header line and one passage a line")
    parse = _fresh(_document)
    columns: list[str] | None = None
    for line, raw in lines(path):
        try:
            cells = _cells(raw, replace)
            if columns is None:
                columns = [cell.strip().lower() for cell in cells]
                if not {"id", "text"} <= set(columns):
                    raise DataError(
                        f"{path}:{line}: the header names {', '.join(map(repr, columns))}; a table of passages needs "
                        "the columns id and text, and may have title"
                    )
                continue
            if len(cells) != len(columns):
                raise BadField("row", f"has {len(cells)} cells, the header {len(columns)}")
            row = dict(zip(columns, cells, strict=True))
            title = row.get("title", "").strip()
            row["title"] = f'"{title}"' if title else ""
            document = parse(row, line)
        except BadField as bad:
            judge.skip(line, bad)
        else:
            judge.good += 1
            yield document
    judge.verdict()


def _cells(raw: bytes, replace: bool) -> list[str]:
    csv.field_size_limit(sys.maxsize)
    try:
        text = raw.decode("utf-8", "replace" if replace else "strict")
        return next(csv.reader([text.rstrip("\r\n")], delimiter="\t"))
    except UnicodeDecodeError as error:
        raise BadField("row", f"is not UTF-8 at byte {error.start + 1} of the line") from None
    except csv.Error as error:
        raise BadField("row", f"is not a row of a table ({error})") from None
