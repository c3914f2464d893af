"""Where words go: consoles, durations, small drawings. Everything here is light; nothing imports torch."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.text import Text

from holdfast.errors import HoldfastError

ABSENT = "–"
_BLOCKS = "▁▂▃▄▅▆▇█"


def out() -> Console:
    """Standard output. Numbers and paths are not coloured on their own, and `[brackets]` are no markup."""
    return Console(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, markup=False, soft_wrap=not sys.stderr.isatty())


def is_live(console: Console) -> bool:
    """True when a display may be redrawn in place: a real terminal and a person before it."""
    return console.is_terminal and not console.is_dumb_terminal and sys.stdout.isatty() and "CI" not in os.environ


def survive_any_encoding() -> None:
    """A terminal that cannot show a character shows a question mark instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def complain(error: HoldfastError) -> None:
    """The sentence of an error, for a person."""
    err().print(Text.assemble(("error: ", "bold red"), str(error)))


def program() -> str:
    """What to type to get this program again: `holdfast`, or its path when the shell would not find it."""
    own = Path(sys.argv[0])
    found = shutil.which("holdfast")
    if own.name != "holdfast" or (found and Path(found).resolve() == own.resolve()):
        return "holdfast"
    own, here = own.absolute(), Path.cwd()
    return shlex.quote(str(own.relative_to(here) if own.is_relative_to(here) else own))


def duration(seconds: float) -> str:
    """Rounded as people say it.

    >>> [duration(s) for s in (0.04, 7.26, 59.6, 83, 3599.7, 3700)]
    ['0.0 s', '7.3 s', '1 min 00 s', '1 min 23 s', '1 h 00 min', '1 h 01 min']
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = whole // 60
    return f"{minutes // 60} h {minutes % 60:02d} min"


def spark(values: Sequence[float], width: int) -> str:
    """A series as a line of `width` blocks at most, from its smallest to its largest value; each is a mean.

    >>> spark([0, 1, 2, 3, 4, 5, 6, 7], 4)
    '▁▃▆█'
    >>> spark([0.5, 0.5], 4)
    '▄▄'
    """
    count = min(width, len(values))
    edges = [len(values) * i // count for i in range(count + 1)] if count else []
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        return _BLOCKS[3] * count
    return "".join(_BLOCKS[round(7 * (mean - low) / (high - low))] for mean in means)
