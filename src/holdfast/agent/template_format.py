"""How a chat template writes calls, results and the ends of messages, found out from conversations that it renders.

So there is no table of model families. The template itself writes every call (`CallFormat.write`); what is read from
its text is where a result goes, which syntax a call has, and which tokens end a message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import proxy

from holdfast.agent.call_syntax import NAME, TAG, CallSyntax, Found, JsonCall, QuotedCall, TaggedCall
from holdfast.agent.calling import Tool
from holdfast.base.errors import ConfigError
from holdfast.model.text.chat_template import ChatTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NAME, _KEY = "holdfasttool", "holdfastkey"
_QUERIES, _RESULTS = ("firstholdfastquery", "secondholdfastquery"), ('first"holdfastresult', 'second"holdfastresult')
_ANSWER, _ABOUT = "holdfastanswer", "About holdfasttool."
"""Words that no template has. A quote tells whether a template writes results as JSON."""
_IDS = {"holdfast1": "([a-zA-Z0-9]{9})", f"functions.{_NAME}:0": r"(functions\.[\w.-]+:\d+)"}
"""Ids of a call, and patterns of what a model may write in their place: Mistral's templates want nine letters and
digits, Kimi-K2's the tool's name and a number."""
_PARAMETERS = {"type": "object", "properties": {_KEY: {"type": "string", "description": "Key."}}, "required": [_KEY]}
_SCHEMA = {"type": "function", "function": {"name": _NAME, "description": _ABOUT, "parameters": _PARAMETERS}}
_USER = {"role": "user", "content": "Who?"}
_THOUGHT = r"(?:<think>|<\|channel>thought)\s*"
_EMPTY_THOUGHT = rf"(?:{_THOUGHT})?\s*(?:</think>|<channel\|>)\s*"


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a chat template writes a call and its result. Of Qwen2.5's, for example, `before` a result is
    `<|im_end|>\\n<|im_start|>user\\n<tool_response>\\n`, and `after` it
    `\\n</tool_response><|im_end|>\\n<|im_start|>assistant\\n`.
    """

    syntax: CallSyntax
    own_id: str
    """An id that no model writes; it also stands where a call has none."""
    call_id: str
    """Pattern of the id that a call has, as its group. It matches nothing where calls have none."""
    before: str
    """From the end of the model's message to the result. Here and in `after`, `own_id` stands for the call's id, and
    `_NAME` for the tool's name."""
    after: str
    """From the result to the beginning of the model's next message. It may begin that message, for example with the
    empty thought of Qwen3 without thinking. The template leaves that out of earlier messages; a rollout keeps it."""
    opens_thought: bool
    """Whether `after` ends inside a thought, which the model goes on with."""
    quoted: bool
    """Whether a result is inside a JSON string, as in Llama 3's templates."""
    answer_end: str
    """What the template writes after an answer. GLM's messages have no end of their own: the role that follows ends
    them, another one after a call than after an answer."""
    write: Callable[[str, dict[str, Any]], str]
    """A call as the template writes it, of a name and arguments."""
    header: str
    """What begins each message of a turn that may have several, as gpt-oss's does: the last one counts. Mostly
    empty."""
    answer_opening: str
    """What begins a message that answers, after the header."""
    around_thought: tuple[str, str]
    """What is before and after a thought, where that is a message of its own: the next one's header included."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Texts that the model writes and that may be tokens of their own."""
        parts = (*self.around_thought, self.answer_opening)
        return (*self.syntax.tags, *(tag for part in parts for tag in TAG.findall(part)))

    def around(self, message: str, tools: Mapping[str, Tool]) -> tuple[str, str]:
        """`before` and `after` of the result of a message, with the id and the name of its call. Without a call that
        can be read, they are those of the first tool."""
        own = [self.own_id, *re.findall(self.call_id, message)][-1]
        call, name = self.syntax.find(message, tools), next(iter(tools))
        if isinstance(call, Found) and isinstance(call.name, str) and re.fullmatch(NAME, call.name):
            name = call.name
        before, after = (text.replace(self.own_id, own).replace(_NAME, name) for text in (self.before, self.after))
        return before, after


