"""What a report is made of: a run's log and diagnosis, and what it left behind of its samples."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.diagnostics.finding import Diagnosis
from holdfast.diagnostics.log import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTurn:
    """What the model said, and what came back."""

    text: str
    observation: str = ""
    query: str | None = None
    """Of a search; None for another action, and in files that do not tell."""
    hits: tuple[str, ...] = ()
    tokens: tuple[tuple[str, float], ...] | None = None
    """(piece of `text`, change of its log-prob by the step's update in nats); None where that was not measured. A piece
    is empty for a token that ends inside a character, and for the one that ends the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A sampled episode of a step."""

    step: int
    question: str
    golden_answers: tuple[str, ...]
    turns: tuple[EpisodeTurn, ...]
    answer: str | None
    correct: bool
    reward: float | None
    status: str = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleChanges:
    """What one update did to single rollouts: change of log-likelihood in nats per sampled token."""

    step: int
    correct: tuple[float, ...]
    incorrect: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun:
    """One run of a report."""

    log: Log
    diagnosis: Diagnosis
    episodes: tuple[Episode, ...] = ()
    changes: tuple[SampleChanges, ...] = ()
