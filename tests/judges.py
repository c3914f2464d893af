"""A judge for the tests: a chat endpoint that answers by a function of the prompt, or with what it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .loopback import Asked, Reply, serving


@dataclass
class JudgeServer:
    """`saying` gives the content of an answer to a prompt; `replies`, first to last, come before it."""

    url: str
    saying: Callable[[str], str] = lambda prompt: "grade: 1"
    replies: list[tuple[int, Any]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    always: tuple[int, Any] | None = None

    @property
    def prompts(self) -> list[str]:
        return [body["messages"][0]["content"] for body in self.bodies]


@contextmanager
def a_judge() -> Iterator[JudgeServer]:
    def grade(asked: Asked) -> Reply:
        with lock:
            state.bodies.append(asked.body)
            state.keys.append(asked.headers["Authorization"])
            status, content = state.replies.pop(0) if state.replies else state.always or (200, None)
        if status != 200:
            return status, {"error": content}
        content = state.saying(asked.body["messages"][0]["content"]) if content is None else content
        choice = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        return 200, {"choices": [choice], "usage": {"total_tokens": 7}}

    lock = threading.Lock()
    with serving(grade) as url:
        state = JudgeServer(url)
        yield state
