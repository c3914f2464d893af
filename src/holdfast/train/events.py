"""What a run tells whoever watches it. The trainer knows nothing of consoles; a test watches with a list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.diagnostics.finding import Finding


class Observer(Protocol):
    """Told everything, asked nothing."""

    def stage(self, name: str, total: int | None = None) -> None:
        """A phase begins (`warm start`, `training`, …), of `total` steps if that is known. Ends the one before."""
        ...

    def advance(self, done: int, detail: Mapping[str, float] | None = None) -> None:
        """`done` steps of the phase are finished."""
        ...

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """A training step is finished: all metrics of design §7 that it produced."""
        ...

    def note(self, message: str) -> None:
        """A sentence a person should read now."""
        ...

    def alarm(self, finding: Finding) -> None:
        """The log of the step told last shows a disease."""
        ...


class Silent:
    """The null observer."""

    def stage(self, name: str, total: int | None = None) -> None: ...

    def advance(self, done: int, detail: Mapping[str, float] | None = None) -> None: ...

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None: ...

    def note(self, message: str) -> None: ...

    def alarm(self, finding: Finding) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An episode for a person to read."""

    question: str
    golden_answers: tuple[str, ...]
    turns: tuple[tuple[str, str], ...]
    """(what the model said, what came back) pairs."""
    answer: str | None
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How a run ended."""

    run_dir: Path
    seconds: float
    steps: int
    verdict: str
    """One paragraph: what rose, what fell, whether correct rollouts were displaced."""
    before: Mapping[str, float]
    """`em`, `em_greedy`, … of the policy the run started from, on the final evaluation's questions."""
    after: Mapping[str, float]
    """The same after training."""
    split: str
    """The questions of `before` and `after`: `test`, or `dev` when there is no test."""
    samples: tuple[Sample, ...]
