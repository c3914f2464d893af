"""Lines that a script of one's own prints: `step 12 loss 0.3 reward 0.5`, with any marks between, or tqdm's bar; and
lines that say a reward again and again without a step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice, pairwise
from pathlib import Path
from typing import NamedTuple

from holdfast.diagnose.readers.axes import below_eval, counter_in
from holdfast.diagnose.readers.columns import Columns
from holdfast.diagnose.readers.console import SEARCHED
from holdfast.diagnose.readers.facts import (
    BAR,
    LEARNT,
    LINE,
    SCORED,
    Core,
    fact_in,
    facts_in,
    has_epoch_alone,
    is_of_evaluation,
    names_step,
    row_in,
    says_core,
    says_only_facts,
    step_in,
)
from holdfast.diagnose.readers.framed import folded
from holdfast.diagnose.readers.names import COMMON, common, host_of, like_a_reward
from holdfast.diagnose.readers.reader import Raw, Reader
from holdfast.diagnose.readers.runs import Lines, read_runs
from holdfast.diagnose.readers.text import Tally, lines, listed, plain
from holdfast.hosts import HOSTS
from holdfast.hosts.host import Host

_FEW = 2
_FIRST = 100  # rows by which a log is known
_MIN_LINES = 5
"""Lines without a step that say a reward before they are rows."""
_PLACED = ("step", "iter", "ep", "update", "batch", "round", "rollout")
_HEADING = re.compile(
    r"(?:.{0,120}\b(?:INFO|DEBUG|WARNING|SUCCESS)\b)?"
    r"([^A-Za-z]*(?:[A-Za-z]+ )?(?:step|iteration|iter|epoch|ep|episode|update|batch|round|rollout)s?\b.*)",
    re.IGNORECASE,
)
"""A line that begins with a place, at once or behind what `logging` prints before it."""
_DRAWN = re.compile(r"\r|(?<=\])(?=[^\]\r%]{0,60}?\d{1,3}%\|| {0,200}Epoch \d+, global step \d)")
"""Between bars that were drawn over each other, also in a file that lost the marks of it; and before what Lightning
says of a checkpoint behind its bar."""
_NEARLY_ALL = 0.9
"""Share of the rows."""
_FALLS = 0.05
"""Share of the rows at which steps may begin again."""

_DIGIT, _WORD = re.compile(r"\d"), re.compile(r"[a-z]+")

Row = Mapping[str, float]


class Print(NamedTuple):
    """What a line says."""

    step: int
    numbers: Row
    by_epoch: bool = False
    """Whether the step is that of an epoch alone."""
    of_mean: bool = False
    """Whether its reward is said to be a mean."""
    by_bar: bool = False
    """Whether the step is the count of a progress bar."""
    in_words: bool = True
    """Whether the line names its step."""


def _heading(line: str, core: Core) -> str:
    """A line that begins with a step and says nothing of a loss or a reward; "" for any other line."""
    low = line[:LINE].lower()
    if len(line) > LINE or core.is_in(line) or not any(word in low for word in _PLACED):
        return ""
    heading = _HEADING.match(plain(line))
    return heading[1] if heading and step_in(heading[1]) is not None else ""


def _form(heading: str) -> str:
    """The words of a heading before its first number."""
    return " ".join(_WORD.findall(heading.lower(), 0, _DIGIT.search(heading).start()))  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a log says its steps."""

    core: Core = LEARNT
    headings: frozenset[str] = frozenset()
    """The forms of headings that give lines their step; none where lines have steps of their own."""
    before: bool = False
    """Whether a line without a step belongs to the row before it, because no line says a reward with its step."""
    finer: bool = False
    """Whether most rows have a finer step than their epoch. A line with the epoch alone then sums up others."""
    in_words: bool = False
    """Whether nearly all rows name their step. A count that is behind the last one is then of something else."""


