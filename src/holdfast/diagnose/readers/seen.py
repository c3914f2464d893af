"""What a file without a log shows, in sentences: that the run died, or what stands there instead of rows."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from holdfast.diagnose.readers.facts import says_core
from holdfast.diagnose.readers.tables import separator_of
from holdfast.diagnose.readers.text import COLOUR, Tally, clean, head, lines, listed, without_process

_ERROR = "it ended with an error"
_DEATHS = {
    "it ran out of memory": r"(?i:out of memory|OutOfMemoryError|oom-?kill|cannot allocate memory)",
    "its processes lost contact": r"(?i:\bNCCL\b.{0,80}(?:error|timed? ?out)|ncclUnhandled|operation timeout)|"
    r"ActorDiedError|RayActorError|ActorUnavailableError",
    "it was killed": r"\bSIG(?:KILL|TERM|SEGV)\b|Segmentation fault|^\s*Killed\s*$|CANCELLED AT|DUE TO TIME LIMIT",
    _ERROR: r"^(?:\w+\.)*\w*(?:Error|Exception)\b(?:$|:)|^Error executing job\b",
}
"""What ended a run -> what its log says of that, the surest first."""
_PATTERNS = {death: re.compile(pattern) for death, pattern in _DEATHS.items()}
_DONE = re.compile(
    r"\bsucceeded\b|\b(?:training|train|run)\b.{0,20}\b(?:finished|completed?|done)\b|train_runtime", re.I
)
"""What a log says that ended well; errors beside it are of its processes that are taken down."""
_TAIL = 400  # lines
_MAX_LINE = 1 << 12  # characters of a line that are looked at
_SHOWN = 160
_HEADER = re.compile(r"|[^\W\d][^:=(\[{]{0,60}")
"""A name of a column. Lines of a log have marks in them, or begin with a number."""
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs"}


def what_was_seen(path: Path) -> str:
    """Sentences on a file of text without rows; "" if nothing tells more than that there are none."""
    death = _death(lines(path, Tally(path)))
    died = f"The run died before its first row: {death}." if death else ""
    return " ".join(filter(None, (died, _object(head(path)) or _table(head(path)))))


def how_it_ended(path: Path) -> str:
    """A sentence on the error that the last lines of a console show below its last row; "" if they show none."""
    tail = deque(lines(path, Tally(path)), _TAIL)
    after: list[tuple[int, str]] = []
    for number, line in reversed(tail):
        if _DONE.search(line):
            return ""
        if says_core(line) and any(letter.isdigit() for letter in line):
            break
        after.append((number, line))
    is_trace = any("Traceback (most recent call last)" in line for _, line in after)
    death = _death(reversed(after))
    return f"after its last row the run died: {death}" if death and (is_trace or _ERROR not in death) else ""


def _death(numbered: Iterable[tuple[int, str]]) -> str:
    """How the run ended, with the line that says so; "" if no line does."""
    found: dict[str, tuple[int, str]] = {}
    for number, line in numbered:
        plain = without_process(COLOUR.sub("", line[:_MAX_LINE]))
        for death, pattern in _PATTERNS.items():
            if pattern.search(plain):
                found[death] = number, plain.strip()
    for death in filter(found.__contains__, _DEATHS):
        number, line = found[death]
        return f"{death} (line {number:,}: {clean(line, _SHOWN)})"
    return ""


def _table(text: str) -> str:
    """The names and the mark between them, of a text that begins as a table."""
    first, *others = [str(line) for line in text.split("\n", 4) if line.strip()] or [""]
    separator = separator_of(first)
    names = [name.strip().strip('"') for name in first.split(separator)]
    if len(names) < 2 or not others or others[0].count(separator) != len(names) - 1:
        return ""
    if not all(map(_HEADER.fullmatch, names)):
        return ""
    return f"It is a table with {_NAMES[separator]} between its columns {listed(names)}; none of these counts steps."


def _object(text: str) -> str:
    """The keys of the first object in a text of JSON."""
    start = text.lstrip("\ufeff \t\r\n[")
    try:
        value = json.JSONDecoder().raw_decode(start)[0] if start.startswith("{") else None
    except (ValueError, RecursionError):
        return ""
    return f"Its first object has the keys {listed([*value])}." if isinstance(value, dict) and value else ""
