"""Corpora of passages: JSONL, tab-separated tables of DPR, folders of Markdown and text."""

from __future__ import annotations

import csv
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.base.errors import DataError
from holdfast.base.jsonl import BadField, Judge, Skipped, Skips, clean_text, iter_rows, json_kind, lines, text_field
from holdfast.retrieval.types import Document

MOST_CHARACTERS = 1_000_000
"""The most characters of one passage. A search returns whole passages, and an agent reads a hundred words of each."""


def passages(
    path: str | os.PathLike[str], *, on_skip: Callable[[Skipped], None], replace: bool = False
) -> Iterator[Document]:
    """The passages of a corpus, one after another.

    Args:
        path: JSONL (`.jsonl`, `.json`, `.jsonl.gz`), a DPR table (`.tsv`, `.tsv.gz`: id, text, title), or a folder of
            `.md` and `.txt` files, which are cut into passages. A line of JSONL is `{"id": str, "contents":
            "title\\ntext"}`, or has `title` and `text` in place of `contents`; other fields are ignored. This covers
            wiki-18 and FlashRAG.
        on_skip: called with every row that is malformed or repeats an id. Such a row is left out.
        replace: put U+FFFD where a line is not UTF-8, instead of skipping the line.

    Raises:
        DataError: nothing can be read, no passage can be used, or more than half cannot.

    Memory grows by one hash per id, some 70 bytes.
    """
    path = Path(path)
    if path.is_dir():
        return folder_passages(path, on_skip=on_skip, replace=replace)
    if ".tsv" in path.suffixes:
        return _table_passages(path, on_skip, replace)
    return iter_rows(path, _fresh(_document), what="passage", on_skip=on_skip, replace=replace)


def count_rows(path: str | os.PathLike[str]) -> int:
    """Roughly how many passages a file holds: its lines."""
    return sum(1 for _ in lines(Path(path)))


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
        raise BadField("id", f"must be a string, is {json_kind(value)}")
    return text_field(row, "id")


def _fresh(parse: Callable[[Any], Document]) -> Callable[[Any, int], Document]:
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


def _table_passages(path: Path, on_skip: Callable[[Skipped], None], replace: bool) -> Iterator[Document]:
    """Passages of a table, one per line. The header line names `id`, `text` and optionally `title`, in any order.

    Cells are quoted as in spreadsheets. Titles are put in quotes, as in wiki-18.
    """
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


SUFFIXES = (".md", ".markdown", ".txt")
WORDS = 100
"""The most words of a passage cut from a file, as in Search-R1's corpus: three fit into 500 tokens."""
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$")


def folder_passages(folder: Path, *, on_skip: Callable[[Skipped], None], replace: bool = False) -> Iterator[Document]:
    """Passages of at most `WORDS` words. The id is `path#n`, the title the nearest heading above or the file's name.

    Names that begin with a dot are left out. A file of another type, and one without a paragraph, is reported as
    skipped. So is one that is not UTF-8, which `replace` reads with U+FFFD. Raises `DataError` for a folder without
    files of these types, or when more than half of them cannot be read.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not _is_hidden(path.relative_to(folder)))
    if not any(path.suffix.lower() in SUFFIXES for path in files):
        raise DataError(f"{folder} contains no .md or .txt file; name a folder that does, or a JSONL file of passages")
    judge = Judge(str(folder), "file", on_skip, "files of text")
    for path in files:
        name = path.relative_to(folder).as_posix()
        skipped = partial(Skipped, path=str(path), line=None, field="file")
        if path.suffix.lower() not in SUFFIXES:
            on_skip(skipped(reason=f"{path.suffix.lower() or 'a name without an ending'} is not read"))
            continue
        try:
            text = path.read_text(encoding="utf-8-sig", errors="replace" if replace else "strict")
        except UnicodeDecodeError as error:
            judge.report(skipped(reason=f"is not UTF-8 at byte {error.start + 1}"))
            continue
        except OSError as error:
            judge.report(skipped(reason=f"cannot be read: {error.strerror}"))
            continue
        part = 0
        for part, (title, passage) in enumerate(cut(text, path.stem), start=1):
            yield Document(f"{name}#{part}", f"{title}\n{passage}")
        judge.good += part > 0
        if not part:
            on_skip(skipped(reason="has no paragraph"))
    judge.verdict()


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def cut(text: str, name: str) -> Iterator[tuple[str, str]]:
    """(title, passage) pairs: whole paragraphs as far as they fit, long paragraphs in pieces. A paragraph that only
    repeats the title above it is no passage.

    >>> list(cut("# Orsa\\n\\nA town.\\n\\nBy the lake.\\n# Mora\\nA village.", "towns"))
    [('Orsa', 'A town. By the lake.'), ('Mora', 'A village.')]
    """
    title = name
    words: list[str] = []
    for block, is_heading in _blocks(text):
        if is_heading:
            if words:
                yield title, " ".join(words)
            title, words = block or name, []
            continue
        if not words and _letters(block) == _letters(title):
            title = " ".join(block.split())  # of `orsa-lake` and `Orsa Lake` the one that was written to be read
            continue
        block_words = block.split()
        if words and len(words) + len(block_words) > WORDS:
            yield title, " ".join(words)
            words = []
        words += block_words
        while len(words) > WORDS:
            yield title, " ".join(words[:WORDS])
            words = words[WORDS:]
    if words:
        yield title, " ".join(words)


def _letters(title: str) -> str:
    return re.sub(r"[\W_]+", "", title.lower())


def _blocks(text: str) -> Iterator[tuple[str, bool]]:
    """Paragraphs and the texts of headings, in order, and whether it is a heading. `# a comment` in a fenced block of
    code is none."""
    paragraph: list[str] = []
    fenced = False
    for line in [*text.splitlines(), ""]:
        is_fence = line.lstrip().startswith(("```", "~~~"))
        heading = None if fenced or is_fence else _HEADING.match(line)
        fenced ^= is_fence
        if paragraph and (heading or not line.strip()):
            yield "\n".join(paragraph), False
            paragraph = []
        if heading:
            yield heading[1].strip(), True
        elif line.strip():
            paragraph.append(line)
