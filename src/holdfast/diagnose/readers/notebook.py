"""Notebooks, `.ipynb`: the tables that a trainer shows in a cell, and what a cell prints (nbformat 4).

Each table and the prints of each cell go to the reader that would read them as a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

from holdfast.base.stored import bounded_json
from holdfast.diagnose.readers.inside import PRINTED, read_inside
from holdfast.diagnose.readers.names import like_a_reward
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader
from holdfast.diagnose.readers.text import Tally, whole_text

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