def _places(lines_for: Callable[[], Lines], core: Core) -> _Places:
    own = [row for _, row in islice(_rows(lines_for(), _Places(core)), _FIRST)]
    rise = _rise([row.step for row in own])
    places = _Places(core, frozenset() if rise else _headings(lines_for(), core))
    rows = own if not places.headings else [row for _, row in islice(_rows(lines_for(), places), _FIRST)]
    return replace(
        places,
        before=not any(like_a_reward(row.numbers) for row in rows),
        finer=2 * sum(row.by_epoch for row in rows) < len(rows),
        in_words=bool(rows) and sum(row.in_words for row in rows) >= _NEARLY_ALL * len(rows),
    )


def _rise(steps: list[int]) -> bool:
    """Whether these count the rows of a log. Those of something else begin again below every heading."""
    falls = sum(after < before for before, after in pairwise(steps))
    return len(steps) >= _FEW and falls <= _FALLS * len(steps) and 2 * len(set(steps)) >= len(steps)


def _headings(numbered: Lines, core: Core) -> frozenset[str]:
    """The forms of headings that come again and again. Prose may begin with a step too."""
    count = Counter(_form(heading) for _, line in _english(numbered) if (heading := _heading(line, core)))
    most = max(count.values(), default=0)
    return frozenset(form for form in count if count[form] >= max(_FEW, most / 10))


def _english(numbered: Lines) -> Lines:
    return ((number, in_english(line)) for number, line in folded(numbered))


def _rows(numbered: Lines, places: _Places, tally: Tally | None = None) -> Iterator[tuple[int, Print]]:
    """(number of the line, row). A bar without a count of its own shows the last epoch until its values are new."""
    every = chain(_parts(numbered, places, tally), [(0, Print(0, {}))])
    for (number, row), (next_number, after) in pairwise(every):
        again = row.by_epoch and after.by_epoch and number == next_number and row.step == after.step
        if not again or row.numbers.keys() != after.numbers.keys():
            yield number, row


def _parts(numbered: Lines, places: _Places, tally: Tally | None) -> Iterator[tuple[int, Print]]:
    """The same of each part of a line. Bars are drawn over each other in one line. Lines of facts without a step have
    that of the last heading."""
    begun: int | None = None
    named = evaluated = False
    last = 0  # step in words
    for number, line in _english(numbered):
        if not places.core.is_in(line):
            heading = _heading(line, places.core) if places.headings else ""
            if heading and _form(heading) in places.headings:
                begun, named, evaluated = step_in(heading), names_step(heading), is_of_evaluation(heading)
            elif begun is not None and (fact := fact_in(plain(line))):
                yield number, Print(begun, below_eval(fact) if evaluated else fact)
            continue
        for part in _DRAWN.split(plain(line)):
            if begun is not None and named and not names_step(part):  # a count in it is of something else
                found = None
            elif (found := row_in(part, places.core)) is not None:
                by_epoch, in_words = has_epoch_alone(part), names_step(part)
                if places.in_words and not in_words and found[0] < last:
                    if tally is not None:
                        tally.add("left out {n lines} with a count of something else than the steps", number)
                    continue
                last = found[0] if in_words else last
                if by_epoch and places.finer:
                    if tally is not None:
                        tally.add("left out {n lines} with only an epoch, because other lines have a step", number)
                    continue
                # lines of this log have their steps themselves
                begun, named, evaluated = (found[0], True, False) if places.before else (None, False, False)
                if found[1].twice and tally is not None:
                    tally.add(
                        f"{{n lines}} with two numbers of the same name, {listed(found[1].twice)}: the second "
                        "one is read as `…_2`",
                        number,
                    )
                by_bar = BAR.search(part) is not None and not in_words
                yield number, Print(found[0], found[1].numbers, by_epoch, found[1].of_mean, by_bar, in_words)
            if found is None and begun is not None and len(part) <= LINE:
                facts = facts_in(part)
                if any(map(places.core.name.search, facts.numbers)):
                    numbers = below_eval(facts.numbers) if evaluated else facts.numbers
                    yield number, Print(begun, numbers, of_mean=facts.of_mean)


