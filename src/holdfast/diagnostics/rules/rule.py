"""What a rule is. A rule's `find` gives the first step at which the log so far shows it, and that never changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.diagnostics.log import Host, Log


@dataclass(frozen=True, slots=True)
class Hit:
    """What a rule found."""

    step: int
    """The first step at which the log showed it."""
    summary: str
    """What happened, in one sentence with its numbers."""
    evidence: Mapping[str, float]
    """Names of series, or of what was computed from them, and their numbers at `step`."""
    series: tuple[str, ...]
    """The series to look at."""
    remedy: Mapping[Host, str] | None = None
    """What to change, where the evidence tells it apart from what the code's text advises."""


def always(log: Log) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Rule:
    """One code."""

    code: str
    find: Callable[[Log], Hit | None]
    needs: tuple[tuple[str, ...], ...]
    """Sets of series, the best first: the question can be answered where all series of one set are logged."""
    asked: Callable[[Log], bool] = always
    """Whether the question arises: where there is no penalty, none can be inert."""

    def on(self, log: Log) -> Hit | None:
        """What the rule finds in a log."""
        return self.find(log) if self.asked(log) else None


def earliest(*hits: Hit | None) -> Hit | None:
    """The hit with the lowest step; of equals the one named first."""
    found = [one for one in hits if one is not None]
    return min(found, key=lambda one: one.step) if found else None
