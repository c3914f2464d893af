"""Corpora of passages: files of rows, and folders of documents (`retrieval/folders.py`)."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.base.errors import ConfigError, DataError
from holdfast.base.jsonl import BadField, Skipped, Skips, clean_text, json_kind, text_field
from holdfast.base.opening import beginning
from holdfast.base.rows import iter_rows
from holdfast.retrieval.folders import READERS, folder_passages
from holdfast.retrieval.types import Document

MAX_CHARACTERS = 1_000_000
"""The most characters of one passage. A search returns whole passages, and an agent reads a hundred words of each."""


FIELDS = ("id", "title", "text")
"""What a passage is made of. A mapping names the fields of a file that hold them."""
IDS = ("id", "_id", "docid")
"""The usual names of an id; the first that a row has."""
_BEGINNING = 4096
"""Bytes in which the first object of a file begins."""


def passages(
    path: str | os.PathLike[str],
    *,
    on_skip: Callable[[Skipped], None],
    replace: bool = False,
    fields: Mapping[str, str] | None = None,
) -> Iterator[Document]:
    """The passages of a corpus, one after another.

    Args:
        path: a file of rows (JSON lines, plain or .gz, a JSON array, parquet, a table with a header), or a folder (see
            `holdfast.retrieval.folders`). A row has an id (`IDS`), and `contents` ("title\\ntext") or `text` with or
            without `title`; other fields are ignored. This covers wiki-18, FlashRAG, DPR and BEIR.
        on_skip: called with every row that is malformed or repeats an id. Such a row is left out.
        replace: put U+FFFD where a line is not UTF-8, instead of skipping the line.
        fields: which fields of a row hold `FIELDS`, where they have other names.

    Raises:
        DataError: nothing can be read, no passage can be used, or more than half cannot.

    Memory grows by one hash per id, some 70 bytes.
    """
    path = Path(path)
    if path.is_dir():
        return folder_passages(path, on_skip=on_skip, replace=replace)
    if _isdocument_of(path):
        raise DataError(f"{path} is one document, not a file of passages; name the folder that holds it")
    # Titles of DPR's tables are put in quotes, as in wiki-18.
    parse = fresh(partial(document_of, fields=fields or {}, quoted=".tsv" in path.suffixes))
    return iter_rows(path, parse, what="passage", on_skip=on_skip, replace=replace)


def fields_of(pairs: Iterable[str]) -> dict[str, str]:
    """The mapping of `text=body` and the like. Raises `ConfigError`."""
    mapping = {}
    for pair in pairs:
        name, equals, field = pair.partition("=")
        if name not in FIELDS or not equals or not field:
            raise ConfigError(
                f"{pair!r} names no field of a passage; write {', '.join(FIELDS[:-1])} or {FIELDS[-1]}, =, and the "
                "field of your file, such as text=body"
            )
        mapping[name] = field
    return mapping


def files_seen(path: Path, fields: Mapping[str, str] | None = None) -> str:
    """A digest of names, sizes and times of the files of a corpus: while it stays, so do the passages."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    stats = [(file.name if file == path else str(file.relative_to(path)), file.stat()) for file in files]
    seen = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    return hashlib.sha256(json.dumps([seen, dict(fields or {})]).encode()).hexdigest()


class CorpusDigest:
    """Computes the fingerprint of passages and their order, one passage at a time."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, document: Document) -> None:
        """Take the next passage."""
        for text in (document.id, document.contents):
            data = text.encode()
            # The length keeps ("a", "bc") and ("ab", "c") apart.
            self._digest.update(len(data).to_bytes(8, "big") + data)

    def hexdigest(self) -> str:
        """The fingerprint of what was added so far."""
        return self._digest.hexdigest()


def corpus_hash(documents: Iterable[Document]) -> str:
    """Fingerprint of the passages and their order. An index belongs to exactly one."""
    digest = CorpusDigest()
    for document in documents:
        digest.add(document)
    return digest.hexdigest()


def document_of(row: dict[str, Any], fields: Mapping[str, str], quoted: bool) -> Document:
    """The passage in a row. Raises `BadField`."""
    return Document(id=_id(row, fields), contents=_contents(row, fields, quoted))


def _contents(row: dict[str, Any], fields: Mapping[str, str], quoted: bool) -> str:
    if "text" not in fields and ("contents" in row or "text" not in row):
        return _bounded(_text(row, "contents", "text"), "contents")
    text_name, title_name = fields.get("text", "text"), fields.get("title", "title")
    text = _text(row, text_name, "text")
    title = clean_text(row.get(title_name) or "", title_name, empty=True).strip()
    return _bounded(f'"{title}"\n{text}' if quoted and title else f"{title}\n{text}", text_name)


def _text(row: dict[str, Any], name: str, part: str) -> str:
    return text_field(
        row, name, way=f"if it has another name, give --field {part}=NAME, or in a recipe retrieval.fields.{part}"
    )


def _bounded(text: str, field: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise BadField(
            field, f"holds {len(text):,} characters; a passage may have {MAX_CHARACTERS:,}: cut it into passages"
        )
    return text


def _id(row: dict[str, Any], fields: Mapping[str, str]) -> str:
    name = fields.get("id") or next((name for name in IDS if row.get(name) is not None), IDS[0])
    value = row.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # row numbers are common ids
    if value is not None and not isinstance(value, str):
        raise BadField(name, f"must be a string, is {json_kind(value)}")
    return _text(row, name, "id")


def _isdocument_of(path: Path) -> bool:
    """Whether a file is one that a folder may hold. A .txt may hold JSON lines."""
    if path.suffix.lower() not in READERS:
        return False
    start = beginning(path, _BEGINNING)[:_BEGINNING]
    return path.suffix.lower() != ".txt" or re.match(rb"\W*\{", start) is None


def fresh(parse: Callable[[Any], Document]) -> Callable[[Any, int], Document]:
    """`parse`, but an id that occurred before is refused.

    Only a 64-bit hash of each id is stored. Two of a million ids collide with probability 3e-8.
    """
    seen: set[int] = set()

    def checked(row: Any, line: int) -> Document:
        document = parse(row)
        key = hash(document.id)
        if key in seen:
            raise BadField("id", f"{document.id!r} occurred on an earlier line")
        seen.add(key)
        return document

    return checked


class Reading:
    """Counts the passages of a corpus while they are read: what was read, and what was skipped and why."""

    def __init__(self, corpus: str | os.PathLike[str]) -> None:
        self.passages = 0
        self.skips = Skips()
        """The `on_skip` of the reader."""
        self._corpus = corpus
        self._files: set[str] | None = set() if Path(corpus).is_dir() else None

    def counted(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Passes the passages on."""
        for document in documents:
            self.passages += 1
            if self._files is not None:
                self._files.add(document.id.rpartition("#")[0])
            yield document

    def sentences(self) -> list[str]:
        """The corpus with its number of passages, and of a folder that of files; then what was skipped, by reason."""
        files = "" if self._files is None else f" of {len(self._files):,} file{'s' * (len(self._files) != 1)}"
        read = f"{self._corpus}: {self.passages:,} passage{'s' * (self.passages != 1)}{files}"
        return [read, *self.skips.sentences()]
