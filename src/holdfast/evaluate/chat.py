"""The policy for chat endpoints: the server writes the chat template, so that no tokenizer is needed here.

A method's context is one user message, and the beginning of the answer when the model continues it. vLLM, SGLang, TGI
and llama.cpp continue the last message of a request; hosted models begin another one after it. Templates may also
strip blanks from a message, or drop its thoughts. So `fault_in_continuing` measures it, for methods that need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.base.answers import Answer
from holdfast.base.errors import ConfigError, RolloutError
from holdfast.evaluate.openai import OpenAIPolicy, Refused, WordTokenizer
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
        """Why the server does not continue an answer exactly; None if it does. Raises `ConfigError` if it stays away.

        Three calls of one token each. A text that the server takes as it is adds the same number of tokens to the
        prompt when it is written once and twice.
        """
        begun = ("", _TURNS, _TURNS + _TURNS)
        try:
            plain, once, twice = (self._loop.run(self._prompt_tokens(f"Who?{ANSWER_BEGINS}{text}")) for text in begun)
        except Refused as error:
            return str(error)
        except RolloutError as error:  # which says nothing on what the server continues
            raise ConfigError(
                f"{error}. So it cannot be tested whether the server continues an answer. Fix the server, then run the "
                "same command again"
            ) from None
        if once - plain == twice - once > 0:
            return None
        return f"a text adds {once - plain} tokens to the prompt, but {twice - once} when it is repeated"

    async def _prompt_tokens(self, context: str) -> int:
        """The tokens of a context as the server counts them."""
        request = Request(id="continue", token_ids=encode(self.tokenizer, context), max_new_tokens=1, stop=(), seed=0)
        return await self._answered(request, 1, _prompt_tokens)

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


def _prompt_tokens(answer: Answer) -> int:
    try:
        return int(answer.json()["usage"]["prompt_tokens"])
    except (ValueError, KeyError, TypeError):
        raise Refused(f"it does not count the tokens of a prompt: {answer.quoted()}") from None
