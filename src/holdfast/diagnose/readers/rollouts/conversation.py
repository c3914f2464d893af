"""Turns of a rollout, from a list of messages or from one text with the tags of a protocol."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.base.stored import bounded_json
from holdfast.base.thoughts import said, thought_field
from holdfast.diagnose.readers.rollouts import SampledTurn

MAX_CHARACTERS = 20_000
"""Characters of one text. A longer text is cut, and ends with the number of characters cut."""
_MAX_TURNS = 200

_TAGS = "information|tool_response|tool_result|observation|documents|search_results?|result|output"
_OBSERVATION = re.compile(rf"<({_TAGS})>.*?(?:</\1>|\Z)", re.DOTALL)
_ROLE_BEFORE = re.compile(r"(?:<\|im_end\|>)?\s*(?:<\|im_start\|>|\n|\A)(?:user|tool)\s*\Z")
_ROLE_LENGTH = 60
"""Characters in which the mark of a role ends."""
_ROLE_AFTER = re.compile(r"\A\s{0,4}(?:<\|im_end\|>)?\s{0,4}(?:<\|im_start\|>)?assistant\s{0,4}\n")
_USER = re.compile(
    r"(?:<\|im_start\|>|\A|\n)user\n(.*?)(?=<\|im_end\|>|\n(?:<\|im_start\|>)?assistant\b|\Z)", re.DOTALL
)
_QUESTION = re.compile(r"\b(?:Question|Problem|Query)\s*:\s*(?=\S)")

_QUERY = re.compile(r"<search>((?:(?!<search>).)*?)(?:</search>|\Z)", re.DOTALL)
CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_ANSWER = re.compile(r"<answer>([^<]*)</answer>")
_BOXED = re.compile(r"\\boxed\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")


def cut(text: str, most: int = MAX_CHARACTERS) -> str:
    """The text, or its beginning and how much was left out."""
    return text if len(text) <= most else f"{text[:most]} … {len(text) - most:,} more characters"


def conversation_of(prompt: Any, completion: Any) -> tuple[str, str, tuple[SampledTurn, ...]]:
    """(prompt, question, turns) of what the model was given and what it wrote: texts, or lists of messages. Without a
    `prompt`, the completion is the whole conversation."""
    given, written = _messages(prompt), _messages(completion)
    if not given and isinstance(completion, list):
        first = next((k for k, (role, _) in enumerate(written) if role == "assistant"), len(written))
        given, written = written[:first], written[first:]
    whole = "\n\n".join(text for _, text in given)
    users = [text for role, text in given if role == "user"]
    asked = users[-1] if users else (_USER.findall(whole) or [whole])[-1]
    if isinstance(completion, list):
        turns = _turns(written)
    else:
        turns = [turn for _, text in written for turn in turns_of(text)]
    return cut(whole), _question(asked), tuple(turns[:_MAX_TURNS])


def turns_of(text: str) -> list[SampledTurn]:
    """Turns of a completion as one text: what stands between tags of observations was not written by the model."""
    parts: list[tuple[str, str]] = []
    at = 0
    for match in _OBSERVATION.finditer(text):
        parts += [("assistant", _own(text[at : match.start()])), ("tool", match[0])]
        at = match.end()
    parts.append(("assistant", _own(text[at:])))
    return _turns([(role, part) for k, (role, part) in enumerate(parts) if part.strip() or k == 0])


def answer_of(turns: Sequence[SampledTurn]) -> str | None:
    """The answer between tags or in a box, outside of thoughts; None without one."""
    for turn in reversed(turns):
        for pattern in (_ANSWER, _BOXED):
            if found := said(pattern, turn.text):
                return found[-1][1].strip()
    return None


def query_of(text: str) -> str | None:
    """What the last search or tool call of a turn asks for; None without a call that can be read."""
    if found := said(_QUERY, text):
        return found[-1][1].strip()
    for match in reversed(said(CALL, text)):
        call = called(match[1])
        arguments = call.get("arguments") if call else None
        if isinstance(arguments, dict):
            values = [value if isinstance(value, str) else json.dumps(value) for value in arguments.values()]
            return ", ".join(values)
    return None


def called(body: str) -> dict[str, Any] | None:
    """The call in the JSON of a `<tool_call>`; None where it is something else."""
    try:
        call = bounded_json(body)
    except ValueError:
        return None
    return call if isinstance(call, dict) and isinstance(call.get("name"), str) else None


def _own(text: str) -> str:
    """A model's text, without the marks of roles that a template puts around an observation."""
    own = _ROLE_AFTER.sub("", text)
    return own[:-_ROLE_LENGTH] + _ROLE_BEFORE.sub("", own[-_ROLE_LENGTH:])


def _turns(messages: Iterable[tuple[str, str]]) -> list[SampledTurn]:
    """A turn for each text of the model, with all that came back before the next one."""
    pairs: list[tuple[str, list[str]]] = []
    for role, text in messages:
        if role == "assistant" or not pairs:
            pairs.append((text, []) if role == "assistant" else ("", [text]))
        else:
            pairs[-1][1].append(text)
    return [
        SampledTurn(text=cut(text), observation=cut("\n\n".join(seen)), query=query_of(text), hits=None)
        for text, seen in pairs
    ]


def _question(asked: str) -> str:
    """What was asked, without the instructions before it."""
    found = [match.end() for match in _QUESTION.finditer(asked)]
    text = (asked[found[-1] :] if found else asked).strip()
    return cut(text, 1000)


def _messages(value: Any) -> list[tuple[str, str]]:
    """(role, text) of each message; of a text, one without a role."""
    if isinstance(value, str):
        return [("", value)] if value else []
    if not isinstance(value, list):
        return []
    if all(isinstance(part, str) for part in value):  # NeMo-RL: a text a message, the first is the prompt
        return [("assistant" if k % 2 else "user" if not k else "tool", part) for k, part in enumerate(value)]
    return [(str(part.get("role", "")), _text_of(part)) for part in value if isinstance(part, Mapping)]


def _text_of(message: Mapping[str, Any]) -> str:
    """The text of a message: its thought, its content, and its calls as the tags of most templates."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(
            str(part.get("text") or part.get("thinking") or "") if isinstance(part, Mapping) else str(part)
            for part in content
        )
    thought = thought_field(message)
    calls = message.get("tool_calls") or []
    if isinstance(calls, str):
        try:
            calls = bounded_json(calls)
        except ValueError:
            calls = [calls]
    parts = [f"<think>\n{thought}\n</think>" if thought else "", str(content or "")]
    parts += [f"<tool_call>\n{_call_text(call)}\n</tool_call>" for call in (calls if isinstance(calls, list) else [])]
    return "\n".join(filter(None, parts))


def _call_text(call: Any) -> str:
    """A call as JSON. Arguments that are a text stay as they are where they cannot be read."""
    if not isinstance(call, Mapping):
        return str(call)
    function = call.get("function")
    inner: Mapping[str, Any] = function if isinstance(function, Mapping) else call
    arguments = inner.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = bounded_json(arguments)
        except ValueError:
            return f'{{"name": {json.dumps(inner.get("name"))}, "arguments": {arguments}}}'
    return json.dumps({"name": inner.get("name"), "arguments": arguments}, ensure_ascii=False)
