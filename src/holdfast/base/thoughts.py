"""What of a model's text is thought, and what it says. The one place that decides it.

A thought stands between `<think>` and `</think>`, Mistral's `[THINK]` and `[/THINK]`, or `<|channel>thought` and
`<channel|>` of Gemma. A chat template may have opened it, so an end without a beginning ends a thought that began
before the text. Servers that separate thoughts send them in a field of their own.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MARK = re.compile(r"<think>|\[THINK\]|<\|channel>thought|(</think>|\[/THINK\]|<channel\|>)")
"""Where a thought begins, or in the group ends."""
_OPENED = re.compile(r"(?:<think>|\[THINK\]|<\|channel>thought)\s*\Z")
_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Of a message: SGLang's, llama.cpp's and LM Studio's; vLLM's and Ollama's; Ollama's own."""


def after_thought(text: str, *, thinking: bool = False) -> int | None:
    """Where a text goes on after its thought; None if the thought has no end.

    `thinking`: whether the text begins inside a thought.

    >>> after_thought("<think> hm </think>Mora"), after_thought("Mora"), after_thought("<think> hm")
    (19, 0, None)
    """
    ends = [found.end() for found in _MARK.finditer(text) if found[1]]
    if ends:
        return ends[-1]
    return None if thinking or _MARK.search(text) else 0


def opens_thought(prompt: str) -> bool:
    """Whether a prompt ends inside a thought, which the model goes on with."""
    return _OPENED.search(prompt[-200:]) is not None


def matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], bool]]:
    """The matches of a pattern, each with whether it begins inside a thought: the next mark of a thought after it is an
    end. What stands in a thought that never ends counts as said, because sampling stops at the first closing tag.

    >>> text = "<think>maybe <answer>x</answer></think><answer>Mora</answer>"
    >>> [inside for _, inside in matches(re.compile("</answer>"), text)]
    [True, False]
    """
    marks = [(found.start(), bool(found[1])) for found in _MARK.finditer(text)]
    for match in pattern.finditer(text):
        following = bisect_right(marks, (match.start(), True))
        yield match, following < len(marks) and marks[following][1]


def said(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """The matches of a pattern outside of thoughts."""
    return [match for match, inside in matches(pattern, text) if not inside]


def through_first(texts: Sequence[str], text: str) -> str | None:
    """A text up to the first of these texts, that included, outside of thoughts; None when it has none of them."""
    if not texts:
        return None
    found = said(re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))), text)
    return text[: found[0].end()] if found else None


def thought_field(message: Mapping[str, Any]) -> str:
    """The thought that a message has in a field of its own; `""` without one."""
    return next((value for name in _FIELDS if isinstance(value := message.get(name), str) and value), "")


def thoughts_in(text: str) -> list[str]:
    """The thoughts of a text, the last perhaps without an end.

    >>> thoughts_in("so </think> then <think> hm")
    ['so ', ' hm']
    """
    thoughts, begin = list[str](), None if _MARK.search(text) is None else 0
    for mark in _MARK.finditer(text):
        if mark[1]:
            thoughts += [] if begin is None else [text[begin : mark.start()]]
            begin = None
        elif not begin:
            begin = mark.end()
    return thoughts if begin is None else [*thoughts, text[begin:]]
