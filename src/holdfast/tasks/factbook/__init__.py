"""Questions over the CIA World Factbook, whose text a package ships: passages, questions of one to three hops,
demonstrations. All are made in memory.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.agent.protocol import SearchProtocol
from holdfast.agent.searching import search_patiently
from holdfast.base.errors import DataError
from holdfast.retrieval.types import Document, Retriever
from holdfast.tasks.demonstrate import FIRST_THOUGHTS, LAST_THOUGHTS
from holdfast.tasks.demonstrations import Text, turn_text
from holdfast.tasks.factbook.book import read_book
from holdfast.tasks.factbook.passages import passages_of
from holdfast.tasks.factbook.questions import questions_of
from holdfast.tasks.questions import Example
from holdfast.tasks.task_set import Questions, TaskSet


@functools.cache
def load_questions() -> Questions:
    """The questions. Raises `DataError` for another version of the package, `MissingExtra` without it."""
    splits = {split: tuple(examples) for split, examples in questions_of(read_book()).items()}
    return Questions(**splits)


def load_passages() -> tuple[Document, ...]:
    """The passages. Raises as `load_questions`."""
    return tuple(document for country in read_book() for document in passages_of(country))


class FactbookTasks(TaskSet):
    """Questions over real prose, with demonstrations that often stop too early."""

    own_passages = True
    extras = ("factbook",)

    def questions(self) -> Questions:
        return load_questions()

    def passages(self) -> Sequence[Document]:
        return load_passages()

    def demonstrations(
        self, asked: Sequence[Example], retriever: Retriever, protocol: SearchProtocol, *, seed: int, most: int
    ) -> Sequence[Text]:
        """Of every training question, with what the recipe's retriever finds."""
        return demonstrations_of(asked, retriever, protocol, seed)

    def fingerprint(self) -> Mapping[str, str]:
        """The digest of the code, which may change within a version."""
        code = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
        return {"factbook": hashlib.sha256(code).hexdigest()}


# ---- demonstrations that leave something to learn: some stop before the last hop of a question, so that a policy that
# has learned from them searches well, but rarely often enough

STOP_EARLY = 0.25
"""Probability, before each search after the first, to answer with what the last one found."""
WHOLE_QUESTION = 0.15
"""Probability that the first query is the whole question."""

_NEXT_THOUGHTS = ("It is {}. I search on.", "That is {}.", "{}. Next.")


def demonstrations_of(
    examples: Sequence[Example], retriever: Retriever, protocol: SearchProtocol, seed: int = 0
) -> list[Text]:
    """(question, turns) in random order; a turn is its text and the observation after it.

    A question is left out where a search misses its passage. Raises `DataError` if all are: the passages are others.
    """
    rng = random.Random(f"factbook-demonstrations-{seed}")
    demonstrations: list[Text] = []
    for example in rng.sample(examples, len(examples)):
        turns = _turns(example.question, example.metadata["steps"], retriever, protocol, rng)
        if turns is not None:
            demonstrations.append((example.question, turns))
    if not demonstrations:
        raise DataError(
            "no search for a demonstration found its passage: the demonstrations of the Factbook need its passages. "
            "Leave retrieval.index and retrieval.url out, or let them lead to these passages"
        )
    return demonstrations


def _turns(
    question: str, steps: Sequence[dict[str, Any]], retriever: Retriever, protocol: SearchProtocol, rng: random.Random
) -> list[tuple[str, str]] | None:
    """The turns of a rollout; None where a search misses its passage."""
    stop = next((n for n in range(1, len(steps)) if rng.random() < STOP_EARLY), len(steps))
    turns = []
    for n, step in enumerate(steps[: min(stop, protocol.max_turns - 1)]):
        whole = n == 0 and rng.random() < WHOLE_QUESTION
        query = question.rstrip("?") if whole else step["query"]
        hits = search_patiently(retriever, query, protocol.topk)
        if step["passage"] not in [hit.document.id for hit in hits]:
            return None
        thought = rng.choice(_NEXT_THOUGHTS).format(steps[n - 1]["answer"]) if n else rng.choice(FIRST_THOUGHTS)
        turns.append((turn_text(thought, query, protocol.search_tags, protocol), protocol.observation_text(hits)))
    answer = steps[len(turns) - 1]["answer"]
    turns.append((turn_text(rng.choice(LAST_THOUGHTS), answer, protocol.answer_tags, protocol), ""))
    return turns
