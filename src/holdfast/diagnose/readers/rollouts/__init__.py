"""Rollouts that trainers wrote down, as values; read from their files, whichever trainer wrote them.
docs/reference/logs.md lists the forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTurn:
    """One turn: the model's text, and the observation after it."""

    text: str
    observation: str = ""
    query: str | None = None
    """The query of a search; None for other actions, and in files without queries."""
    hits: tuple[str, ...] | None = ()
    """Ids of the passages that a search returned; None in files of trainers that do not write them."""
    tokens: tuple[tuple[str, float], ...] | None = None
    """(piece of `text`, change of its log-prob by the update of the step, in nats); None if not measured. The piece is
    empty for a token that ends inside a character, and for the token that ends the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRollout:
    """A rollout of a step."""

    step: int
    question: str
    golden_answers: tuple[str, ...] = ()
    turns: tuple[SampledTurn, ...]
    answer: str | None = None
    correct: bool | None = None
    """None where the file does not say."""
    reward: float | None = None
    status: str = "ok"
    """`ok`, `truncated`, or one of `FAILURES`."""
    prompt: str = ""
    """All that the model was given before its first turn, if that is more than the question."""
    advantage: float | None = None
    held_out: bool = False
    """Whether it is of an evaluation."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Other numbers of its row, such as the parts of the reward, by their names there."""

    @property
    def size(self) -> int:
        """About how many characters it takes in memory and on a page."""
        parts = ((turn.text, turn.observation, turn.tokens or ()) for turn in self.turns)
        return sum(len(text) + len(seen) + 20 * len(tokens) for text, seen, tokens in parts)


FAILURES = ("retrieval_failed", "error")
"""Statuses of rollouts that say nothing about the policy."""