def read_format(tokenizer: PreTrainedTokenizerBase, template: ChatTemplate) -> CallFormat:
    """The format of a template. Raises `ConfigError` for one that it cannot be read from, in a sentence that says
    why."""
    first, second = (Rendering(tokenizer, template, call_id) for call_id in _IDS)
    try:
        return first.format()
    except ConfigError:
        with suppress(ConfigError):
            return second.format()
        raise


def as_json(text: str) -> str:
    """The text inside a JSON string, as `tojson` of chat templates writes it."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


class Rendering:
    """A template's own text of a few conversations, and what it shows: each property is one thing read from it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, call_id: str) -> None:
        # Formats are kept for as long as their tokenizer: one that kept it alive would never go.
        self._tokenizer: Any = proxy(tokenizer)
        self._template, self._id = template, call_id
        self._special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]

    def format(self) -> CallFormat:
        """The format. Raises `ConfigError`."""
        self._look()
        before = _between(self._text, self._query, self._result)
        if not before.startswith(self._rest_of_call):
            raise self._refused("writes an earlier call or result differently from the last one")
        before = before.removeprefix(self._rest_of_call)
        if not before.startswith(tuple(self._special)):
            raise self._refused(f"ends a message with {before[:20]!r}, not with a special token, so no turn would end")
        if _opens_thought(self._prompt) != _opens_thought(self._after):
            raise self._refused("begins a thought after a result and not at first, or the other way round")
        syntax, call_id = self._syntax
        if self._id in before + self._after and _IDS[self._id] not in call_id:
            raise self._refused("repeats in a result an id that its call does not have")
        return CallFormat(
            syntax=syntax,
            own_id=self._id,
            call_id=call_id,
            before=before,
            after=self._after,
            opens_thought=_opens_thought(self._after),
            quoted=self._quoted,
            answer_end=self._answer_end,
            write=self._write,
            header=self._prompt.removeprefix(self._asked) if self._answer_opening else "",
            answer_opening=self._answer_opening,
            around_thought=self._around_thought,
        )

    def _look(self) -> None:
        """Render the conversations."""
        if self._template.text(self._tokenizer, [_SCHEMA]) is None:
            raise ConfigError(
                f"protocol.preset = 'tools', but there is no chat template, which says how to call. {_INSTEAD}"
            )
        self._asked, self._prompt = self._render(answering=False), self._render()
        if _ABOUT not in self._prompt:
            raise self._refused("does not describe tools to the model")
        (query, next_query), (result, next_result) = _QUERIES, _RESULTS
        self._called = self._render(self._call(query), answering=False)
        self._answered = self._render(_said(_ANSWER), answering=False)
        turns = self._call(query), self._told(result), self._call(next_query), self._told(next_result)
        self._text = text = self._render(*turns)
        self._quoted = result not in text
        if self._quoted:
            result, next_result = as_json(result), as_json(next_result)
        marks = [query, result, next_query, next_result]
        if [text.count(mark) for mark in marks] != [1] * 4 or sorted(marks, key=text.index) != marks:
            raise self._refused("does not write each call and each result once")
        self._query, self._result, self._next_query, self._next_result = marks

    @cached_property
    def _message_end(self) -> str:
        """What ends a message with a call, as the last of a conversation. Nothing, in GLM's templates."""
        after_answer, after_query = self._answered.rpartition(_ANSWER)[2], self._called.rpartition(_QUERIES[0])[2]
        if after_query.endswith(after_answer):
            return after_answer
        return after_query[max((after_query.rfind(token) for token in self._special), default=0) :]

    @cached_property
    def _rest_of_call(self) -> str:
        """From the query to the end of the call."""
        return self._called.rpartition(_QUERIES[0])[2].removesuffix(self._message_end)

    @cached_property
    def _answer_end(self) -> str:
        """From an answer on: the end of its message, or the role that follows."""
        ended = self._answered.rpartition(_ANSWER)[2]
        return ended if ended.strip() else self._render(_said(_ANSWER), _USER, answering=False).rpartition(_ANSWER)[2]

    @cached_property
    def _answer_opening(self) -> str:
        """What a message that answers begins with, where that is a special token."""
        head = (_body(self._answered, self._prompt) or "").partition(_ANSWER)[0]
        return head if any(token in head for token in self._special) else ""

    @cached_property
    def _around_thought(self) -> tuple[str, str]:
        """See `CallFormat.around_thought`: what is said before a call is a thought there."""
        if not self._answer_opening:
            return "", ""
        text = self._render({**self._call(_QUERIES[0]), "content": _ANSWER}, answering=False)
        before, _, after = (
            _body(text.removeprefix(self._asked), self._prompt.removeprefix(self._asked)) or ""
        ).partition(_ANSWER)
        return before, after.partition(self._opened)[0]

    @cached_property
    def _after(self) -> str:
        """From a result to the model's next message."""
        after = self._text.rpartition(self._next_result)[2]
        between = _between(self._text, self._result, self._next_query)
        if _body(between, after) != self._opened:
            raise self._refused("writes an earlier call or result differently from the last one")
        return after

    @cached_property
    def _opened(self) -> str:
        """From the beginning of a message to the query of its call."""
        written = self._text[len(self._asked) : self._text.index(self._query)]
        body = _body(written, self._prompt.removeprefix(self._asked))
        if body is None:
            raise self._refused("begins the model's earlier messages differently from its next one")
        return body

    @cached_property
    def _syntax(self) -> tuple[CallSyntax, str]:
        """The syntax of calls, and `CallFormat.call_id`."""
        return self._json_call() or (self._quoted_call() or self._tagged_call(), "(?!)")

    def _json_call(self) -> tuple[CallSyntax, str] | None:
        opened = self._opened
        brace = max(opened.find("{"), 0)
        opening, separator, name = opened[:brace], "", "name"
        try:
            call, end = json.JSONDecoder().raw_decode(opened + self._query + self._rest_of_call, brace)
            if call == {_KEY: self._query}:
                opening, _, separator = opening.rpartition(_NAME)
                call = {"name": _NAME if separator else None, "arguments": call}
            name = next(key for key, value in call.items() if value == _NAME)
            arguments = next(key for key, value in call.items() if value == {_KEY: self._query})
        except (ValueError, AttributeError, StopIteration):
            return None
        if separator and not opening.strip():
            raise self._refused("writes nothing before the name of a tool that is called")
        pattern = _IDS[self._id]
        key = next((key for key, value in call.items() if value == self._id), None)
        with_id = re.escape(separator).replace(self._id, pattern)
        call_id = f'{json.dumps(key)}\\s*:\\s*"{pattern}"' if key else with_id if pattern in with_id else "(?!)"
        if self._answer_opening:  # gpt-oss writes the parts of a header in another order than its template
            with_id = rf"[^{{]*?{re.escape(separator[separator.rindex('<') :])}"
        elif (opening + _NAME + separator[:2]).endswith(self._id):  # Kimi-K2's id has the name in it
            with_id, call_id = rf":\d+{re.escape(separator[2:])}", pattern
        syntax = JsonCall(
            opening=opening.strip(),
            closing=(opened + self._query + self._rest_of_call)[end:].strip(),
            separator=separator,
            with_id=with_id,
            name=name,
            arguments=arguments,
        )
        return syntax, call_id

    def _quoted_call(self) -> CallSyntax | None:
        before_name, _, rest = self._opened.partition(_NAME)
        opening, tag, before_name = before_name.partition(">")
        quote = rest.removeprefix(f"{{{_KEY}:")
        if not tag or quote in ("", rest) or not self._rest_of_call.startswith(f"{quote}}}"):
            return None
        closing = self._rest_of_call.removeprefix(f"{quote}}}").strip()
        return QuotedCall(opening=opening.strip() + tag, closing=closing, before_name=before_name, quote=quote)

    def _tagged_call(self) -> CallSyntax:
        """The tags around the parts of a call: a value ends with the first tag after it, a key begins with the last
        one before it."""
        before_name, named, rest = self._opened.lstrip().partition(_NAME)
        after_name, has_key, before_value = rest.partition(_KEY)
        opening, tag, inside = before_name.partition(">")
        value_end, closed, after = self._rest_of_call.partition(">")
        if not (named and has_key and tag and closed and "<" in after_name):
            raise self._refused("does not write a call in JSON with a name and arguments, or with a tag for each")
        with_number = self._write(_NAME, {_KEY: 1})
        key_start = after_name.rindex("<")
        after_all, bracket, last = after.strip().rpartition("<")
        return TaggedCall(
            opening=opening + tag,
            closing=bracket + last,
            before_name=inside,
            after_name=after_name[:key_start],
            before_key=after_name[key_start:],
            before_text=before_value,
            before_json=_between(with_number, _KEY, "1" + value_end + closed),
            after_value=value_end + closed,
            after_all=after_all,
        )

    def _write(self, name: str, arguments: dict[str, Any]) -> str:
        text = self._render(self._call(arguments, name), answering=False).removeprefix(self._asked)
        body = _body(text, self._prompt.removeprefix(self._asked))
        assert body is not None, "the first call of this template began as its messages do"
        return body.removesuffix(self._message_end)

    def _call(self, arguments: str | dict[str, Any], name: str = _NAME) -> dict[str, Any]:
        function = {"name": name, "arguments": arguments if isinstance(arguments, dict) else {_KEY: arguments}}
        calls = [{"type": "function", "id": self._id.replace(_NAME, name), "function": function}]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def _told(self, content: str) -> dict[str, Any]:
        return {"role": "tool", "name": _NAME, "tool_call_id": self._id, "content": content}

    def _render(self, *messages: dict[str, Any], answering: bool = True) -> str:
        try:
            return self._template.render(self._tokenizer, [_USER, *messages], [_SCHEMA], answering=answering)
        except ConfigError as error:
            why = str(error.__cause__).strip()[:120]
            raise self._refused(f"cannot render a conversation with tool calls ({why})") from error

    def _refused(self, why: str) -> ConfigError:
        text = self._template.text(self._tokenizer, [_SCHEMA]) or ""
        family, instead = next((known for mark, known in _FAMILIES.items() if mark in text), ("", ""))
        whose = f" ({family}'s)" if family else ""
        return ConfigError(f"protocol.preset = 'tools': {self._template}{whose} {why}. {instead}{_INSTEAD}")


