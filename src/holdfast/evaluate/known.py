"""What an agent can be asked: words of a question that are new to it, and questions that it can answer."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from holdfast.agent.agent import SearchAgent
from holdfast.base.errors import DataError
from holdfast.base.jsonl import text_field
from holdfast.base.rows import iter_rows
from holdfast.base.run_folder import ANSWERS
from holdfast.model.text.tokens import encode
from holdfast.recipe import Config
from holdfast.tasks.demonstrate import content_words
from holdfast.tasks.opening import open_tasks


def new_words(question: str, agent: SearchAgent, config: Config) -> list[str]:
    """A sentence for the words of a question that the model has never seen, and one for those in no passage.

    The tokenizer of a tiny model has each word of its world as one token. Other models read any word. Passages behind a
    server are not asked: a search for each word would cost as much as the answer.
    """
    words = list(dict.fromkeys(word.strip("'.-").removesuffix("'s") for word in content_words(question)))
    words = [word for word in words if word]
    unseen = [word for word in words if config.model.is_tiny and len(encode(agent.tokenizer, f" {word}")) > 1]
    known = getattr(agent.retriever, "documents", ())
    hits = agent.retriever.search(words, 1) if known and words else [[None]] * len(words)
    absent = [word for word, found in zip(words, hits, strict=True) if not found]
    about = (("words that the model has never seen", unseen), ("words that no passage has", absent))
    return [f"{what}: {', '.join(of)}" for what, of in about if of]


def answerable(run: Path, config: Config, count: int = 3) -> tuple[str, list[str]]:
    """(what they are, questions) to try: held-out ones that the closing evaluation of the run has answered correctly;
    before it, or if there are none, any held-out ones."""
    try:
        rows = iter_rows(run / ANSWERS, _correct, what="answer", on_skip=lambda _: None)
        if correct := list(islice(filter(None, rows), count)):
            return "held-out questions that it has answered correctly", correct
    except DataError:
        pass  # an unfinished run; examples are not worth an error
    questions = open_tasks(config, lambda _: None).questions()
    held_out = questions.test or questions.dev
    return "held-out questions", [example.question for example in held_out[:count]]


def _correct(row: dict[str, Any], _: int) -> str | None:
    """The question of a row of answers.jsonl if its most likely answer is correct."""
    return text_field(row, "question") if row.get("em_greedy") == [1.0] else None
