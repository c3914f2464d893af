"""How a message calls a tool: reading the syntaxes in which chat templates write calls.

A message has one call, and nothing after it. All syntaxes are read as loosely in white space as models write them, and
as strictly in all else: a call that is half right is `Invalid`, never guessed at.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.agent.calling import Tool
from holdfast.agent.schema import from_text
from holdfast.agent.trajectory import Invalid

NAME = r"([\w.-]+)"
"""A tool's name."""
TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
"""What may be a token of its own."""


@dataclass(frozen=True, slots=True)
class Found:
    """A call in a message."""

    start: int
    end: int
    name: Any
    """Of the tool, as the model wrote it."""
    arguments: Any
    """Decoded; perhaps not what the tool takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax(ABC):
    """A way to write a call."""

    opening: str
    """What a call begins with, without white space. Empty in Llama 3's templates, where a brace begins it."""
    closing: str
    """What it ends with; may be empty."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Texts of the syntax that may be tokens of their own."""
        return tuple(filter(None, (self.opening, self.closing)))

    def find(self, message: str, tools: Mapping[str, Tool]) -> Found | Invalid | None:
        """The call in a message, `Invalid` if it cannot be read, None if there is none."""
        start = message.find(self.opening or "{")
        if start < 0:
            return None
        if self.opening and message.count(self.opening) > 1:
            return Invalid("more than one call")
        found = self._read(message, start, tools)
        if isinstance(found, Found) and message[found.end :].strip():
            return Invalid("text after the call")
        return found

    @abstractmethod
    def _read(self, message: str, start: int, tools: Mapping[str, Tool]) -> Found | Invalid | None:
        """`find`, of a call that begins at `start`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCall(CallSyntax):
    """A JSON object of name and arguments, as Qwen2.5's `<tool_call>{"name": …, "arguments": {…}}</tool_call>`; or the
    name before the JSON of the arguments, as Mistral's `[TOOL_CALLS]search[ARGS]{…}`."""

    separator: str
    """Between name and JSON; empty where one object has both."""
    with_id: str
    """A pattern of the separator, with any id that a call may have there."""
    name: str
    """Key of the tool's name."""
    arguments: str
    """Key of the arguments."""

    @property
    def tags(self) -> tuple[str, ...]:
        """See `CallSyntax.tags`."""
        return tuple(filter(None, (self.opening, *TAG.findall(self.separator), self.closing)))

    def _read(self, message: str, start: int, tools: Mapping[str, Tool]) -> Found | Invalid | None:
        """Without an opening, a message that begins with a brace is a call, and so is JSON with the key of a name."""
        place, named = after_blanks(message, start + len(self.opening)), ""
        if self.separator:
            head = re.compile(NAME + self.with_id).match(message, place)
            if head is None:
                return Invalid("the call names no tool")
            place, named = head.end(), head[1]
        meant = bool(self.opening) or not message[:start].strip()
        try:
            call, end = json.JSONDecoder().raw_decode(message, place)
        except (ValueError, RecursionError):
            return Invalid("the call is not JSON") if meant else None
        if not meant and not (isinstance(call, dict) and self.name in call):
            return None
        closed = after_blanks(message, end)
        if not message.startswith(self.closing, closed):
            return Invalid("the call is not closed")
        end = closed + len(self.closing) if self.closing else end
        if named:
            return Found(start, end, named, call)
        if not isinstance(call, dict):
            return Invalid("the call names no tool")
        return Found(start, end, call.get(self.name), call.get(self.arguments))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCall(CallSyntax):
    """A tag for each parameter, as Qwen3.5's, with the value between tags as it is:

        <tool_call>
        <function=search>
        <parameter=query>
        the lake
        </parameter>
        </function>
        </tool_call>

    Of what kind a value is, the tool's schema says. Nothing escapes a closing tag in a value, so a value ends where
    another parameter or the end of the call follows.
    """

    before_name: str
    after_name: str
    before_key: str
    before_text: str
    """Between the key and a value that is a text, and `before_json` one that is JSON. Mostly they are equal."""
    before_json: str
    after_value: str
    after_all: str
    """Between the last value and the closing."""

    @property
    def tags(self) -> tuple[str, ...]:
        """See `CallSyntax.tags`."""
        parts = (self.opening, self.before_name, self.after_name, self.before_key, self.before_text, self.before_json)
        tags = (tag for part in (*parts, self.after_value, self.after_all, self.closing) for tag in part.split("\n"))
        return tuple(dict.fromkeys(tag for tag in tags if tag.startswith("<")))

    def _read(self, message: str, start: int, tools: Mapping[str, Tool]) -> Found | Invalid | None:
        place = start + len(self.opening)
        head = re.compile(rf"\s*{_loose(self.before_name)}{NAME}{_loose(self.after_name)}").match(message, place)
        if head is None:
            return Invalid("the call names no tool")
        tail = rf"\s*{_loose(self.after_all)}\s*{re.escape(self.closing)}"
        key = rf"\s*{_loose(self.before_key)}"
        opened = rf"(?:({_framed(self.before_text)})|{_framed(self.before_json)})"
        parameter = re.compile(
            rf"{key}([^\n]+?){opened}(.*?){_framed(self.after_value, ends=False)}(?={key}|{tail})", re.S
        )
        takes = tools[head[1]].takes if head[1] in tools else {}
        place, arguments = head.end(), dict[str, Any]()
        while found := parameter.match(message, place):
            name, as_text, text = found.groups()
            schema = takes.get("properties", {}).get(name, {})
            if self.before_text != self.before_json:  # the call itself says which are texts
                schema = {"type": "string"} if as_text else {}
            arguments[name], place = from_text(text, schema, takes), found.end()
        closed = re.compile(tail).match(message, place)
        if closed is None:
            more = self.before_name and self.before_name.strip() in message[place:]
            return Invalid("more than one call" if more else "the call is not closed")
        return Found(start, closed.end(), head[1], arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedCall(CallSyntax):
    """Gemma 4's `<|tool_call>call:search{query:<|"|>the lake<|"|>}<tool_call|>`: JSON without quotes around keys, and
    with a token for those around texts, in which nothing is escaped."""

    before_name: str
    quote: str

    @property
    def tags(self) -> tuple[str, ...]:
        """See `CallSyntax.tags`."""
        return (self.opening, self.quote, self.closing)

    def _read(self, message: str, start: int, tools: Mapping[str, Tool]) -> Found | Invalid | None:
        place = start + len(self.opening)
        head = re.compile(rf"\s*{re.escape(self.before_name)}{NAME}(?=\{{)").match(message, place)
        if head is None:
            return Invalid("the call names no tool")
        quote = re.escape(self.quote)
        quoted = rf"{quote}(?:(?!{quote}).)*{quote}"
        body = re.compile(rf"((?:{quoted}|(?!{quote}).)*?){re.escape(self.closing)}", re.S).match(message, head.end())
        if body is None:
            return Invalid("the call is not closed")
        plain = [re.sub(r"([{,]\s*)([\w.-]+)(?=\s*:)", r'\1"\2"', part) for part in body[1].split(self.quote)]
        plain[1::2] = [json.dumps(text) for text in body[1].split(self.quote)[1::2]]
        try:
            return Found(start, body.end(), head[1], json.loads("".join(plain)))
        except (ValueError, RecursionError):
            return Invalid("the arguments of the call cannot be read")


def _loose(text: str) -> str:
    """A pattern of a text, with any white space where it has some."""
    return r"\s*".join(map(re.escape, re.split(r"\s+", text)))


def _framed(text: str, *, ends: bool = True) -> str:
    """`_loose`, of what is beside a value: one newline there is not of the value."""
    if ends:
        return _loose(text.removesuffix("\n")) + r"\n?" * text.endswith("\n")
    return r"\n?" * text.startswith("\n") + _loose(text.removeprefix("\n"))


def after_blanks(text: str, start: int) -> int:
    """Where a text goes on after white space."""
    return len(text) - len(text[start:].lstrip())
