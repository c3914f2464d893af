"""Native tool calls: the search agent in the format of the model's own chat template.

How a template writes a call and a result is found out by rendering a conversation that has both, so there is no table
of model families. A rollout appends: the ids that the model sampled, then those that the template writes from the end
of the model's message to the beginning of its next. Nothing is rendered or encoded again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from holdfast.agent.calling import SEARCH, Tool, problem_of, tool_named
from holdfast.agent.observations import Observation, fit, format_hits
from holdfast.agent.protocol import (
    CLEAN,
    R1,
    SAPO,
    SEARCH_R1,
    ControlTags,
    ParsedTurn,
    SearchProtocol,
    parse_turn,
)
from holdfast.agent.trajectory import Action, Answer, Invalid, Search, ToolResult
from holdfast.base.errors import ConfigError
from holdfast.model.chat_template import ChatTemplate
from holdfast.model.tokens import decode, encode, foreign
from holdfast.retrieval.types import Hit

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def final_answer(text: str, *, thinking: bool = False) -> ParsedTurn:
    """A message without a call: the answer is what follows its thought, which `</think>` or `[/THINK]` ends.

    `thinking`: whether the message begins inside a thought.
    """
    start = _end_of_thought(text, thinking)
    if start is None:
        return Invalid("the message has no end"), None
    answer = text[start:].strip()
    start = _after_blanks(text, start)
    return (Answer(answer), (start, start + len(answer))) if answer else (Invalid("empty answer"), None)


def _end_of_thought(text: str, thinking: bool) -> int | None:
    """Where a message goes on after its thought; None if the thought has no end."""
    ends = [found.end() for found in _THOUGHT.finditer(text) if found[1]]
    if ends:
        return ends[-1]
    return None if thinking or _THOUGHT.search(text) else 0


_THOUGHT = re.compile(r"[<\[](/?)(?:think>|THINK\])")
"""Where a thought begins or ends; Mistral's models write the second."""


