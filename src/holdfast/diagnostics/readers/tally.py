"""What was skipped or read otherwise than it stands there, counted: one sentence a kind."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Sentences with their counts. `{n}` in a sentence becomes the count."""

    unit: str = "line"
    """What the numbers of places count: lines, or rows of a JSON array."""
    _kinds: dict[str, list[object]] = field(default_factory=dict)

    def add(self, sentence: str, place: int | None = None, example: str = "", *, count: int = 1) -> None:
        """Once more; the first place and example stay."""
        kind = self._kinds.setdefault(sentence, [0, place, example[:60]])
        kind[0] += count  # type: ignore[operator]

    def notes(self) -> tuple[str, ...]:
        """One sentence each, in the order of their first occurrence."""
        return tuple(self._note(sentence, *kind) for sentence, kind in self._kinds.items())

    def _note(self, sentence: str, count: object, place: object, example: object) -> str:
        where = f"at {self.unit} {place}" if place is not None else ""
        shown = f": {example}" if example else ""
        tail = f" (the first {where}{shown})" if where and count != 1 else f" ({where}{shown})" if where else ""
        return sentence.replace("{n}", f"{count:,}") + tail + "."
