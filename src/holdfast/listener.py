"""What a run, or any long work, tells whoever listens: a console, a metrics file, a guard, a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.data import Example
    from holdfast.diagnostics.finding import Finding
    from holdfast.trajectory import Group


@dataclass(frozen=True, slots=True)
class TurnChange:
    """The tokens of one turn, by what the update did to them."""

    chars: tuple[int, ...]
    """Characters of the turn's text that each token completes; they sum to its length. 0 for a token that ends inside a
    character, and for one that is not in the text (the end of the sequence)."""
    changes: tuple[float, ...]
    """New minus old log-prob of each token, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Displacement:
    """Change of log-likelihood by the whole update of a step."""

    correct: tuple[float, ...]
    """Of each measured rollout that is correct, in nats per sampled token."""
    incorrect: tuple[float, ...]
    shown: Mapping[int, tuple[TurnChange, ...]] = field(default_factory=dict)
    """Number of the question in its batch -> the turns of its first rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one training step did."""

    step: int
    """1, 2, …; 0 is the evaluation before the first step, which has metrics alone."""
    metrics: Mapping[str, float]
    """By the names of docs/metrics.md."""
    groups: Sequence[Group] = ()
    """The scored rollouts, a group for each question."""
    examples: Sequence[Example] = ()
    """Their questions, in the same order."""
    displacement: Displacement | None = None
    """None when it was not measured."""


class Listener:
    """Is told everything and asked nothing. Its methods do nothing: it is also the listener that ignores it all."""

    def stage(self, name: str, total: int | None = None) -> None:
        """A phase begins (`warm start`, `training`, …), of `total` steps if that is known. Ends the one before."""

    def advance(self, done: int, detail: Mapping[str, float] | None = None) -> None:
        """`done` steps of the phase are finished."""

    def note(self, message: str) -> None:
        """A sentence a person should read now."""

    def step(self, result: StepResult) -> None:
        """A training step is finished."""

    def finding(self, finding: Finding) -> None:
        """The log up to the last step shows a problem."""

    def close(self) -> None:
        """Training has ended, well or not: write what is pending. No step follows, but a stage may."""


class Listeners(Listener):
    """Passes everything on to each of some listeners, in their order."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def stage(self, name: str, total: int | None = None) -> None:
        for listener in self._listeners:
            listener.stage(name, total)

    def advance(self, done: int, detail: Mapping[str, float] | None = None) -> None:
        for listener in self._listeners:
            listener.advance(done, detail)

    def note(self, message: str) -> None:
        for listener in self._listeners:
            listener.note(message)

    def step(self, result: StepResult) -> None:
        for listener in self._listeners:
            listener.step(result)

    def finding(self, finding: Finding) -> None:
        for listener in self._listeners:
            listener.finding(finding)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