def _after_blanks(text: str, start: int) -> int:
    """Where a text goes on after white space."""
    return len(text) - len(text[start:].lstrip())


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a chat template writes a call and its result. Qwen2.5's, for example:

    `opening` `<tool_call>`, `closing` `</tool_call>`, `name` `name`, `arguments` `arguments`; `before` a result
    `<|im_end|>\\n<|im_start|>user\\n<tool_response>\\n`, `after` it
    `\\n</tool_response><|im_end|>\\n<|im_start|>assistant\\n`.
    """

    opening: str
    """What is before the JSON of a call, or its name, without white space. Empty in Llama 3's templates."""
    separator: str
    """Between the name and the JSON of the arguments, as Mistral's `[ARGS]`. Empty where one JSON object has both."""
    closing: str
    name: str
    """Key of the tool's name."""
    arguments: str
    """Key of the arguments."""
    call_id: str
    """Pattern of the id that a call has, as its group. It matches nothing where calls have none."""
    before: str
    """From the end of the model's message to the result. Here and in `after`, `_CALL_ID` stands for the call's id."""
    after: str
    """From the result to the beginning of the model's next message. It may begin that message, for example with the
    empty thought of Qwen3 without thinking. The template leaves that out of earlier messages; a rollout keeps it."""
    opens_thought: bool
    """Whether `after` ends inside a thought, which the model goes on with."""
    quoted: bool
    """Whether a result is inside a JSON string, as in Llama 3's templates."""
    written: tuple[str, str]
    """A call of `search` as the template writes it, around the query."""

    def find(self, message: str) -> tuple[int, int, Any] | Invalid | None:
        """(start, end, decoded JSON) of the call in a message, `Invalid` if it cannot be read, None if there is none.

        Without an opening, a message that begins with a brace is a call, and so is JSON with the key of a name.
        """
        start = message.find(self.opening or "{")
        if start < 0:
            return None
        if self.opening and message.count(self.opening) > 1:
            return Invalid("more than one call")
        json_start, named = _after_blanks(message, start + len(self.opening)), ""
        if self.separator:
            found = re.compile(rf"([\w.-]+){_with_id(self.separator)}").match(message, json_start)
            if found is None:
                return Invalid("the call names no tool")
            json_start, named = found.end(), found[1]
        meant = bool(self.opening) or not message[:start].strip()
        try:
            call, end = json.JSONDecoder().raw_decode(message, json_start)
        except (ValueError, RecursionError):
            return Invalid("the call is not JSON") if meant else None
        if not meant and not (isinstance(call, dict) and self.name in call):
            return None
        end = _after_blanks(message, end)
        if not message.startswith(self.closing, end):
            return Invalid("the call is not closed")
        end += len(self.closing)
        if message[end:].strip():
            return Invalid("text after the call")
        call = {self.name: named, self.arguments: call} if named else call
        return start, start + len(message[start:end].rstrip()), call

    def around(self, message: str) -> tuple[str, str]:
        """`before` and `after` of the result of a message, with the id that it gave its call."""
        own = [_CALL_ID, *re.findall(self.call_id, message)][-1]
        return self.before.replace(_CALL_ID, own), self.after.replace(_CALL_ID, own)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProtocol(SearchProtocol):
    """Tool calls as the chat template writes them. The answer is the first message without a call, without its thought.

    Results, and the note after a call that cannot be read, are messages of the role `tool`. The inherited tags are
    those in which demonstrations are written; they are translated.
    """

    tools: tuple[str, ...] = ("search",)
    """See `agent/calling.py`: `search`, `read`, and import paths of functions."""
    tool_timeout: float = 30.0
    """Seconds that a call of a function may take."""

    def __post_init__(self) -> None:
        SearchProtocol.__post_init__(self)
        if problem := problem_of(self.tools):
            raise ConfigError(f"protocol {self.name!r}: {problem}")

    @property
    def stop(self) -> tuple[str, ...]:
        """Nothing: a turn ends with the token that ends a message of the template."""
        return ()

    @property
    def by_name(self) -> dict[str, Tool]:
        """The tools by the names that the model calls. Raises `ConfigError` as `tool_named` does."""
        return {tool.name: tool for tool in map(tool_named, self.tools)}

    @property
    def searches(self) -> bool:
        """See `SearchProtocol.searches`."""
        return "search" in self.tools

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """See `Tool.schema`."""
        return [tool.schema for tool in self.by_name.values()]

    def format(self, tokenizer: Any) -> CallFormat:
        """How the tokenizer's template writes calls. Raises `ConfigError` for a template that this cannot be read from,
        in a sentence that says why."""
        formats = _FORMATS.setdefault(tokenizer, {})
        key = repr((self.template, getattr(tokenizer, "chat_template", None)))
        if key not in formats:
            formats[key] = _read_format(tokenizer, self.template)
        return formats[key]

    def turn_end(self, tokenizer: Any) -> int:
        """Id of the token that ends a message of the template."""
        return encode(tokenizer, self.format(tokenizer).before)[0]

    def check_template(self, tokenizer: Any, ends: Collection[int] | None = None) -> None:
        """See `SearchProtocol.check_template`."""
        end = self.turn_end(tokenizer)
        if ends is not None and end not in ends:
            raise ConfigError(
                f"protocol.preset = {self.name!r}: the chat template ends a message with "
                f"{decode(tokenizer, [end])!r}, which does not end the model's text, so that no turn would end. Set "
                "eos_token_id in the model's generation_config.json to it"
            )

    def control_tags(self, tokenizer: Any) -> ControlTags:
        """See `SearchProtocol.control_tags`: those of the template. What the environment writes begins with the end of
        a message, which the model may write."""
        form = self.format(tokenizer)
        return ControlTags(
            call=tuple(tag for tag in (form.opening, *form.separator.split(_CALL_ID), form.closing) if tag),
            answer=(),
            thought=self.thought_tags,
            foreign=(),
            ends_outside=True,
            begins_thinking=form.opens_thought,
        )

    def parse(self, text: str, tokenizer: Any, *, finished: bool) -> ParsedTurn:
        """See `SearchProtocol.parse`. A thought, which `</think>` ends, is not read."""
        form = self.format(tokenizer)
        start = _end_of_thought(text, form.opens_thought)
        if not finished or start is None:
            return Invalid("the message has no end"), None
        found = form.find(text[start:])
        if isinstance(found, Invalid):
            return found, None
        if found is None:
            return final_answer(text, thinking=form.opens_thought)
        first, last, call = found
        action = self._action(call, form)
        return action, None if isinstance(action, Invalid) else (start + first, start + last)

    def _action(self, call: Any, form: CallFormat) -> Action:
        name = call.get(form.name) if isinstance(call, dict) else None
        tool = self.by_name.get(name) if isinstance(name, str) else None
        if tool is None:
            return Invalid(f"there is no tool {name!r}" if isinstance(name, str) else "the call names no tool")
        return tool.called(call.get(form.arguments))

    def observe(self, hits: Sequence[Hit] | None, tokenizer: Any, *, turn: Sequence[int] = ()) -> Observation:
        """See `SearchProtocol.observe`; at most `max_observation_tokens` ids, those of the template's frame included.

        The text of the observation is the content of the message. The ids are those of the template's own text, encoded
        as a whole, so that a token may reach over the end of a passage. Passages that spell a special token are encoded
        alone, as plain characters.
        """
        if hits is None:
            passages = [self.invalid_note]
        else:
            with_ids = "read" in self.tools
            passages = format_hits(hits, title_quotes=self.title_quotes, with_ids=with_ids) or [self.nothing_found]
        return self._observation(passages, tokenizer, turn)

    def observe_result(self, result: ToolResult, tokenizer: Any, *, turn: Sequence[int] = ()) -> Observation:
        """As `observe`, of a call of a function."""
        return self._observation([result.text], tokenizer, turn)

    def _observation(self, passages: Sequence[str], tokenizer: Any, turn: Sequence[int]) -> Observation:
        limit = self.max_observation_tokens
        content = "".join(passages).strip()
        ids = self._frame(content, tokenizer, turn)
        around, truncated = len(self._frame("", tokenizer, turn)), False
        room = limit - around
        while len(ids) > limit:
            if room < 1:
                raise ConfigError(
                    f"protocol.max_observation_tokens = {limit}, but the chat template alone takes {around} tokens "
                    "around a result; raise it (three passages of 100 words need about 500)"
                )
            content, truncated = decode(tokenizer, fit(passages, room, tokenizer)).strip(), True
            ids = self._frame(content, tokenizer, turn)
            room -= len(ids) - limit  # quoted as JSON, a text may have become longer
        return Observation(tuple(ids), content, truncated)

    def _frame(self, content: str, tokenizer: Any, turn: Sequence[int]) -> list[int]:
        """Ids from the end of the turn to the beginning of the next, around a result."""
        form = self.format(tokenizer)
        content = _as_json(content) if form.quoted else content
        before, after = form.around(decode(tokenizer, turn))
        ids = encode(tokenizer, before + foreign(content) + after)
        return ids[1:] if turn and turn[-1] == ids[0] else ids  # the model has ended its message itself

    def encode_turn(self, text: str, tokenizer: Any) -> list[int]:
        """See `SearchProtocol.encode_turn`: the tags become a call, or the message that answers."""
        action, span = parse_turn(text, self)
        if span is not None:
            assert isinstance(action, Search | Answer)
            said = self.write_search(action.query, tokenizer) if isinstance(action, Search) else action.text
            thought = text[: span[0]].strip()
            text = f"{thought}\n{said}" if thought else said
        if self.format(tokenizer).opens_thought:
            opened, closed = self.thought_tags
            inside = text.removeprefix(opened)
            text = f"{closed}\n{text}" if inside == text else inside
        return [*self.said(text, tokenizer), self.turn_end(tokenizer)]

    def encode_observation(self, text: str, tokenizer: Any, *, turn: Sequence[int] = ()) -> list[int]:
        """See `SearchProtocol.encode_observation`: passages without their tags, or the note."""
        opened, closed = self.information_tags
        content = text.strip().removeprefix(opened).removesuffix(closed).strip()
        return self._frame(content, tokenizer, turn) if text else []

    def write_search(self, query: str, tokenizer: Any) -> str:
        """A call of `search`, as the template writes it."""
        before, after = self.format(tokenizer).written
        return before + _as_json(query) + after


