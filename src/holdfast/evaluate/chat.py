"""The policy for chat endpoints: the server writes the chat template, so that no tokenizer is needed here.

A method's context is one user message, and the beginning of the answer when the model continues it. vLLM, SGLang, TGI
and llama.cpp continue the last message of a request; hosted models begin another one after it. Templates may also
strip blanks from a message, or drop its thoughts. So `fault_in_continuing` measures it, for methods that need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.base.answers import Answer
from holdfast.base.errors import ConfigError
from holdfast.evaluate.openai import AWAY, TRANSIENT, OpenAIPolicy, WordTokenizer, is_away
from holdfast.model.policy import Request
from holdfast.model.tokens import encode

ANSWER_BEGINS = "\ufdd1"
"""Separates the user message from the answer in a context. `foreign` takes it out of the texts of others."""
_TURNS = "<think> a b </think>\n<search> c </search>\n\n<information>Doc 1(Title: d) e.</information>\n\n"


class ChatWords(WordTokenizer):
    """`WordTokenizer` with a template that marks where the answer begins.

    >>> words = ChatWords()
    >>> words.apply_chat_template([{"role": "user", "content": "Who?"}]) == "Who?" + ANSWER_BEGINS
    True
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
        """The user's message and the mark behind it."""
        return messages[0]["content"] + ANSWER_BEGINS


class ChatPolicy(OpenAIPolicy):
    """Turns from a chat endpoint. Its tokenizer is a `ChatWords`."""

    tokenizer: ChatWords
    _more_optional = ("continue_final_message", "add_generation_prompt")

    def fault_in_continuing(self) -> str | None:
        """Why the server does not continue an answer exactly; None if it does.

        Three calls of one token each. A text that the server takes as it is adds the same number of tokens to the
        prompt when it is written once and twice.
        """
        counts: list[int] = []
        for answer_start in ("", _TURNS, _TURNS + _TURNS):
            context = encode(self.tokenizer, f"Who?{ANSWER_BEGINS}{answer_start}")
            answer = self._ask(Request(id="continue", token_ids=context, max_new_tokens=1, stop=(), seed=0))
            if answer.status != 200:
                return self._refusal(answer)
            try:
                counts.append(int(answer.json()["usage"]["prompt_tokens"]))
            except (ValueError, KeyError, TypeError):
                return f"it does not count the tokens of a prompt: {answer.quoted()}"
        plain, once, twice = counts
        if once - plain == twice - once > 0:
            return None
        return f"a text adds {once - plain} tokens to the prompt, but {twice - once} when it is repeated"

    def _ask(self, request: Request) -> Answer:
        """The answer to a call of one token, asked again while the server cannot answer for the moment.

        Raises `ConfigError` when it stays away, which says nothing on what it continues.
        """
        failures = 0
        while True:
            body, away, asked = self._body(request, 1), True, 0.0
            try:
                answer = self._post(body)
            except (TimeoutError, ConnectionError, ValueError) as error:
                reason = str(error)
            else:
                if answer.status not in AWAY | TRANSIENT:
                    self._retries.answered()
                    if self._adapt(answer, body):
                        continue
                    return answer
                asked, reason = answer.retry_after, self._refusal(answer)
                away = is_away(answer, reason)
            failures += 1
            if not self._pause(failures, reason if away else None, asked):
                raise ConfigError(
                    f"{reason}. So it cannot be tested whether the server continues an answer. Fix the server, then "
                    "run the same command again"
                )

    def _prompt(self, context: str) -> dict[str, Any]:
        user, _, answer_start = context.partition(ANSWER_BEGINS)
        messages = [{"role": "user", "content": user}]
        variables = {"chat_template_kwargs": self.tokenizer.variables} if self.tokenizer.variables else {}
        if not answer_start:
            return {"messages": messages, **variables}
        return {
            **variables,
            "messages": [*messages, {"role": "assistant", "content": answer_start}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        }

    def _text(self, choice: Mapping[str, Any]) -> Any:
        text = choice["message"].get("content")
        # A model that reasons may spend all tokens on it.
        return "" if text is None and choice.get("finish_reason") == "length" else text
