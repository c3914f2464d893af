"""A folder of Markdown or text files as a corpus: each file is cut into passages at its paragraphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.errors import DataError
from holdfast.jsonl import BadField, Judge, Skipped
from holdfast.retrieval.types import Document

SUFFIXES = (".md", ".markdown", ".txt")
WORDS = 100
"""Of a passage, at most: what Search-R1's corpus has, and what three of fit into 500 tokens."""
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$")


def text_files(folder: Path) -> list[Path]:
    """Markdown and text files below a folder, sorted; what begins with a dot is left out."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def folder_passages(folder: Path, *, on_skip: Callable[[Skipped], None], replace: bool = False) -> Iterator[Document]:
    """Passages of at most `WORDS` words. The id is `path#n`, the title the nearest heading above, else the file's name.

    A file that is not UTF-8 is skipped and reported, or read with U+FFFD where it is not (`replace`). Raises
    `DataError` for a folder without files, or when more than half of them cannot be read.
    """
    files = text_files(folder)
    if not files:
        raise DataError(f"{folder} holds no .md or .txt file; name a folder that does, or a JSONL file of passages")
    judge = Judge(str(folder), "file", on_skip, "files of text")
    for number, path in enumerate(files, start=1):
        name = path.relative_to(folder).as_posix()
        try:
            text = path.read_text(encoding="utf-8-sig", errors="replace" if replace else "strict")
        except UnicodeDecodeError as error:
            judge.skip(number, BadField(name, f"is not UTF-8 at byte {error.start + 1}"))
            continue
        except OSError as error:
            judge.skip(number, BadField(name, f"cannot be read: {error.strerror}"))
            continue
        judge.good += 1
        for part, (title, passage) in enumerate(cut(text, path.stem), start=1):
            yield Document(f"{name}#{part}", f"{title}\n{passage}")
    judge.verdict()


def cut(text: str, name: str) -> Iterator[tuple[str, str]]:
    """(title, passage) pairs: whole paragraphs as long as they fit, a long paragraph in pieces.

    >>> list(cut("# Orsa\\n\\nA town.\\n\\nBy the lake.\\n# Mora\\nA village.", "towns"))
    [('Orsa', 'A town. By the lake.'), ('Mora', 'A village.')]
    """
    title = name
    words: list[str] = []
    for block in _blocks(text):
        if heading := _HEADING.match(block):
            if words:
                yield title, " ".join(words)
            title, words = heading[1].strip() or name, []
            continue
        own = block.split()
        if words and len(words) + len(own) > WORDS:
            yield title, " ".join(words)
            words = []
        words += own
        while len(words) > WORDS:
            yield title, " ".join(words[:WORDS])
            words = words[WORDS:]
    if words:
        yield title, " ".join(words)


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs and headings, in order."""
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        if paragraph and (not line.strip() or _HEADING.match(line)):
            yield "\n".join(paragraph)
            paragraph = []
        if _HEADING.match(line):
            yield line
        elif line.strip():
            paragraph.append(line)