def _read_lines(core: Core, lines_for: Callable[[Tally], Lines], name: str, tally: Tally) -> Raw | None:
    places = _places(lambda: lines_for(Tally(tally.path)), core)
    first = [row for _, row in islice(_rows(lines_for(Tally(tally.path)), places), _FIRST)]
    host = _host_of_labels(row.numbers for row in first)
    named = {} if host is None else host.labels
    columns = Columns(tally, null_is_nan=True)
    one_shown = _shows_one(first)
    for number, row in _rows(lines_for(tally), places, tally):
        shown = {"reward": "reward_shown"} if one_shown and not row.of_mean else {}
        names = {**named, **shown}
        columns.add(number, row.step, {names.get(name, name): row.numbers[name] for name in row.numbers})
    return _raw(columns, name, host)


def _shows_one(rows: list[Print]) -> bool:
    """Whether lines say a mean reward, and other lines the reward of one completion that is shown beside it."""
    of_mean = [row.of_mean for row in rows if "reward" in row.numbers and not row.by_epoch]
    return 3 * sum(of_mean) >= len(of_mean) > sum(of_mean)


def _raw(columns: Columns, name: str, host: Host | None = None) -> Raw:
    # What every script calls its reward or loss does not tell a trainer.
    telling = [name for name in columns.names() if common(name) not in COMMON]
    return Raw("console", host.id if host else host_of(telling), name, columns, {})


def _host_of_labels(rows: Iterable[Row]) -> Host | None:
    """The host whose console prints a name of these rows that no other does."""
    names = {name for row in rows for name in row}
    return next((host for host in HOSTS.values() if not host.own_labels.isdisjoint(names)), None)


def _has_rows(path: Path, core: Core, fewest: int) -> bool:
    """Whether a loss or a reward is printed at so many steps."""

    def first() -> Lines:
        return islice(lines(path, Tally(path)), SEARCHED)

    steps: dict[str, set[int]] = {}
    rows = [row for _, row in islice(_rows(first(), _places(first, core)), _FIRST)]
    if all(row.by_bar for row in rows) and not _rise([row.step for row in rows]):  # a bar for each step
        return False
    for row in rows:
        for name in filter(core.name.search, row.numbers):
            steps.setdefault(name, set()).add(row.step)
    return any(len(at) >= fewest for at in steps.values())


PRINTS = Reader(
    recognises=lambda path, start: _has_rows(path, LEARNT, _FEW),
    read=lambda file, tally: read_runs(file, tally, partial(_read_lines, LEARNT)),
    lacks="has no line with a step and a reward",
    suffixes=(".log", ".log.gz", ".out", ".txt"),
)
SCORES = Reader(
    recognises=lambda path, start: _has_rows(path, SCORED, _MIN_LINES),
    read=lambda file, tally: read_runs(file, tally, partial(_read_lines, SCORED)),
    lacks="has no line with a step and a score",
    suffixes=(".log", ".log.gz", ".out", ".txt"),
)


# ---- lines without a step


def _said(numbered: Lines) -> Iterator[tuple[int, Row]]:
    said = (
        (number, part)
        for number, line in _english(numbered)
        if len(line) <= LINE
        for part in _DRAWN.split(plain(line))
        if says_core(part) or says_only_facts(part)
    )
    for (number, part), (_, after) in pairwise(chain(said, [(0, "")])):
        if not _is_drawn_again(part, after):
            yield number, facts_in(part).numbers


def _is_drawn_again(bar: str, after: str) -> bool:
    """Whether a progress bar moves on in the part that follows it.

    >>> _is_drawn_again(" 50%|##  | 1/2 [rm=0.1]", "100%|####| 2/2 [rm=0.2]"), _is_drawn_again("rm=0.1", "rm=0.2")
    (True, False)
    """
    count, next_count = BAR.search(bar), BAR.search(after)
    if count is None or next_count is None:
        return False
    return count[2] == next_count[2] and int(count[1]) < int(next_count[1])


