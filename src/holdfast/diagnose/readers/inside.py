"""Logs inside other files: what the cells of a notebook print, and lines that a collector of logs wrapped in JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from html import unescape
from itertools import chain, islice
from pathlib import Path
from typing import Any

from holdfast.base.opening import spooled
from holdfast.base.stored import bounded_json
from holdfast.diagnose.readers.console import CONSOLE
from holdfast.diagnose.readers.dicts import DICTS
from holdfast.diagnose.readers.facts import CORE, LINE, facts_in, says_core
from holdfast.diagnose.readers.names import like_a_reward
from holdfast.diagnose.readers.prints import COUNTED, PRINTS
from holdfast.diagnose.readers.reader import LogFile, Numbered, Raw, Reader
from holdfast.diagnose.readers.tables import TABLE
from holdfast.diagnose.readers.text import Tally, head, plain, whole_text

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


# ---- notebooks, `.ipynb` (nbformat 4): the tables that a trainer shows in a cell, and what a cell prints


_BEGINS = re.compile(r'\{\s*"(?:cells|metadata|nbformat|nbformat_minor)"\s*:')
_TABLE, _ROW, _CELL = (re.compile(rf"<{tag}\b[^<>]*>", re.IGNORECASE) for tag in ("table", "tr", "t[hd]"))
_TAG = re.compile(r"<[^<>]*>")


def _texts(notebook: Any) -> Iterator[str]:
    """Each table in the outputs of the cells, its cells between tabs, and what each cell prints."""
    for cell in _listed(notebook, "cells"):
        printed = []
        for output in _listed(cell, "outputs"):
            if not isinstance(data := output.get("data"), dict):
                printed.append(_joined(output.get("text")))
            elif tables := _TABLE.split(_joined(data.get("text/html")))[1:]:
                yield from map(_table, tables)
            else:
                printed.append(_joined(data.get("text/plain")))
        yield "".join(printed)


def _listed(value: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects of the list `name` in an object."""
    part = value.get(name)
    return [item for item in part if isinstance(item, dict)] if isinstance(part, list) else []


def _joined(text: Any) -> str:
    """A text, which a notebook may hold as a list of lines."""
    return "".join(part for part in text if isinstance(part, str)) if isinstance(text, str | list) else ""


def _table(html: str) -> str:
    """The rows of a table that follow its tag, a line each.

    >>> _table("<tr><th>Step</th><th>reward</th></tr><tr><td>1</td><td><b>0.5</b></td></tr></table>")
    'Step\\treward\\n1\\t0.5\\n'
    """
    rows = ([_plain(cell) for cell in _CELL.split(row)[1:]] for row in _ROW.split(html)[1:])
    return "".join("\t".join(row) + "\n" for row in rows)


def _plain(cell: str) -> str:
    return " ".join(unescape(_TAG.sub("", cell.partition("</t")[0])).split())


def _longest(notebook: Path, name: str, tally: Tally) -> list[Raw]:
    """The longest log of the notebook, of those with a reward if any has one."""
    text = whole_text(notebook, tally)
    try:
        value = bounded_json(text)
    except ValueError:
        tally.add("the file ends early, or is not JSON")
        return []
    texts = filter(str.strip, _texts(value))
    file = LogFile(NOTEBOOK, notebook, name)
    found = [raw for text in texts for raw in read_inside([text], PRINTED, file, "output line")]
    found.sort(key=lambda raw: (like_a_reward(raw.columns.names()) is not None, len(raw.columns.steps())))
    if (several := sum(len(raw.columns.steps()) > 1 for raw in found)) > 1:
        tally.add(f"the notebook shows {several} logs: the longest was read, and one with a reward before one without")
    return found[-1:]


NOTEBOOK = Reader(
    recognises=lambda path, start: (
        _BEGINS.match(start) is not None and ('"cell_type"' in start or '"nbformat"' in start)
    ),
    read=lambda file, tally: _longest(file.path, file.name, tally),
    lacks="is a notebook, and no output of its cells has rows of metrics. Save it with its outputs",
    suffixes=(".ipynb",),
    certain=lambda path: any(len(raw.columns.steps()) > 1 for raw in _longest(path, "", Tally(path))),
)
