"""What was skipped, or read in another way than it stands there, counted: a sentence for each kind."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

_LONGEST = 60


@dataclass(slots=True)
class _Kind:
    count: int
    place: int | None
    example: str


@dataclass(slots=True)
class Tally:
    """Of one file."""

    path: Path
    unit: str = "line"
    """What places count: lines, or the rows of a JSON array."""
    _kinds: dict[str, _Kind] = field(default_factory=dict)

    def add(self, sentence: str, place: int | None = None, example: str = "", *, count: int = 1) -> None:
        """Once more, or `count` times. `{n rows}` in the sentence becomes "1 row" or "12 rows"; the first place and
        example are kept."""
        self._kinds.setdefault(sentence, _Kind(0, place, example)).count += count

    def notes(self) -> tuple[str, ...]:
        """A sentence each, in the order in which they first happened."""
        return tuple(self._note(sentence, kind) for sentence, kind in self._kinds.items())

    def _note(self, sentence: str, kind: _Kind) -> str:
        where = "" if kind.place is None else f"{self.unit} {kind.place:,}"
        if kind.example:
            where += (": " if where else "") + clean(kind.example, _LONGEST)
        if where:
            where = f" ({'the first: ' if kind.count > 1 else ''}{where})"
        text = re.sub(r"\{n (\w+)s\}", lambda m: f"{kind.count:,} {m[1]}{'s' * (kind.count != 1)}", sentence)
        return f"{text[0].upper()}{text[1:]}{where}."


def clean(text: str, longest: int = 200) -> str:
    """A text from a file, fit to be shown: printable, and not long.

    >>> clean("reward\\ud800/mean"), clean("x" * 9, 4), clean("")
    ('reward\\\\ud800/mean', 'xxx…', '(no name)')
    """
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if text.strip() else "(no name)"
