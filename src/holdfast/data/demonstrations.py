"""Demonstrations of how to search a user's own passages, for the warm start of a model that does not search by itself.

A script asks the question, or its content words. If a passage that comes back has a golden answer, it answers;
otherwise it searches once more, with the title of the first passage and the words that this passage lacks, and answers
if that helped. Queries vary on purpose: a policy that has learned from them has something to try.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.agent.protocol import SearchProtocol
from holdfast.base.errors import DataError
from holdfast.base.jsonl import write_jsonl
from holdfast.base.scoring import normalize_answer
from holdfast.data.questions import Example
from holdfast.retrieval.types import Hit, Retriever

Turns = list[tuple[str, Sequence[Hit]]]
"""(text of a turn, passages of its search) pairs; the last has none."""

WHOLE_QUESTION = 0.5
"""Probability that the first query is the question, and not its content words."""

_CHARACTERS = 3
"""Characters of an observation that are read, for each of its most tokens: the rest may be cut off for the model."""
_TITLE_WORDS = 12
"""A longer first line is the passage itself, of a corpus without titles."""

FIRST_THOUGHTS = ("I look it up.", "Let me search.", "I need a passage.")
_NEXT_THOUGHTS = ("That does not say it. I look up {}.", "Not there yet. {} may say it.", "I search on, for {}.")
LAST_THOUGHTS = ("The passage says it.", "I have read it.", "Found.")
_FUNCTION_WORD = re.compile(
    "a|an|and|are|at|be|been|being|by|can|could|did|do|does|during|for|from|had|has|have|he|her|his|how|in|is|it|its|of|"
    "on|or|she|so|than|that|the|their|them|these|they|this|those|to|was|were|what|when|where|which|while|who|whom|whose|"
    "why|will|with|would"
)


def demonstrations_of(
    examples: Sequence[Example], retriever: Retriever, protocol: SearchProtocol, *, seed: int = 0
) -> Iterator[tuple[str, Turns]]:
    """(question, turns) in random order; of questions that no search answers, none.

    Answers are golden answers as they are written. Yes and no are left out: any passage may have these words.
    """
    rng = random.Random(f"demonstrations-{seed}")
    for example in rng.sample(examples, len(examples)):
        turns = _turns(example, retriever, protocol, rng)
        if turns is not None:
            yield example.question, turns


def write_demonstrations(path: Path, demonstrations: Sequence[tuple[str, Turns]], examples: Sequence[Example]) -> None:
    """Write the rows that `warm_start.data` reads. Raises `DataError` if there are none."""
    if not demonstrations:
        raise DataError(
            f"no passage that a search found has a golden answer of these {len(examples):,} questions, so there is "
            "nothing to demonstrate. Check that retrieval.corpus has passages about them, or raise protocol.topk or "
            "protocol.max_observation_tokens. A search and an answer need protocol.max_turns = 2"
        )
    write_jsonl(
        path,
        (
            {
                "question": question,
                "turns": [
                    {"text": text, "observation": [hit.document.contents for hit in hits]} if hits else {"text": text}
                    for text, hits in turns
                ],
            }
            for question, turns in demonstrations
        ),
    )


def _turns(example: Example, retriever: Retriever, protocol: SearchProtocol, rng: random.Random) -> Turns | None:
    golds = [gold for gold in example.golden_answers if normalize_answer(gold) not in ("", "yes", "no")]
    shown = _CHARACTERS * protocol.max_observation_tokens
    question = example.question.strip().rstrip("?").rstrip()
    words = [word for word in re.findall(r"[\w'.-]+", question) if not _FUNCTION_WORD.fullmatch(word.lower())]
    query = question if rng.random() < WHOLE_QUESTION or not words else " ".join(words)
    thought, turns = rng.choice(FIRST_THOUGHTS), Turns()
    for _ in range(min(2, protocol.max_turns - 1)):
        hits = retriever.search([query], protocol.topk)[0]
        turns.append((turn_text(thought, query, protocol.search_tags, protocol), hits))
        text = f" {normalize_answer(' '.join(hit.document.contents for hit in hits)[:shown])} "
        answer = next((gold for gold in golds if f" {normalize_answer(gold)} " in text), None)
        if answer is not None:
            turns.append((turn_text(rng.choice(LAST_THOUGHTS), answer, protocol.answer_tags, protocol), ()))
            return turns
        if not hits or len(hits[0].document.title.split()) > _TITLE_WORDS:
            return None
        title, passage = hits[0].document.title, hits[0].document.contents.lower()
        query = " ".join([title, *(word for word in words if word.lower() not in passage)])
        thought = rng.choice(_NEXT_THOUGHTS).format(title)
    return None


def turn_text(thought: str, text: str, tags: tuple[str, str], protocol: SearchProtocol) -> str:
    """A turn that thinks, then writes a query or an answer in its tags."""
    opened, closed = tags
    return f"{protocol.think_open} {thought} {protocol.think_close}\n{opened} {text} {closed}"
