"""Questions without instructions: what a model that was taught a method on examples is asked with.

Teaching and asking must use the same texts, so they stand here, below both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.retrieval.types import Hit
from holdfast.search.protocol import CLEAN, format_hits

PLAIN = replace(CLEAN, name="plain", prompt="{question}")
"""For `render_prompt`: a text as the user message, and nothing around it."""
NO_PASSAGES = "Nothing was found."


def passage_lines(hits: Sequence[Hit]) -> str:
    """Passages, a line each, as every method shows them; a sentence when there are none."""
    return "".join(format_hits(hits)).strip() or NO_PASSAGES


def bare_question(question: str) -> str:
    """The question alone.

    >>> bare_question(" Who? ")
    'Question: Who?\\nAnswer:'
    """
    return f"Question: {question.strip()}\nAnswer:"


def bare_question_with_passages(question: str, hits: Sequence[Hit]) -> str:
    """Passages, then the question."""
    return f"{passage_lines(hits)}\n{bare_question(question)}"


def bare_answer(answer: str, end: str | None) -> str:
    """What is learned: the answer, and the end of the sequence (`None` when the tokenizer has no token for it)."""
    return f" {answer.strip()}{end or ''}"
