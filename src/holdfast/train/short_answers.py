"""Lessons in answering shortly: a question, from memory or behind passages, and the first golden answer."""

from __future__ import annotations

from typing import Any

from holdfast.data import Sampler
from holdfast.search.bare import PLAIN, bare_answer, bare_question, bare_question_with_passages
from holdfast.search.protocol import render_prompt
from holdfast.train.session import Workspace
from holdfast.train.warm_start import Episode, encode_episode

_AT_ONCE = 256


def short_answers(workspace: Workspace, tokenizer: Any, most: int) -> list[Episode]:
    """At most `most` training questions as `warm_start.teaches` says; what is learned is the answer and the end of the
    sequence. Passages are those that training sees."""
    config = workspace.config
    examples = Sampler(workspace.train, config.warm_start.seed).next(most)
    texts = [bare_question(example.question) for example in examples]
    if config.warm_start.teaches == "rag":
        questions = [example.question for example in examples]
        hits = [
            found
            for start in range(0, len(questions), _AT_ONCE)
            for found in workspace.train_retriever.search(questions[start : start + _AT_ONCE], workspace.protocol.topk)
        ]
        texts = [bare_question_with_passages(q, found) for q, found in zip(questions, hits, strict=True)]
    return [
        encode_episode(
            render_prompt(text, PLAIN, tokenizer, config.model.chat_template),
            [(bare_answer(example.golden_answers[0], tokenizer.eos_token), "")],
            workspace.protocol,
            tokenizer,
        )
        for text, example in zip(texts, examples, strict=True)
    ]
