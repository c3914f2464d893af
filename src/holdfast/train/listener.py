"""Events of a run, for listeners: a console, a metrics file, a guard, a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.agent.trajectory import Group
from holdfast.base.progress import Progress
from holdfast.diagnose.finding import Finding
from holdfast.tasks.questions import Example


@dataclass(frozen=True, slots=True)
class TurnChange:
    """The change of each token of a turn by an update."""

    chars: tuple[int, ...]
    """Characters of the turn's text that each token completes; they sum to its length. 0 for a token that ends inside a
    character, and for one that is not in the text (the end of the sequence)."""
    changes: tuple[float, ...]
    """New minus old log-prob of each token, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Displacement:
    """Displacement by a step: log-prob after the whole update − before, on the same rollouts."""

    correct: tuple[float, ...]
    """One value for each measured correct rollout, in nats per sampled token."""
    incorrect: tuple[float, ...]
    by_turn: Mapping[int, tuple[TurnChange, ...]] = field(default_factory=dict)
    """Number of the question in its batch -> the turns of its first rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one training step."""

    step: int
    """1, 2, …; 0 is the evaluation before the first step, which has only metrics."""
    metrics: Mapping[str, float]
    """Names are those of docs/reference/metrics.md."""
    groups: Sequence[Group] = ()
    """The scored rollouts, a group for each question."""
    examples: Sequence[Example] = ()
    """Their questions, in the same order."""
    displacement: Displacement | None = None
    """None if it was not measured."""


class Listener(Progress):
    """Gets every event of a run and returns nothing. The methods of this base class do nothing."""

    def step(self, result: StepResult) -> None:
        """A training step is finished."""

    def finding(self, finding: Finding) -> None:
        """A new finding in the log up to the last step."""

    def close(self) -> None:
        """Training has ended, with or without an error: write what is pending. No step follows, but a stage may."""


class Listeners(Listener):
    """Passes each step, and the end, to several listeners, in their order."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def step(self, result: StepResult) -> None:
        for listener in self._listeners:
            listener.step(result)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
