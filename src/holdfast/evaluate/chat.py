"""The policy for chat endpoints: the server writes the chat template, so that no tokenizer is needed here.

A context is one user message. Methods that continue an answer need `/v1/completions`: a chat endpoint begins another
answer, or its template strips blanks and drops thoughts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.evaluate.openai import OpenAIPolicy, WordTokenizer


class ChatWords(WordTokenizer):
    """`WordTokenizer` with a template that leaves the user's message as it is.

    >>> ChatWords().apply_chat_template([{"role": "user", "content": "Who?"}])
    'Who?'
    """

    chat_template: str | None = "the server's"

    def __init__(self, variables: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.variables = dict(variables or {})
        """What the server gives its template: vLLM and SGLang take `chat_template_kwargs`."""

    def get_chat_template(self, tools: object = None) -> str | None:
        """A name for the template, which only has to exist."""
        return self.chat_template

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        """The user's message."""
        return messages[0]["content"]


class ChatPolicy(OpenAIPolicy):
    """Turns from a chat endpoint. Its tokenizer is a `ChatWords`."""

    tokenizer: ChatWords

    def _prompt(self, context: str) -> dict[str, Any]:
        variables = {"chat_template_kwargs": self.tokenizer.variables} if self.tokenizer.variables else {}
        return {"messages": [{"role": "user", "content": context}], **variables}

    def _text(self, choice: Mapping[str, Any]) -> Any:
        text = choice["message"].get("content")
        # A model that reasons may spend all tokens on it.
        return "" if text is None and choice.get("finish_reason") == "length" else text
