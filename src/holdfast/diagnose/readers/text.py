"""Files as text, a block at a time; a tally of what was skipped while they were read; and printed lines made plain."""

from __future__ import annotations

import ast
import codecs
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.base import opening
from holdfast.base.errors import DataError

_MAX_EXAMPLE = 60
_MAX_LISTED = 8
MAX_NUMBERS = 100_000_000
"""Rows and numbers read from one file, which take about 5 GB. 100,000 steps of 300 series are 30 million."""


@dataclass(slots=True)
class _Kind:
    count: int
    place: int | None
    example: str


@dataclass(slots=True)
class Tally:
    """Counts what was skipped in one file, or read differently, with one sentence for each kind."""

    path: Path
    unit: str = "line"
    """The unit of places: lines, or rows of a JSON array."""
    resumed: list[int] = field(default_factory=list)
    """Steps from which on a resumed run wrote rows again."""
    _kinds: dict[str, _Kind] = field(default_factory=dict)
    _numbers: int = 0

    def count(self, numbers: int) -> None:
        """Count what is kept in memory. Raises `DataError` beyond `MAX_NUMBERS`, which a small compressed file may
        hold."""
        self._numbers += numbers
        if self._numbers > MAX_NUMBERS:
            raise DataError(
                f"{self.path} contains more than {MAX_NUMBERS:,} rows and numbers, the limit for one file. Give a "
                "part of it, such as its first 100,000 lines, or a log with fewer metrics"
            )

    def add(self, sentence: str, place: int | None = None, example: str = "", *, count: int = 1) -> None:
        """Count a sentence once, or `count` times. `{n rows}` in it becomes "1 row" or "12 rows". The first place and
        example are shown."""
        self._kinds.setdefault(sentence, _Kind(0, place, example)).count += count

    def notes(self) -> tuple[str, ...]:
        """The sentences, in the order of their first occurrence."""
        return tuple(self._note(sentence, kind) for sentence, kind in self._kinds.items())

    def _note(self, sentence: str, kind: _Kind) -> str:
        where = "" if kind.place is None else f"{self.unit} {kind.place:,}"
        if kind.example:
            where += (": " if where else "") + clean(kind.example, _MAX_EXAMPLE)
        if where:
            where = f" ({'the first: ' if kind.count > 1 else ''}{where})"
        text = re.sub(r"\{n (\w+)s\}", lambda m: f"{kind.count:,} {m[1]}{'s' * (kind.count != 1)}", sentence)
        return f"{text[0].upper()}{text[1:]}{where}."


def clean(text: str, longest: int = 200) -> str:
    """A text from a file, made printable and short.

    >>> clean("reward\\ud800/mean"), clean("x" * 9, 4), clean("")
    ('reward\\\\ud800/mean', 'xxx…', '(no name)')
    """
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if text.strip() else "(no name)"


