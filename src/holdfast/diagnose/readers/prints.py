"""Lines that a script of one's own prints: `step 12 loss 0.3 reward 0.5`, with any marks between, or tqdm's bar."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from holdfast.diagnose.readers.columns import Columns, number_in
from holdfast.diagnose.readers.console import COLOUR, SEARCHED, has_step
from holdfast.diagnose.readers.names import COMMON, common, host_of
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader
from holdfast.diagnose.readers.text import Tally, lines
from holdfast.hosts import HOSTS
from holdfast.hosts.host import Host

_FEW = 2
_FIRST = 100  # rows by which a log is known
_LINE = 1 << 14  # characters of a line that may be a row
_CORE = re.compile(r"loss|reward", re.IGNORECASE)
_PLACED = re.compile(r"step|iter|ep(?:och|isode)", re.IGNORECASE)
# Two parts of a pattern that could share characters, as in `\s*:?\s*`, would take quadratic time on a long line.
_DIGITS = r"[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+|nan|inf(?:inity)?)"
_NUMBER = r"(?!\d+ ?\(\d[\d.]*%)" + _DIGITS + r"(?:%(?!\|))?(?![\w%:]|[.,]\d)"  # `44 (0.3%)` is a count, `44%|` a bar
_PAIR = re.compile(
    r"(?<![\w./:@-])((?:(?!INFO|DEBUG|WARN)[A-Za-z]\w* )?[A-Za-z][\w./-]*)(?:\s*[:=]\s*|\s+)(" + _NUMBER + ")",
    re.IGNORECASE,
)
_CELL = re.compile(
    r"([A-Za-z][\w./-]*(?: [A-Za-z(][\w./-]*)*)(?:\s*[:=]\s*|\s+)(" + _DIGITS + r"%?)(?![\w:]|[.,]\d)[^\d|:=]*",
    re.IGNORECASE,
)
_PART = re.compile(r"(?:^|[\]:|]\s*)([A-Za-z]+(?: [A-Za-z]+)*) - (?=(?:mean|avg|average|min|max)\b)", re.IGNORECASE)
_OF_PART = ("mean", "avg", "average", "min", "max", "std")
_STEP = re.compile(r"(?<![A-Za-z./-])(?:step|iteration|iter)s?\s*(?:[:=#]\s*)?(\d{1,15})(?![\w.,]*?\d)", re.IGNORECASE)
_EPOCH = re.compile(r"(?<![A-Za-z])ep(?:och|isode)s?\s*(?:[:=]\s*)?\[?(\d{1,9})(/\d+)?(?![.\d])\]?", re.IGNORECASE)
_BAR = re.compile(r"%\|[^|]*\|\s*(\d{1,9})/(\d{1,9})\s*\[")
_COUNT = re.compile(r"(?:^|[\s\[(,])(\d{1,9})/(\d{1,9})(?=[\])\s|:,]|$)")
_HEADING = re.compile(r"[^A-Za-z]*(?:step|iteration|iter|epoch|ep|episode)s?\b", re.IGNORECASE)
_COUNTS = re.compile(r"(?:^|[ _])(?:step|iteration|iter|epoch|ep)s?$")
_REWARD = re.compile(r"(?:train(?:ing)?_)?(?:(?:mean|avg|average)_)?rewards?(?:_(?:mean|avg|average))?")

Print = tuple[int, dict[str, float]]
"""A step and the numbers of its line by name."""


def row_in(line: str) -> Print | None:
    """The row of a line that has a step and a loss or a reward; None for any other line.

    >>> row_in("INFO step=12 | Loss: 0.5, mean reward = 0.25"), row_in("the loss fell to 0.5")
    ((12, {'loss': 0.5, 'reward': 0.25}), None)
    >>> row_in("Epoch:[2/3](5/100), Reward: 1.5"), row_in("Step 3 | Reward 0.5 | Grad. Norm 1.5 | Truncation 14.0%")
    ((105, {'reward': 1.5, 'epoch': 2.0}), (3, {'grad._norm': 1.5, 'truncation': 0.14, 'reward': 0.5}))
    """
    step = _step_in(line) if len(line) <= _LINE and _CORE.search(line) else None
    row = {} if step is None else _numbers_in(line)
    if row and (epoch := _EPOCH.search(line)):
        row["epoch"] = float(epoch[1])  # which shows that steps start again
    return None if step is None or not any(map(_CORE.search, row)) else (step, row)


def _numbers_in(line: str) -> dict[str, float]:
    """The numbers of a line by name; those of a mean reward by `reward`."""
    row: dict[str, float] = {}
    means: dict[str, float] = {}
    part = _PART.search(line) if " - " in line else None
    for name, number in _pairs(line):
        name = name.lower().strip()
        if name.endswith(".py") or _COUNTS.search(name):
            continue
        if part is not None and name in _OF_PART:
            name = f"{part[1].lower()}/{name}"
        name = name.replace(" ", "_")
        (means if _REWARD.fullmatch(name) else row)[name] = number
    if means:
        row["reward"] = means["reward"] if "reward" in means else next(iter(means.values()))
    return row


def _pairs(line: str) -> Iterator[tuple[str, float]]:
    """(name, number) of what a line says. In a cell between bars the name may have any number of words."""
    cells = line.split(" | ")
    for cell in cells:
        whole = _CELL.fullmatch(cell.strip()) if len(cells) > 1 else None
        if whole is not None:
            yield whole[1], _number(whole[2])
        else:
            yield from ((name, _number(text)) for name, text in _PAIR.findall(cell))


def _number(text: str) -> float:
    """The number of a text that is one by the patterns above."""
    number = number_in(text)
    assert number is not None
    return number


def _step_in(line: str) -> int | None:
    """The step in words, else a count such as `3/100` or that of a bar, which continues over epochs, else the epoch."""
    if named := _STEP.search(line):
        return int(named[1])
    epoch = _EPOCH.search(line)
    count = _BAR.search(line) or _COUNT.search(line, epoch.end() if epoch else 0)
    if count is None or int(count[1]) > int(count[2]):
        return int(epoch[1]) if epoch else None
    before = int(epoch[1]) - bool(epoch[2]) if epoch else 0  # `Epoch 0`, but `epoch [1/3]`
    return before * int(count[2]) + int(count[1])


def _rows(numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Print]]:
    """(number of the line, row). Bars are drawn over each other in one line. A line of facts without a step has that of
    the last line that begins with one."""
    begun: int | None = None
    for number, line in numbered:
        if not _CORE.search(line):
            if len(line) <= _LINE and _PLACED.search(line) and _HEADING.match(plain := COLOUR.sub("", line)):
                begun = _step_in(plain)
            continue
        for part in COLOUR.sub("", line).split("\r"):
            if (row := row_in(part)) is not None:
                begun = None  # lines of this log have their steps themselves
                yield number, row
            elif begun is not None and len(part) <= _LINE and any(map(_CORE.search, facts := _numbers_in(part))):
                yield number, (begun, facts)


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    columns = Columns(tally, null_is_nan=True)
    first = islice(_rows(lines(file.path, Tally(file.path))), _FIRST)
    host = next(filter(None, (_host_of_labels(row) for _, (_, row) in first)), None)
    for number, (step, row) in _rows(lines(file.path, tally)):
        columns.add(number, step, row if host is None else {host.labels.get(name, name): row[name] for name in row})
    # What every script calls its reward or loss does not tell a trainer.
    telling = [name for name in columns.names() if common(name) not in COMMON]
    return [Raw("console", host.id if host else host_of(telling), file.name, columns, {})]


def _host_of_labels(row: Mapping[str, float]) -> Host | None:
    """The host whose console prints a name of the row that no other does."""
    return next((host for host in HOSTS.values() if not host.own_labels.isdisjoint(row)), None)


def _has_rows(path: Path) -> bool:
    """Whether rows of several steps are printed, and no line of verl's."""
    first = islice(lines(path, Tally(path)), SEARCHED)
    steps = {step for _, (step, _) in islice(_rows(first), _FIRST)}
    return len(steps) >= _FEW and not has_step(path)


PRINTS = Reader(
    recognises=lambda path, start: _has_rows(path),
    read=_read,
    lacks="has no line with a step and a reward",
    suffixes=(".log", ".log.gz", ".out", ".txt"),
)