NATIVE = ToolProtocol(
    name="tools",
    prompt=(
        "Find the answer to a question. If you lack a fact, call a tool, one call per message, as often as you need. "
        "As soon as you know enough, reply with the answer alone, nothing explained.\nQuestion: {question}\n"
    ),
    invalid_note=(
        "That was neither a call that can be run nor an answer. Call one tool per message, with its name and argument "
        "as described, or reply with the answer alone."
    ),
)
"""Tool calls in the format of the model's chat template."""

PRESETS: dict[str, SearchProtocol] = {protocol.name: protocol for protocol in (CLEAN, SEARCH_R1, SAPO, R1, NATIVE)}


# ---- what a template writes

_FORMATS: WeakKeyDictionary[Any, dict[str, CallFormat]] = WeakKeyDictionary()
_QUERIES, _RESULTS = ("firstholdfastquery", "secondholdfastquery"), ('first"holdfastresult', 'second"holdfastresult')
"""Words that no template has. A quote tells whether a template writes results as JSON."""
_CALL_ID, _ID = "holdfast1", "([a-zA-Z0-9]{9})"
"""Mistral's templates want nine letters and digits."""


def _read_format(tokenizer: PreTrainedTokenizerBase, template: ChatTemplate) -> CallFormat:
    """The format, from three renderings: a question; two calls with their results; and a result after a message without
    a call."""
    schemas, (parameter,) = [SEARCH.schema], SEARCH.parameters
    instead = (
        "Take a model whose template has tools (such as Qwen3, Llama 3 or Ministral 3), name a Jinja file in "
        "model.chat_template (examples/chatml_tools.jinja for ChatML), or set protocol.preset = 'clean'"
    )

    def refused(why: str) -> ConfigError:
        return ConfigError(f"protocol.preset = 'tools': {template} {why}. {instead}")

    if template.text(tokenizer, schemas) is None:
        raise ConfigError(
            f"protocol.preset = 'tools', but there is no chat template, which says how to call. {instead}"
        )

    def render(*messages: dict[str, Any], answering: bool = True) -> str:
        conversation = [{"role": "user", "content": "Who?"}, *messages]
        try:
            return template.render(tokenizer, conversation, schemas, answering=answering)
        except ConfigError as error:
            why = str(error.__cause__).strip()[:120]
            raise refused(f"cannot render a conversation with tool calls ({why})") from error

    (query, next_query), (result, next_result) = _QUERIES, _RESULTS
    asked, prompt = render(answering=False), render()
    text = render(_call(query), _result(result), _call(next_query), _result(next_result))
    if SEARCH.description not in prompt:
        raise refused("does not tell the model of tools")
    quoted = result not in text
    if quoted:
        result, next_result = _as_json(result), _as_json(next_result)
    marks = [query, result, next_query, next_result]
    if [text.count(mark) for mark in marks] != [1] * 4 or sorted(marks, key=text.index) != marks:
        raise refused("does not write each call and each result once")
    written, between = text[len(asked) : text.index(query)], _between(text, query, result)
    brace = max(written.find("{"), 0)
    opening, separator = written[:brace], ""
    try:
        call, end = json.JSONDecoder().raw_decode(written + query + between, brace)
        if call == {parameter: query}:
            opening, name, separator = opening.rpartition(SEARCH.name)
            call = {"name": name * bool(separator), "arguments": call}
        name = next(key for key, value in call.items() if value == SEARCH.name)
        arguments = next(key for key, value in call.items() if value == {parameter: query})
    except (ValueError, AttributeError, StopIteration):
        raise refused("does not write a call as one JSON object with a name and arguments") from None
    plain = render({"role": "assistant", "content": query}, _result(_RESULTS[0]))
    # One of the two can be longer: a thought that one of them begins with, and the other leaves out.
    head, next_head = plain[len(asked) : plain.index(query)], prompt[len(asked) :]
    if not written.startswith(head) or not (next_head.startswith(head) or head.startswith(next_head)):
        raise refused("begins the model's earlier messages in another way than its next one")
    opened, begun = written.removeprefix(head), next_head.removeprefix(head)
    after = text.rpartition(next_result)[2]
    if after.removesuffix(next_head) + written != _between(text, result, next_query):
        raise refused("writes an earlier call or result in another way than the last")
    closed, before = (written + query + between)[end:], _between(plain, query, result)
    if not closed.endswith(before) or plain.rpartition(result)[2] != after:
        raise refused("writes a result after a call in another way than after a message")
    key = next((key for key, value in call.items() if value == _CALL_ID), None)
    call_id = f'{json.dumps(key)}\\s*:\\s*"{_ID}"' if key else _with_id(separator) if _CALL_ID in separator else "(?!)"
    if _CALL_ID in before + after and _ID not in call_id:
        raise refused("repeats in a result an id that its call does not have")
    tag = opening[len(head) :].strip()
    if separator and not tag:
        raise refused("writes nothing before the name of a tool that is called")
    if not before.startswith(tuple(str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)):
        raise refused(f"ends a message with {before[:20]!r}, not with a special token, so that no turn would end")
    return CallFormat(
        opening=tag,
        separator=separator,
        closing=closed.removesuffix(before).strip(),
        name=name,
        arguments=arguments,
        call_id=call_id,
        before=before,
        after=after,
        opens_thought=begun.rfind("<think>") > begun.rfind("</think>"),
        quoted=quoted,
        written=(opened, between.removesuffix(before)),
    )


def _with_id(text: str) -> str:
    """A pattern of the text, with any id for ours."""
    return re.escape(text).replace(_CALL_ID, _ID)


def _as_json(text: str) -> str:
    """The text inside a JSON string, as `tojson` of chat templates writes it."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _between(text: str, left: str, right: str) -> str:
    return text[text.index(left) + len(left) : text.index(right)]


def _call(query: str) -> dict[str, Any]:
    function = {"name": SEARCH.name, "arguments": dict.fromkeys(SEARCH.parameters, query)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": _CALL_ID, "function": function}],
    }


def _result(content: str) -> dict[str, Any]:
    return {"role": "tool", "name": SEARCH.name, "tool_call_id": _CALL_ID, "content": content}
