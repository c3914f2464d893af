"""Questions: the value, and the order of training, whose position a checkpoint can keep."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.errors import CheckpointError, DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A question and every answer that counts as correct.

    >>> Example(source="nq", split="dev", index=7, question="Who?", golden_answers=("Mira", "M. Tolvan")).id
    'nq/dev/7'
    """

    source: str
    """Name of the data set."""
    split: str
    index: int
    """Place in its file, from 0; rows that were skipped keep theirs, so ids do not shift."""
    question: str
    golden_answers: tuple[str, ...]
    metadata: dict[str, Any] = field(default_factory=dict)
    """Every other field of the row."""

    @property
    def id(self) -> str:
        """Unique over all data sets of a run; grouping by the index alone would merge questions of two data sets."""
        return f"{self.source}/{self.split}/{self.index}"


MAX_HELD_OUT = 1000
"""Resolves a difference of 4 points of exact match, 1.96 √(2 · 0.24 / 1000). The last evaluation asks all."""


def hold_out(examples: Sequence[Example]) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Split a file without a dev file into (training questions, dev questions): every tenth question is dev.

    At most `MAX_HELD_OUT` questions are dev, evenly spaced, so that a sorted file keeps its mix.
    """
    stride = max(10, -(-len(examples) // MAX_HELD_OUT))
    return tuple(e for i, e in enumerate(examples) if i % stride), tuple(examples[::stride])


def dev_questions(examples: Sequence[Example], count: int) -> list[Example]:
    """At most `count` questions, evenly spaced: a file sorted by source or difficulty keeps its mix.

    >>> [e.index for e in dev_questions([Example(source="s", split="dev", index=i, question="?",
    ...                                          golden_answers=("x",)) for i in range(10)], 4)]
    [0, 2, 5, 7]
    """
    count = min(count, len(examples))
    return [examples[i * len(examples) // count] for i in range(count)]


class QuestionOrder:
    """Batches of questions, in an order that depends on (seed, epoch) alone and can restart at any position.

    Each epoch is a new permutation of all questions. A batch never spans two epochs, so it never holds a question
    twice. The last batch of an epoch is shorter, not dropped.

    >>> examples = [Example(source="s", split="train", index=i, question="?", golden_answers=("x",)) for i in range(3)]
    >>> order = QuestionOrder(examples, seed=0)
    >>> [len(order.next(2)) for _ in range(3)]
    [2, 1, 2]
    """

    def __init__(self, examples: Sequence[Example], seed: int) -> None:
        if not examples:
            raise DataError("there are no questions to train on")
        self._examples = tuple(examples)
        self._seed = seed
        self._digest = _digest(self._examples)
        self._start(epoch=0)

    def next(self, n: int) -> list[Example]:
        """The next `n` questions, 1 or more; fewer at the end of an epoch, never none."""
        if self._position == len(self._order):
            self._start(self._epoch + 1)
        batch = self._order[self._position : self._position + n]
        self._position += len(batch)
        return [self._examples[i] for i in batch]

    def state(self) -> dict[str, Any]:
        """The exact position, as JSON: all a checkpoint needs."""
        return {"seed": self._seed, "epoch": self._epoch, "position": self._position, "questions": self._digest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a position that `state()` returned. Raises `CheckpointError` for other questions or another seed."""
        if state["questions"] != self._digest:
            raise CheckpointError(
                "the training file, or the order of its rows, has changed since this checkpoint was saved. Restore "
                "the file, or start a new run"
            )
        if state["seed"] != self._seed:
            raise CheckpointError(
                f"the checkpoint was made with seed {state['seed']}, this run has seed {self._seed}; resume with the "
                "same seed"
            )
        self._start(int(state["epoch"]))
        self._position = int(state["position"])

    def _start(self, epoch: int) -> None:
        self._epoch, self._position = epoch, 0

        # Sorted by hash: a uniform permutation that no version of Python or numpy can change.
        def key(i: int) -> bytes:
            return hashlib.blake2b(f"{self._seed}/{epoch}/{i}".encode(), digest_size=16).digest()

        self._order = sorted(range(len(self._examples)), key=key)


def _digest(examples: Sequence[Example]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for example in examples:
        digest.update(repr((example.id, example.question, example.golden_answers)).encode())
    return digest.hexdigest()
