"""Lines that a script of one's own prints: `step 12 loss 0.3 reward 0.5`, with any marks between, or tqdm's bar."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from holdfast.diagnose.readers.columns import Columns
from holdfast.diagnose.readers.console import COLOUR, SEARCHED, has_step
from holdfast.diagnose.readers.names import trainer_of
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader
from holdfast.diagnose.readers.text import Tally, lines

_FEW = 2
_LINE = 1 << 14  # characters of a line that may be a row
_CORE = re.compile(r"loss|reward", re.IGNORECASE)
# Two parts of a pattern that could share characters, as in `\s*:?\s*`, would take quadratic time on a long line.
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+|nan|inf(?:inity)?)(?![\w%:]|[.,]\d)"
_PAIR = re.compile(
    r"(?<![\w./:@-])((?:(?!INFO|DEBUG|WARN)[A-Za-z]\w* )?[A-Za-z][\w./-]*)(?:\s*[:=]\s*|\s+)(" + _NUMBER + ")",
    re.IGNORECASE,
)
_STEP = re.compile(r"(?<![A-Za-z./-])(?:step|iteration|iter)s?\s*(?:[:=#]\s*)?(\d{1,15})(?![\w.,]*?\d)", re.IGNORECASE)
_EPOCH = re.compile(r"(?<![A-Za-z])ep(?:och|isode)s?\s*(?:[:=]\s*)?\[?(\d{1,9})(/\d+)?(?![.\d])", re.IGNORECASE)
_BAR = re.compile(r"%\|[^|]*\|\s*(\d{1,9})/(\d{1,9})\s*\[")
_COUNTS = re.compile(r"(?:^|[ _])(?:step|iteration|iter|epoch|ep)s?$")
_REWARD = re.compile(r"(?:train(?:ing)?_)?(?:(?:mean|avg|average)_)?rewards?(?:_(?:mean|avg|average))?")

Print = tuple[int, dict[str, float]]
"""A step and the numbers of its line by name."""


def row_in(line: str) -> Print | None:
    """The row of a line that has a step and a loss or a reward; None for any other line.

    >>> row_in("INFO step=12 | Loss: 0.5, mean reward = 0.25"), row_in("the loss fell to 0.5")
    ((12, {'loss': 0.5, 'reward': 0.25}), None)
    """
    if len(line) > _LINE or not _CORE.search(line):
        return None
    step = _step_in(line)
    if step is None:
        return None
    row: dict[str, float] = {}
    means: dict[str, float] = {}
    for name, number in _PAIR.findall(line):
        name = name.lower()
        if name.endswith(".py") or _COUNTS.search(name):
            continue
        name = name.replace(" ", "_")
        (means if _REWARD.fullmatch(name) else row)[name] = float(number)
    if means:
        row["reward"] = means["reward"] if "reward" in means else next(iter(means.values()))
    return (step, row) if any(map(_CORE.search, row)) else None


def _step_in(line: str) -> int | None:
    """The step in words, else the count of a bar, which continues over epochs, else the epoch."""
    if named := _STEP.search(line):
        return int(named[1])
    epoch, bar = _EPOCH.search(line), _BAR.search(line)
    if bar is None:
        return int(epoch[1]) if epoch else None
    before = int(epoch[1]) - bool(epoch[2]) if epoch else 0  # `Epoch 0`, but `epoch [1/3]`
    return before * int(bar[2]) + int(bar[1])


def _rows(numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Print]]:
    """(number of the line, row). Bars are drawn over each other in one line."""
    for number, line in numbered:
        if _CORE.search(line):
            for part in COLOUR.sub("", line).split("\r"):
                if (row := row_in(part)) is not None:
                    yield number, row


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    columns = Columns(tally, null_is_nan=True)
    for number, (step, row) in _rows(lines(file.path, tally)):
        columns.add(number, step, row)
    return [Raw("console", trainer_of(columns.names()), file.name, columns, {})]


def _has_rows(path: Path) -> bool:
    """Whether rows of several steps are printed, and no line of verl's."""
    first = islice(lines(path, Tally(path)), SEARCHED)
    steps = {step for _, (step, _) in islice(_rows(first), 100)}
    return len(steps) >= _FEW and not has_step(path)


PRINTS = Reader(
    recognises=lambda path, start: _has_rows(path),
    read=_read,
    lacks="has no line with a step and a reward",
    suffixes=(".log", ".log.gz", ".out", ".txt"),
    certain=_has_rows,
)
