"""Several runs in one console log, told apart by a mark at the beginning of lines, `(run-a, pid=2702) step 5 …`, or by
a title above each: `=== seed 7 ===`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import combinations, takewhile
from pathlib import Path

import numpy as np

from holdfast.diagnose.log import Series
from holdfast.diagnose.readers.axes import is_evaluation
from holdfast.diagnose.readers.columns import series_of
from holdfast.diagnose.readers.facts import LINE, says_core, step_in
from holdfast.diagnose.readers.names import like_a_reward
from holdfast.diagnose.readers.reader import LogFile, Raw
from holdfast.diagnose.readers.text import COLOUR, Tally, lines

Lines = Iterable[tuple[int, str]]
Read = Callable[[Callable[[Tally], Lines], str, Tally], Raw | None]
"""(lines for a tally, name of the run, tally) -> the run in these lines; None without one."""

_MARK = re.compile(r"\s*[(\[]([^()\[\]]{1,200})[)\]]")
_NO_NAME = re.compile(
    r",?\s*(?:\b(?:pid|ip|actor_id)=\S+|\b\w*(?:rank|gpu|worker|process|proc|node|device|cuda)\W?\d+\b)", re.IGNORECASE
)
_CLOCK = re.compile(r"\d:\d\d|\d{4}-\d\d|^[\d\W]*$")
_MAX_RUNS = 100
"""Runs in a file that are read each by itself."""
_RARE = 0.02
"""Share of the lines of the commonest mark that those of another must have."""
_MIN_STEPS = 2
"""Steps that two runs must share, with other rewards at most of them."""
_TITLE = re.compile(r"\s*([=#*_~-])\1+ *(\S[^=#*~]{0,80}(?:=[^=#*~]{1,40})??) *\1{2,}\s*")
_OF_A_PART = re.compile(
    r"(?i)epoch|step|iter|update|batch|round|rollout|phase|stage|level|sample|prompt|completion|part\b"
)
"""What titles within one run name."""


def mark_of(line: str) -> str:
    """The name of a run in brackets at the beginning of a line; "" if it names a process, a level or a time.

    >>> mark_of("(run-a, pid=2702, ip=10.0.0.1) step 5"), mark_of("[lr1e-5]   1/100 | loss=0.5"), mark_of("[rank3]: x")
    ('run-a', 'lr1e-5', '')
    >>> mark_of("[2026-01-02 10:11:12] step 5"), mark_of("[eval] step 5")
    ('', '')
    """
    found = _MARK.match(line)
    if found is None:
        return ""
    mark = _NO_NAME.sub("", found[1]).strip(" ,")
    return "" if _CLOCK.search(mark) or is_evaluation(mark) or mark.isupper() else mark


def read_runs(file: LogFile, tally: Tally, read: Read) -> list[Raw]:
    """Every run in a console log: those that marks tell apart, or else the one in all of its lines."""
    marks = _marks_in(file.path)
    if len(marks) > 1:
        parts = [read(lambda of, mark=mark: _of_mark(file.path, of, mark), mark, Tally(file.path)) for mark in marks]  # type: ignore[misc]
        runs = [part for part in parts if part is not None and part.columns]
        if _differ(runs):
            tally.add(f"the file has {len(runs)} runs, distinguished by the prefix of their lines")
            return [replace(run, name=f"{file.name}: {run.name}") for run in runs]
    titled = _titled(file.path)
    parts = [read(lambda of, at=at: _of_lines(file.path, of, *at), title, Tally(file.path)) for title, at in titled]  # type: ignore[misc]
    runs = [part for part in parts if part is not None and part.columns]
    if len(runs) > 1 and _differ(runs):
        tally.add(f"the file has {len(runs)} runs, distinguished by the titles above them")
        return [replace(run, name=f"{file.name}: {run.name}") for run in runs]
    whole = read(lambda of: lines(file.path, of), file.name, tally)
    return [] if whole is None else [whole]


def title_of(line: str) -> str:
    """The title that a line is, between marks; "" if it is none, or names a part of a run.

    >>> title_of("=== xtune seed 7 ==="), title_of("##### lr=1e-6 #####"), title_of("=== Epoch 2 ==="), title_of("----")
    ('xtune seed 7', 'lr=1e-6', '', '')
    """
    found = _TITLE.fullmatch(line) if line.lstrip()[:2] in _MARKS else None
    title = found[2].strip() if found else ""
    is_part = _OF_A_PART.search(title) or any(map(is_evaluation, title.split()))
    return "" if is_part or not any(map(str.isalpha, title)) else title


_MARKS = frozenset(mark * 2 for mark in "=#*_~-")


def _titled(path: Path) -> list[tuple[str, tuple[int, int]]]:
    """(title, (its line, the next one's)) of the runs below titles: all have another title, and count from the same
    step. [] where they are not, or rows stand above the first."""
    parts: list[tuple[str, int]] = []
    steps: list[list[int]] = []
    last = 0
    for number, line in lines(path, Tally(path)):
        last = number
        if title := title_of(line):
            parts.append((title, number))
            steps.append([])
        elif says_core(line) and len(line) <= LINE and (step := step_in(line)) is not None:
            if not parts:
                return []
            steps[-1] = [*steps[-1][:1], step]
    ends = [*(at for _, at in parts[1:]), last + 1][: len(parts)]
    runs = [(title, (at, end)) for (title, at), end, of in zip(parts, ends, steps, strict=True) if len(of) > 1]
    firsts = {of[0] for of in steps if len(of) > 1}
    are_runs = len(firsts) == 1 and 1 < len({title for title, _ in runs}) == len(runs) <= _MAX_RUNS
    return runs if are_runs else []


def _of_lines(path: Path, tally: Tally, begin: int, end: int) -> Iterator[tuple[int, str]]:
    return ((n, line) for n, line in takewhile(lambda at: at[0] < end, lines(path, tally)) if n >= begin)


def _marks_in(path: Path) -> list[str]:
    """The marks of lines that may be rows."""
    marks: Counter[str] = Counter()
    for _, line in lines(path, Tally(path)):
        if (says_core(line) or "step:" in line) and (mark := _mark_in(line)):
            marks[mark] += 1
    most = max(marks.values(), default=0)
    return [mark for mark, count in marks.most_common(_MAX_RUNS) if count >= max(_MIN_STEPS, _RARE * most)]


def _of_mark(path: Path, tally: Tally, mark: str) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in lines(path, tally) if _mark_in(line) == mark)


def _mark_in(line: str) -> str:
    return mark_of(COLOUR.sub("", line[:400])) if line.lstrip()[:1] in ("(", "[", "\x1b") else ""


def _differ(runs: list[Raw]) -> bool:
    """Whether two of these have other rewards at the same steps. Processes of one run have the same, or other names."""
    rewards = [reward for run in runs if (reward := _reward_of(run)) is not None]
    return any(_are_other(*pair) for pair in combinations(rewards[:10], 2))


def _reward_of(run: Raw) -> Series | None:
    series, _ = series_of(run.columns, Tally(run.columns.tally.path))
    name = like_a_reward(series)
    return None if name is None else series[name]


def _are_other(first: Series, second: Series) -> bool:
    _, mine, theirs = np.intersect1d(first.steps, second.steps, return_indices=True)
    return len(mine) >= _MIN_STEPS and bool(2 * (first.values[mine] != second.values[theirs]).sum() > len(mine))
