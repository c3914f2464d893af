"""verl's console log: lines such as `step:12 - actor/entropy:0.3 - …` among other output, often with Ray's prefix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from holdfast.diagnose.readers.columns import MAX_NAMES, number_in
from holdfast.diagnose.readers.names import host_of
from holdfast.diagnose.readers.reader import Frame, Raw, Reader, Row, read_rows
from holdfast.diagnose.readers.runs import Lines, read_runs
from holdfast.diagnose.readers.settings import setting
from holdfast.diagnose.readers.text import COLOUR, Tally, lines, without_process
from holdfast.hosts import UNKNOWN

STEP = re.compile(r"(?<![\w./@-])step:(\d{1,15}) - (?=[^\s:]+:)")
FRAME = Frame("verl", "verl", lambda row: (row.pop("step"), row), null_is_nan=True)

_WORDS = {"True": 1.0, "False": 0.0}
_SETTING = re.compile(r"'([^'\s]+)': ?")
_MAX_SETTINGS = 10_000
_MAX_LINE = 1 << 14  # characters of a line of settings
_WRAPPED = re.compile(r"(?<![\w./@-])step:\d{1,15}(?: - [^\s:]+:\S+)*\s*$")
SEARCHED = 100_000
"""Lines of a file that are searched for a first row."""


def unwrapped(numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Lines, with those that begin with ` - ` joined to the row before them, as a terminal or an editor has cut it."""
    at, parts = 0, [""]
    for number, line in numbered:
        if parts[0]:
            rest = without_process(COLOUR.sub("", line)).strip()
            if rest.startswith("- ") and len(parts) <= MAX_NAMES:
                parts.append(rest)
                continue
            yield at, " ".join(parts)
            parts = [""]
        if "step:" in line and _WRAPPED.search(plain := COLOUR.sub("", line)):
            at, parts = number, [plain.rstrip()]
        else:
            yield number, line
    if parts[0]:
        yield at, " ".join(parts)


class Console:
    """Reads lines once. `settings` then has the configuration that verl printed."""

    def __init__(self, numbered: Iterable[tuple[int, str]], tally: Tally) -> None:
        self.numbered, self.tally = numbered, tally
        self.settings: dict[str, object] = {}
        self._above: list[tuple[int, str]] = []  # (column, name) of the dicts that the last setting is in
        self._looking = True

    def rows(self) -> Iterator[tuple[int, Row]]:
        """`{"step": …, name: number}` by line."""
        for number, line in unwrapped(self.numbered):
            if "step:" in line and (row := self._row(line, number)) is not None:
                self._looking = False
                yield number, row
            elif self._looking:
                self._configuration(line)

    def _row(self, line: str, number: int) -> Row | None:
        line = COLOUR.sub("", line)
        mark = _last_mark(line)
        if mark is None:
            return None
        row: Row = {"step": int(mark[1])}
        for part in line[mark.end() :].rstrip().split(" - "):
            name, _, text = part.rpartition(":")
            value = _value(text)
            if value is None or not name or name == "step":
                self.tally.add("left out {n values}: not a number", number, part)
            else:
                row[name] = value
        return row

    def _configuration(self, line: str) -> None:
        """Collects the settings that verl prints before the first step as a nested dict, a name a line. Each line is
        read by itself: where its names stand says what they are in, so that a torn or missing line costs itself only.
        """
        line = without_process(COLOUR.sub("", line)).rstrip()
        if not self.settings and not self._above and not line.startswith("{'actor_rollout_ref'"):
            return
        if line[:1] not in ("{", " ") or len(self.settings) > _MAX_SETTINGS:
            return
        found = list(_SETTING.finditer(line[:_MAX_LINE]))
        ends = [match.start() for match in found[1:]] + [len(line)]
        for match, end in zip(found, ends, strict=False):
            while self._above and self._above[-1][0] >= match.start():
                self._above.pop()
            value = line[match.end() : end].strip().removesuffix(",")
            closing = max(0, value.count("}") - value.count("{"))  # of the dicts that the setting is in
            value = value[: len(value) - closing]
            if value and (value[0] not in "{[" or value[-1] in "}]"):
                self.settings[".".join([*(name for _, name in self._above), match[1]])] = setting(value)
                del self._above[max(0, len(self._above) - closing) :]
            else:  # the dict or list goes on
                self._above.append((match.start(), match[1]))


def _last_mark(line: str) -> re.Match[str] | None:
    """The last `step:12 - ` of a line: an earlier one may belong to a progress bar."""
    mark, at = None, len(line)
    while mark is None and (at := line.rfind("step:", 0, at)) >= 0:
        mark = STEP.match(line, at)
    return mark


def _value(text: str) -> float | None:
    """A number, `True`, or `np.float32(0.3)`, also without the last bracket."""
    if text.startswith("np."):
        text = text.rpartition("(")[2]
    text = text.removesuffix(")")
    return _WORDS[text] if text in _WORDS else number_in(text)


def _read(lines_for: Callable[[Tally], Lines], name: str, tally: Tally) -> Raw | None:
    console = Console(lines_for(tally), tally)
    raw = next(iter(read_rows(console.rows(), tally, name, FRAME, settings=console.settings)), None)
    if raw is None:
        return None
    host = host_of(raw.columns.names())  # others print lines like verl's too
    return raw if host == UNKNOWN.id and console.settings else replace(raw, host=host)


def has_step(path: Path) -> bool:
    """Whether a file has a line of verl's among its first lines."""
    return any(STEP.search(line) for _, line in islice(unwrapped(lines(path, Tally(path))), SEARCHED))


CONSOLE = Reader(
    recognises=lambda path, start: has_step(path),
    read=lambda file, tally: read_runs(file, tally, _read),
    lacks="has neither rows with a step nor lines like `step:1 - name:0.5 - …` or `step 1 loss 0.3 reward 0.5`",
    suffixes=(".log", ".log.gz", ".out", ".txt"),
    certain=has_step,
)
