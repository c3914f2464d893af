"""Native tool calls: the search agent in the format of the model's own chat template.

A rollout appends: the ids that the model sampled, then those that the template writes from the end of the model's
message to the beginning of its next (`agent/template_format.py`). Nothing is rendered or encoded again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.agent.call_syntax import Found, after_blanks
from holdfast.agent.calling import SEARCH, Tool, problem_of, tools_by_name
from holdfast.agent.observations import Observation, fit, format_hits
from holdfast.agent.protocol import (
    CLEAN,
    R1,
    SAPO,
    SEARCH_R1,
    CallTurn,
    ControlTags,
    ParsedTurn,
    SearchProtocol,
    parse_turn,
)
from holdfast.agent.template_format import CallFormat, as_json, read_format
from holdfast.agent.trajectory import Action, Answer, Invalid, Search, ToolResult
from holdfast.base.errors import ConfigError
from holdfast.base.thoughts import after_thought
from holdfast.model.text.tokens import decode, encode, foreign
from holdfast.retrieval.types import Hit


def final_answer(text: str) -> ParsedTurn:
    """A message without a call: the answer is what follows its thought."""
    start = after_thought(text)
    return (Invalid("the message has no end"), None) if start is None else _answer_from(text, start)


def _answer_from(text: str, start: int) -> tuple[Answer | Invalid, tuple[int, int] | None]:
    """The answer that begins at a place of a text."""
    answer = text[start:].strip()
    start = after_blanks(text, start)
    return (Answer(answer), (start, start + len(answer))) if answer else (Invalid("empty answer"), None)


def _start_of_reply(text: str, form: CallFormat) -> int | None:
    """Where the call or the answer of a turn may begin: after the thought, or in the last of its messages."""
    if form.header:
        return text.rfind(form.header) + len(form.header) if form.header in text else 0
    return after_thought(text, thinking=form.opens_thought)


def read_turn(
    text: str, form: CallFormat, tools: Mapping[str, Tool], *, finished: bool
) -> tuple[Found | Answer | Invalid, tuple[int, int] | None]:
    """The call or the answer of a turn, and its characters. Neither a thought, which `</think>` ends, nor a message
    before the last is read. `finished`: the model ended the turn itself."""
    start = _start_of_reply(text, form)
    if not finished or start is None:
        inside = finished and form.syntax.opening and form.syntax.opening in text
        return Invalid("the call is inside a thought" if inside else "the message has no end"), None
    if form.answer_opening and text.startswith(form.answer_opening, start):
        return _answer_from(text, start + len(form.answer_opening))
    found = form.syntax.find(text[start:], tools)
    if isinstance(found, Found):
        return found, (start + found.start, start + found.end)
    if found is None and form.answer_opening:
        return Invalid("neither a call nor an answer"), None
    return _answer_from(text, start) if found is None else (found, None)


def turn_ends(form: CallFormat, tokenizer: Any) -> tuple[int, int]:
    """Ids of the tokens that end a message with a call, and an answer."""
    return encode(tokenizer, form.before)[0], encode(tokenizer, form.answer_end)[0]


def result_ids(
    content: str, form: CallFormat, tools: Mapping[str, Tool], tokenizer: Any, turn: Sequence[int]
) -> list[int]:
    """Ids from the end of the turn to the beginning of the next, around a result."""
    content = as_json(content) if form.quoted else content
    ended = turn and turn[-1] in turn_ends(form, tokenizer)
    text = decode(tokenizer, turn[:-1] if ended else turn)
    before, after = form.around(text[_start_of_reply(text, form) or 0 :], tools)
    ids = encode(tokenizer, before + foreign(content) + after)
    return ids[1:] if turn and turn[-1] == ids[0] else ids  # the model has ended its message itself


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProtocol(SearchProtocol):
    """Tool calls as the chat template writes them. The answer is the first message without a call, without its thought.

    Results, and the note after a call that cannot be read, are messages of the role `tool`. The inherited tags are
    those in which demonstrations are written; they are translated.
    """

    tools: tuple[str, ...] = ("search",)
    """See `agent/calling.py`: `search`, `read`, import paths of functions, and MCP servers."""
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
        """See `tools_by_name`."""
        return tools_by_name(self.tools)

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
            formats[key] = read_format(tokenizer, self.template)
        return formats[key]

    def turn_ends(self, tokenizer: Any) -> tuple[int, int]:
        """See `turn_ends`."""
        return turn_ends(self.format(tokenizer), tokenizer)

    def check_template(self, tokenizer: Any, ends: Collection[int] | None = None) -> None:
        """See `SearchProtocol.check_template`."""
        for end in self.turn_ends(tokenizer):
            if ends is not None and end not in ends:
                raise ConfigError(
                    f"protocol.preset = {self.name!r}: the chat template ends a message with "
                    f"{decode(tokenizer, [end])!r}, which does not end the model's text, so that no turn would end. "
                    "Set eos_token_id in the model's generation_config.json to it"
                )

    def control_tags(self, tokenizer: Any) -> ControlTags:
        """See `SearchProtocol.control_tags`: those of the template. What the environment writes begins with the end of
        a message, which the model may write."""
        form = self.format(tokenizer)
        return ControlTags(
            call=tuple(filter(None, (form.syntax.opening, form.syntax.closing))),
            answer=(),
            thought=self.thought_tags,
            foreign=(),
            ends_outside=True,
            begins_thinking=form.opens_thought,
        )

    def parse(self, text: str, tokenizer: Any, *, finished: bool) -> ParsedTurn:
        """See `SearchProtocol.parse` and `read_turn`."""
        read, span = read_turn(text, self.format(tokenizer), self.by_name, finished=finished)
        if not isinstance(read, Found):
            return read, span
        action = self._action(read)
        return action, None if isinstance(action, Invalid) else span

    def _action(self, call: Found) -> Action:
        tool = self.by_name.get(call.name) if isinstance(call.name, str) else None
        if tool is None:
            named = isinstance(call.name, str)
            return Invalid(f"there is no tool {call.name!r}" if named else "the call names no tool")
        return tool.called(call.arguments)

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
        return result_ids(content, self.format(tokenizer), self.by_name, tokenizer, turn)

    def said(self, text: str, tokenizer: Any) -> list[int]:
        """See `SearchProtocol.said`."""
        return encode(tokenizer, foreign(text, (*self.tags, *self.format(tokenizer).tags)))

    def encode_turn(self, turn: str | CallTurn, tokenizer: Any) -> list[int]:
        """See `SearchProtocol.encode_turn`: the tags become a call, or the message that answers."""
        form, (opened, closed) = self.format(tokenizer), self.thought_tags
        if isinstance(turn, CallTurn):
            action: Action | None = None
            thought = f"{opened} {turn.thought} {closed}" if turn.thought else ""
            text = self._message(thought, form.write(turn.tool, dict(turn.arguments)), form)
        else:
            action, span = parse_turn(turn, self)
            text = turn
            if span is not None:
                assert isinstance(action, Search | Answer)
                if isinstance(action, Search):
                    said = self.write_search(action.query, tokenizer)
                else:
                    said = form.answer_opening + action.text
                text = self._message(turn[: span[0]].strip(), said, form)
        if form.opens_thought:
            inside = text.removeprefix(opened)
            text = f"{closed}\n{text}" if inside == text else inside
        return [*self.said(text, tokenizer), self.turn_ends(tokenizer)[isinstance(action, Answer)]]

    def _message(self, thought: str, said: str, form: CallFormat) -> str:
        """A thought, perhaps empty, and a call or an answer."""
        opened, closed = self.thought_tags
        if thought and form.header:
            before, after = form.around_thought
            return f"{before}{thought.removeprefix(opened).removesuffix(closed).strip()}{after}{said}"
        return f"{thought}\n{said}" if thought else said

    def encode_observation(self, text: str, tokenizer: Any, *, turn: Sequence[int] = ()) -> list[int]:
        """See `SearchProtocol.encode_observation`: passages without their tags, or the note."""
        opened, closed = self.information_tags
        content = text.strip().removeprefix(opened).removesuffix(closed).strip()
        return self._frame(content, tokenizer, turn) if text else []

    def write_search(self, query: str, tokenizer: Any) -> str:
        """A call of `search`, as the template writes it."""
        (parameter,) = SEARCH.parameters
        return self.format(tokenizer).write(SEARCH.name, {parameter: query})


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

_FORMATS: WeakKeyDictionary[Any, dict[str, CallFormat]] = WeakKeyDictionary()