def listed(names: Sequence[str]) -> str:
    """Some names in a sentence.

    >>> listed(["a", "b", "c"]), listed([*"abcdefghijkl"])
    ('a, b and c', 'a, b, c, d, e, f, g, h and 4 more')
    """
    shown = [clean(name) for name in names]
    if len(shown) > _MAX_LISTED + 1:
        shown = [*shown[:_MAX_LISTED], f"{len(shown) - _MAX_LISTED} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""What a terminal takes for a colour or a move of its cursor."""


def without_process(line: str) -> str:
    """A line without the process that Ray prints before it.

    >>> without_process("(TaskRunner pid=123, ip=10.0.0.1) {'a': 1}"), without_process("  (see below) b")
    ("{'a': 1}", '  (see below) b')
    """
    process, closed, rest = line.lstrip().partition(")")
    is_process = process.startswith("(") and "pid=" in process and "(" not in process[1:]
    return rest.removeprefix(" ") if closed and is_process else line


HEAD = 1 << 15
"""Characters from which the kind of a file is recognised."""
LARGEST = 1 << 30
"""Characters of the largest file that is read as a whole."""

_DAMAGED = "the compressed file is damaged or was cut off; the part before that was read"
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")


def blocks(path: Path, tally: Tally) -> Iterator[str]:
    """The text of a file (`base/opening.py`). Invalid bytes become U+FFFD. A compressed file that ends early is noted.

    Raises `DataError` for a file that cannot be opened or read."""
    return codecs.iterdecode(opening.blocks(path, lambda: tally.add(_DAMAGED)), "utf-8", "replace")


def head(path: Path) -> str:
    """The beginning of a file; "" if it is empty."""
    text = ""
    for block in blocks(path, Tally(path)):
        text += block
        if len(text) >= HEAD:
            break
    return text


def is_binary(text: str) -> bool:
    """Whether decoded text is binary: more than one in twenty characters is a control character or invalid."""
    return len(_CONTROL.findall(text)) > len(text) // 20


def lines(path: Path, tally: Tally) -> Iterator[tuple[int, str]]:
    """(number from 1, line without its end). A line over `opening.MAX_LINE` becomes ""."""
    long = f"skipped {{n lines}} of more than {opening.MAX_LINE:,} bytes"
    for number, line in opening.lines(path, partial(tally.add, long), lambda: tally.add(_DAMAGED)):
        yield number, line.decode("utf-8", "replace").removesuffix("\n")


def whole_text(path: Path, tally: Tally) -> str:
    """The text of a file that cannot be read by lines. Raises `DataError` for one over `LARGEST`."""
    parts: list[str] = []
    size = 0
    for block in blocks(path, tally):
        parts.append(block)
        size += len(block)
        if size > LARGEST:
            raise DataError(f"{path} has more than {LARGEST:,} characters of JSON in one piece. Write one row per line")
    return "".join(parts)


# ---- a printed line without what Python, a terminal and a table write around its names and numbers


_CALLS = re.compile(r"(?<![\w.])(?:tensor|array|\w+(?:\.\w+)+)\(\[?([-+.\w]++)[^()]*\)")
"""A number of torch or numpy: `tensor(0.5, device='cuda:0')`, `np.float64(0.5)`."""
_QUOTED = re.compile(r"(['\"])([A-Za-z][\w./@-]*)\1(?=\s*:)")
_QUOTED_NUMBER = re.compile(r"(?<=[:=] )(['\"])([-+]?[\d.]+(?:e[-+]?\d+)?%?)\1", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<=[=\s])[-+]?[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_WIDE = str.maketrans({"：": ": ", "，": ", ", "；": "; ", "（": " (", "）": ") ", "＝": "=", "％": "%", "　": " "})
_WALLS = str.maketrans("│┃║¦", "||||")
_LETTER = re.compile(r"[A-Za-z]")
_NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?%?|[-+]?(?:nan|inf)", re.IGNORECASE)


def plain(line: str) -> str:
    """A line as names and numbers: without colours and the process that printed it, full-width marks, the walls of a
    table, the quotes of a dict, the types of torch and numpy, and commas between thousands.

    >>> plain("│ grpo/reward │ 5.0e-01 │"), plain("{'reward': tensor([0.5], device='cuda:0')}"), plain("loss：0.5")
    ('grpo/reward: 5.0e-01', '{reward: 0.5}', 'loss: 0.5')
    >>> plain("reward: 1,234.5 of [1,200,300] at 10:11:12,123"), plain("| 1 | 0.5 |")
    ('reward: 1234.5 of [1,200,300] at 10:11:12,123', '| 1 | 0.5 |')
    """
    line = without_process(COLOUR.sub("", line) if "\x1b" in line else line)
    if not line.isascii():
        line = line.translate(_WIDE).translate(_WALLS)
    if "(" in line and ("tensor(" in line or "array(" in line or "np." in line or "numpy." in line):
        line = _CALLS.sub(r"\1", line)
    if "': " in line or '":' in line:
        line = _QUOTED_NUMBER.sub(r"\2", _QUOTED.sub(r"\2", line))
    if "," in line:
        line = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), line)
    return _without_walls(line) if line.lstrip().startswith("|") else line


def _without_walls(line: str) -> str:
    """The names and numbers of a row between bars; any other row as it is."""
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    names, numbers = cells[::2], cells[1::2]
    if len(names) != len(numbers) or not all(map(_LETTER.match, names)) or not all(map(_NUMBER.fullmatch, numbers)):
        return line if len(cells) > 1 else cells[0]
    return " | ".join(f"{name}: {number}" for name, number in zip(names, numbers, strict=True))


# ---- dicts

_WORDS = re.compile(r"(?<=: )(-?)(nan|inf|None|True|False)(?=[,}\s])")
_JSON = {"nan": "NaN", "inf": "Infinity", "None": "null", "True": "true", "False": "false"}

_decode = json.JSONDecoder().raw_decode


def parsed(text: str) -> dict[str, Any] | None:
    """A dict as Python or JSON writes it, `nan` and numpy's numbers included; None for anything else.

    >>> parsed("{'loss': nan, 'reward': '0.5', 'kl': np.float64(0.1)}")
    {'loss': nan, 'reward': '0.5', 'kl': 0.1}
    """
    with suppress(ValueError, RecursionError):
        value: Any = _decode(text.replace("'", '"'))[0]  # the names of a JSON object are texts
        return value if type(value) is dict else None
    value = _carefully(text)
    return value if isinstance(value, dict) and all(type(name) is str for name in value) else None


def _carefully(text: str) -> Any:
    text = _CALLS.sub(r"\1", text)
    with suppress(ValueError, RecursionError):
        return _decode(_WORDS.sub(lambda m: m[1] + _JSON[m[2]], text.replace("'", '"')))[0]
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in the texts of a dict
        words = {"nan": "'nan'", "inf": "1e999", "-inf": "-1e999"}
        return ast.literal_eval(_WORDS.sub(lambda m: words.get(m[0], words.get(m[2], m[2])), text))
    return None
