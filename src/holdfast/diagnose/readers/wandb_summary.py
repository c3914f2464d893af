"""What W&B prints at the end of a run: the last values, read as a row. Its sparklines contain no numbers."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.diagnose.readers.axes import axis_of
from holdfast.diagnose.readers.columns import number_in
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader, Row, history_frame, stepless_frame
from holdfast.diagnose.readers.rows import read_rows
from holdfast.diagnose.readers.text import COLOUR, Tally, lines

_LINE = re.compile(r"(?:.*?wandb:)?\s+(\S+)\s+(\S+)\s*")
_HISTORY, _SUMMARY = "Run history:", "Run summary:"


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    row: Row = {}
    place, inside = 0, False
    for number, line in lines(file.path, tally):
        line = COLOUR.sub("", line)
        if _SUMMARY in line:
            place, inside, row = number, True, {}
        elif inside and (match := _LINE.fullmatch(line)) and (value := number_in(match[2])) is not None:
            row[match[1]] = value
    if not row:
        return []
    tally.add("the log has only W&B's summary: the last value of every metric")
    axis = axis_of(row)
    frame = stepless_frame(row) if axis is None else history_frame(row, axis)
    return read_rows([(place, row)], tally, file.name, frame, form="console")


def _has_summary(path: Path, start: str) -> bool:
    return any(_HISTORY in line or _SUMMARY in line for _, line in lines(path, Tally(path)))


SUMMARY = Reader(
    recognises=_has_summary,
    read=_read,
    lacks="has only W&B's sparklines, which contain no numbers: export the run's history with "
    "`run.history().to_csv(…)`, or give its folder wandb/run-…",
    suffixes=(),
)
