"""Progress of long work, for a console or a test."""

from __future__ import annotations

from collections.abc import Mapping


class Progress:
    """Gets the events of long work and returns nothing. The methods of this base class do nothing."""

    def stage(self, name: str, total: int | None = None) -> None:
        """A phase begins (`warm start`, `training`, …), of `total` steps if known. It ends the phase before."""

    def advance(self, done: int, detail: Mapping[str, float] | None = None) -> None:
        """`done` steps of the phase are finished."""

    def note(self, message: str) -> None:
        """A sentence that people should read now."""
