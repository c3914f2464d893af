"""Questions: the value, the JSONL reader, and the order of training, whose position a checkpoint can keep."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base.errors import CheckpointError, DataError
from holdfast.base.jsonl import BadField, Skipped, clean_text, json_kind, read_rows, text_field
from holdfast.base.scoring import normalize_answer


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


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """The usable questions of a file, and the skipped rows, each with its reason."""

    examples: tuple[Example, ...]
    skipped: tuple[Skipped, ...]


def read_questions(
    path: str | os.PathLike[str],
    *,
    source: str | None = None,
    split: str = "train",
    on_skip: Callable[[Skipped], None] | None = None,
) -> QuestionFile:
    """Questions of a JSONL file (or .jsonl.gz): `{"question": str, "golden_answers": [str, …] or str}` a line.

    `source` defaults to the file's name without its ending. A row is skipped, counted and reported (to `on_skip`, else
    in one logged warning) when it is not such an object, when its question is empty, or when normalisation leaves
    nothing of any golden answer, because no prediction could then be correct. Raises `DataError` for a file that cannot
    be read, that holds no usable row, or in which more than half of the rows cannot be used.
    """
    if Path(path).suffix == ".parquet":
        lines = Path(path).with_suffix(".jsonl")
        raise DataError(f"{path} is parquet; turn it into JSON lines first: holdfast data convert {path} {lines}")
    name = Path(path).name.removesuffix(".gz")
    source = source or name.removesuffix(".jsonl").removesuffix(".json")

    def parse(row: dict[str, Any], line: int) -> Example:
        return Example(
            source=source,
            split=split,
            index=line - 1,
            question=text_field(row, "question").strip(),
            golden_answers=_golden_answers(row),
            metadata={key: value for key, value in row.items() if key not in ("question", "golden_answers")},
        )

    examples, skipped = read_rows(path, parse, what="question", on_skip=on_skip)
    return QuestionFile(tuple(examples), tuple(skipped))


def _golden_answers(row: Mapping[str, Any]) -> tuple[str, ...]:
    key = "golden_answers"
    answers = texts_of(row[key], key) if key in row else (text_field(row, key),)
    if not any(map(normalize_answer, answers)):
        raise BadField(key, f"{', '.join(map(repr, answers))} is empty without punctuation and articles")
    return answers


def texts_of(value: Any, field: str) -> tuple[str, ...]:
    """A list of texts, or one text; at least one of them must not be empty. Raises `BadField`."""
    if isinstance(value, str):
        return (clean_text(value, field),)
    if not isinstance(value, list):
        raise BadField(field, f"must be a string or a list of strings, is {json_kind(value)}")
    texts = tuple(clean_text(text, f"{field}[{i}]", empty=True) for i, text in enumerate(value))
    if not any(text.strip() for text in texts):
        raise BadField(field, "is an empty list" if not texts else f"contains only {', '.join(map(repr, texts))}")
    return texts


MOST_HELD_OUT = 1000
"""Resolves a difference of 4 points of exact match, 1.96 √(2 · 0.24 / 1000). The last evaluation asks all."""


def hold_out(examples: Sequence[Example]) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Split a file without a dev file into (training questions, dev questions): every tenth question is dev.

    At most `MOST_HELD_OUT` questions are dev, evenly spaced, so that a sorted file keeps its mix.
    """
    stride = max(10, -(-len(examples) // MOST_HELD_OUT))
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