_FAMILIES = {
    "<start_of_turn>": ("Gemma 3", "Gemma 4's template works. "),
    "<|turn>": ("Gemma 4", "It works without enable_thinking in model.chat_template_kwargs. "),
    "<｜tool▁calls▁begin｜>": ("DeepSeek-V3", "The templates of DeepSeek-V3.2 and V4 work. "),
    "<|tool_call_start|>": ("LFM2", ""),
    "<|start_header_id|>": ("Llama 3", "The templates of Llama 3.1 to 3.3 work. "),
    "<|header_start|>": ("Llama 4", ""),
    "SmolLM": ("SmolLM", ""),
    "<|START_OF_TURN_TOKEN|>": ("Cohere", ""),
}
"""Marks of templates that may be refused, whose they are, and what of the same family works."""
_INSTEAD = (
    "Use a model whose template has tools (such as Qwen3, Llama 3.1 or Ministral 3), name a Jinja file in "
    "model.chat_template (examples/chatml_tools.jinja for ChatML), or set protocol.preset = 'clean'"
)


def _body(written: str, head: str) -> str | None:
    """What a message says after the head with which the template lets it begin, without an empty thought that only one
    of them has; None if it begins otherwise."""
    if not written.startswith(head):
        head = re.sub(rf"\s*(?:{_EMPTY_THOUGHT}|{_THOUGHT})\Z", "", head)
    return re.sub(rf"\A\s*{_EMPTY_THOUGHT}", "", written.removeprefix(head)) if written.startswith(head) else None


def _opens_thought(text: str) -> bool:
    """Whether a text ends inside a thought."""
    return re.search(rf"{_THOUGHT}\Z", text) is not None


def _between(text: str, left: str, right: str) -> str:
    start = text.index(left) + len(left)
    return text[start : text.index(right, start)]


def _said(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}
