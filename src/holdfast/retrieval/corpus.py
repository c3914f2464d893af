"""A corpus of passages from JSONL."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.jsonl import BadField, Skipped, json_kind, read_rows, text_field
from holdfast.retrieval.types import Document


def read_corpus(
    path: str | os.PathLike[str], *, on_skip: Callable[[Skipped], None] | None = None
) -> tuple[Document, ...]:
    """Passages of a JSONL file (or .jsonl.gz): `{"id": str, "contents": "title\\ntext"}` a line, other fields ignored.

    A row that is malformed, or whose id occurred before, is skipped, counted and reported: to `on_skip`, else in one
    logged warning. Raises `DataError` for a file that cannot be read, that holds no usable passage, or of which more
    than half is bad.
    """
    first_line: dict[str, int] = {}

    def parse(row: dict[str, Any], line: int) -> Document:
        if "contents" not in row and "text" in row:
            raise BadField("contents", "missing; join 'title' and 'text' with a line break into 'contents'")
        document = Document(id=_id(row), contents=text_field(row, "contents"))
        if document.id in first_line:
            raise BadField("id", f"{document.id!r} is already on line {first_line[document.id]}")
        first_line[document.id] = line
        return document

    documents, _ = read_rows(path, parse, what="passage", on_skip=on_skip)
    return tuple(documents)


def corpus_hash(documents: Iterable[Document]) -> str:
    """Fingerprint of the passages and their order: an index answers for exactly one."""
    digest = hashlib.sha256()
    for document in documents:
        for text in (document.id, document.contents):
            data = text.encode()
            digest.update(len(data).to_bytes(8, "big") + data)  # the length keeps ("a", "bc") and ("ab", "c") apart
    return digest.hexdigest()


def _id(row: dict[str, Any]) -> str:
    value = row.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # row numbers are common ids
    if value is not None and not isinstance(value, str):
        raise BadField("id", f"must be a text, is {json_kind(value)}")
    return text_field(row, "id")