def _often(numbered: Lines) -> list[str]:
    """The names that lines say about as often as a reward, and again and again. The first begins a row."""
    said = [facts for _, facts in _said(numbered)]
    whole = [facts for facts in said if like_a_reward(facts) and any("loss" in name for name in facts)]
    count = Counter(name for facts in (whole if len(whole) >= _MIN_LINES else said) for name in facts)
    most = max((times for name, times in count.items() if like_a_reward([name])), default=0)
    often = [name for name in count if most and count[name] >= max(_MIN_LINES, most / 2)]
    return sorted(often, key=lambda name: abs(count[name] - most) > 1)


def _counted(numbered: Lines, often: list[str]) -> Iterator[tuple[int, Row]]:
    """Rows of these names, from one time that the first is said to the next. Of two numbers by one name, a row has the
    first."""
    place, row = 0, dict[str, float]()
    for number, facts in _said(numbered):
        known = {name: facts[name] for name in often if name in facts}
        if often[0] in known:
            if row:
                yield place, row
            place, row = number, known
        elif row:
            row = {**known, **row}
    if row:
        yield place, row


def _read_counted(lines_for: Callable[[Tally], Lines], name: str, tally: Tally) -> Raw | None:
    often = _often(lines_for(Tally(tally.path)))
    rows = list(_counted(lines_for(tally), often)) if often else []
    times = [len(list(same)) for _, same in groupby(row for _, row in rows)]
    copies = min(times, default=1)
    if copies > 1 and all(count % copies == 0 for count in times):
        tally.add(f"every row occurs {copies} times, as if {copies} processes printed it: it was read once")
        rows = rows[::copies]
    host = _host_of_labels(row for _, row in rows[:_FIRST])
    named = {} if host is None else host.labels
    rows = [(place, {named.get(name, name): row[name] for name in row}) for place, row in rows]
    counter = counter_in([row for _, row in rows])
    if counter is None:
        tally.add("the log has no steps, so its rows are counted as steps, from 1")
    columns = Columns(tally, null_is_nan=True)
    for count, (place, row) in enumerate(rows, 1):
        columns.add(place, count if counter is None else row.get(counter), row)
    return _raw(columns, name, host)


COUNTED = Reader(
    recognises=lambda path, start: bool(_often(islice(lines(path, Tally(path)), SEARCHED))),
    read=lambda file, tally: read_runs(file, tally, _read_counted),
    lacks="has no line with a reward",
    suffixes=(".log", ".log.gz", ".out", ".txt"),
)


# ---- lines in Chinese

_ENGLISH = {
    "平均": "mean",
    "均值": "mean",
    "最大": "max",
    "最小": "min",
    "训练": "train",
    "验证": "val",
    "测试": "test",
    "奖励值": "reward",
    "奖励": "reward",
    "回报": "return",
    "得分": "score",
    "分数": "score",
    "损失": "loss",
    "准确率": "accuracy",
    "正确率": "accuracy",
    "成功率": "success",
    "学习率": "lr",
    "熵": "entropy",
    "梯度范数": "grad_norm",
    "回答长度": "response_length",
    "长度": "length",
    "散度": "",
    "步骤": "step",
    "步数": "step",
    "迭代": "iteration",
    "批次": "batch",
    "轮次": "epoch",
    "轮": "epoch",
}
_CHINESE = re.compile("|".join(sorted(_ENGLISH, key=len, reverse=True)))
_NTH = re.compile(r"第\s{0,3}(\d{1,15})\s{0,3}(?:步|轮|批|次迭代)")
_BLANKS = re.compile(" {2,}")


def in_english(line: str) -> str:
    """A line with these words in English.

    >>> in_english("步骤 12 平均奖励 0.5"), in_english("第 3 步: 奖励均值=0.5")
    ('step 12 mean reward 0.5', 'step 3: reward mean=0.5')
    """
    if line.isascii():
        return line
    line = _CHINESE.sub(lambda word: f" {_ENGLISH[word[0]]} ", _NTH.sub(r"step \1", line))
    return re.sub(r" (?=[:=：])", "", _BLANKS.sub(" ", line)).strip(" ")
