"""Logs inside other files: what the cells of a notebook print, and lines that a collector of logs wrapped in JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from holdfast.base.opening import spooled
from holdfast.diagnose.readers.console import CONSOLE
from holdfast.diagnose.readers.dicts import DICTS
from holdfast.diagnose.readers.facts import CORE, LINE, facts_in, says_core
from holdfast.diagnose.readers.prints import COUNTED, PRINTS
from holdfast.diagnose.readers.reader import LogFile, Numbered, Raw, Reader
from holdfast.diagnose.readers.tables import TABLE
from holdfast.diagnose.readers.text import Tally, head, plain

PRINTED: tuple[Reader[str], ...] = (TABLE, DICTS, CONSOLE, PRINTS)
"""What reads the text of a cell: a table, or what a trainer prints."""
_FIRST = 500
_MIN_TEXTS = 5
"""Texts that say a loss or a reward before they are lines of a log."""


def read_inside(parts: Iterable[str], readers: tuple[Reader[str], ...], file: LogFile, unit: str) -> list[Raw]:
    """What the first reader that recognises a text finds in it. Readers read a file twice, so the text becomes one."""
    with spooled((part.encode("utf-8", "replace") for part in parts), "output") as path:
        start = head(path).lstrip()
        able = (reader for reader in readers if start and reader.recognises(path, start) and reader.certain(path))
        reader = next(able, None)
        read = [] if reader is None else reader.read(LogFile(reader, path, file.name), Tally(file.path, unit))
        return [raw for raw in read if raw.columns]


def unwrapped_lines(rows: Numbered, file: LogFile) -> list[Raw]:
    """The log in the lines that objects hold, such as `{"log": "step 1 reward 0.5\\n", "stream": "stdout"}`."""
    of_rows = (row for _, row in rows)
    first = list(islice(of_rows, _FIRST))
    count = Counter(name for row in first for name, text in row.items() if _is_line(text))
    ((name, times),) = count.most_common(1) or [("", 0)]
    if times < _MIN_TEXTS:
        return []
    texts: Iterator[str] = (f"{row.get(name, '')}".rstrip("\n") + "\n" for row in chain(first, of_rows))
    read = read_inside(texts, (DICTS, CONSOLE, PRINTS, COUNTED), file, "line")
    return [raw for raw in read if len(set(raw.columns.steps().tolist())) >= _MIN_TEXTS]


def _is_line(text: object) -> bool:
    """Whether a value says the number of a loss or a reward."""
    said = text[:LINE] if isinstance(text, str) else ""
    return says_core(said) and any(map(CORE.search, facts_in(plain(said)).numbers))
