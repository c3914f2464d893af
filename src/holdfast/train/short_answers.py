"""Lessons in answering shortly: a question, from memory or behind passages, and the first golden answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.config import Config
from holdfast.data import Example, Sampler
from holdfast.errors import DataError
from holdfast.loading import load_protocol
from holdfast.retrieval.types import Hit, Retriever
from holdfast.scoring import sub_em
from holdfast.search.protocol import PLAIN, bare_answer, bare_question, bare_question_with_passages, render_prompt
from holdfast.train.warm_start import Episode, encode_episode

_AT_ONCE = 256


def short_answers(
    config: Config, questions: Sequence[Example], retriever: Retriever, tokenizer: Any, most: int
) -> list[Episode]:
    """At most `most` of the questions as `warm_start.teaches` says; what is learned is the answer and the end of the
    sequence.

    A question whose passages hold no golden answer is left out: it would teach to make one up. Raises `DataError` when
    none is left.
    """
    protocol = load_protocol(config)
    examples = Sampler(questions, config.warm_start.seed).next(most)
    lessons = [(bare_question(example.question), example) for example in examples]
    if config.warm_start.teaches == "rag":
        passages = _passages(retriever, examples, protocol.topk)
        lessons = [
            (bare_question_with_passages(example.question, hits), example)
            for example, hits in zip(examples, passages, strict=True)
            if sub_em(" ".join(hit.document.contents for hit in hits), example.golden_answers)
        ]
        if not lessons:
            raise DataError(
                f"none of {len(examples)} training questions has a golden answer in the {protocol.topk} passages found "
                "for it, so there is nothing to teach with warm_start.teaches = 'rag'; check that [retrieval] and "
                "[data] belong together"
            )
    return [
        encode_episode(
            render_prompt(text, PLAIN, tokenizer, config.model.chat_template),
            [(bare_answer(example.golden_answers[0], tokenizer.eos_token), "")],
            protocol,
            tokenizer,
        )
        for text, example in lessons
    ]


def _passages(retriever: Retriever, examples: Sequence[Example], k: int) -> list[list[Hit]]:
    questions = [example.question for example in examples]
    return [
        hits
        for start in range(0, len(questions), _AT_ONCE)
        for hits in retriever.search(questions[start : start + _AT_ONCE], k)
    ]
