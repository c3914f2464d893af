"""Blocks of names and numbers between rules, which a console draws around the metrics of one step, as one line each.

Stable-Baselines3, AReaL (`tabulate`) and open-instruct (`rich`) print them. The step stands anywhere in a block, or
above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from holdfast.diagnose.readers.text import COLOUR, without_process

_DRAWN = "-=+|─-╿"
_RULE = re.compile(rf"[{_DRAWN}]{{2,}}(?: [\w ]{{1,40}} )?[{_DRAWN}]{{2,}}")
"""A line of dashes or of a box, perhaps with a title."""
_WALLS = "|│┃║"
_WALL = re.compile(f"[{_WALLS}]")
_TOP, _BOTTOM, _DASHES = "╭┌╒╔┏", "╰└╘╚┗", "-="
_NAME = re.compile(r"[A-Za-z][\w./@: -]*")
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?%?|[-+]?(?:nan|inf)", re.IGNORECASE)
_CATEGORY = re.compile(r" {0,3}([A-Za-z]\w*) {2,}(?=\S)")
_NO_CATEGORY = "other"
_MIN_FACTS = 2
_MAX_LINES = 1000

Numbered = tuple[int, str]


def folded(numbered: Iterable[Numbered]) -> Iterator[Numbered]:
    """Lines, with `name: number | name: number | …` in place of a block that has nothing else.

    >>> [line for _, line in folded(enumerate(["-----", "| time/  |   |", "| a | 1 |", "| b | 2 |", "-----", "x"]))]
    ['a: 1 | b: 2', 'x']
    """
    block: list[Numbered] = []
    for number, line in numbered:
        text = _bare(line)
        is_rule = _RULE.fullmatch(text) is not None
        if not is_rule and not (block and _is_walled(text)):
            yield from _as_line(block)
            yield number, line
            block = []
            continue
        begins = is_rule and (text[0] in _TOP or (_is_rule(block) and text[0] not in _BOTTOM))
        if begins or len(block) == _MAX_LINES:
            yield from _as_line(block)
            block = []
        block.append((number, line))
        if is_rule and len(block) > 1 and text[0] in _BOTTOM + _DASHES:
            yield from _as_line(block)
            block = [(number, "")] if text[0] in _DASHES else []  # which may begin the next one too
    yield from _as_line(block)


def _bare(line: str) -> str:
    """A line without what stands around it, if it may be of a block; "" otherwise."""
    start = line.lstrip()[:1]
    if not start or not (start in "-=+|(\x1b" or "─" <= start <= "╿"):
        return ""
    return without_process(COLOUR.sub("", line)).strip()


def _is_rule(block: list[Numbered]) -> bool:
    """Whether the last line of a block is a rule."""
    return bool(block) and (not block[-1][1] or _RULE.fullmatch(_bare(block[-1][1])) is not None)


def _is_walled(text: str) -> bool:
    return len(text) > 1 and text[0] in _WALLS and text[-1] in _WALLS


def _as_line(block: list[Numbered]) -> Iterator[Numbered]:
    """The line for a block, or its own lines if it has more than names and numbers."""
    facts = _facts([text[1:-1] for _, line in block if _is_walled(text := _bare(line)) and not _RULE.fullmatch(text)])
    if len(facts) >= _MIN_FACTS:
        yield block[0][0], " | ".join(facts)
    else:
        yield from ((number, line) for number, line in block if line)


def _facts(rows: list[str]) -> list[str]:
    """`name: number` of each cell of a block; [] if a row has anything else."""
    facts: list[str] = []
    texts: list[tuple[str, str]] = []
    for row in rows:
        cells = [cell.strip() for cell in _WALL.split(row)]
        while cells and not cells[-1]:
            cells.pop()
        names, numbers = cells[::2], cells[1::2]
        if len(names) == len(numbers) and all(map(_NAME.fullmatch, names)) and all(map(_NUMBER.fullmatch, numbers)):
            facts += [f"{name}: {number}" for name, number in zip(names, numbers, strict=True)]
        elif len(cells) == 1 and cells[0].endswith("/"):
            continue  # the heading of a part
        elif begun := _CATEGORY.match(row):
            texts.append((begun[1], row[begun.end() :].strip()))
        elif texts:
            texts[-1] = (texts[-1][0], f"{texts[-1][1]} {row.strip()}")
        else:
            return []
    for category, text in texts:
        pairs = [part.rpartition(":")[::2] for part in text.split(" | ")]
        if not all(_NAME.fullmatch(name) and _NUMBER.fullmatch(number.strip()) for name, number in pairs):
            return []
        before = "" if category == _NO_CATEGORY else f"{category}/"
        facts += [f"{before}{name}: {number.strip()}" for name, number in pairs]
    return facts
