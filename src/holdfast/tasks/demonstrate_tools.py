"""Demonstrations that call tools: by a script of the user's, and from rollouts of another model.

A script is a generator function. It yields a call, is sent what the tool returned, and returns the answer:

    def prices(question):
        found = yield {"tool": "search", "arguments": {"query": question}, "thought": "I look it up."}
        total = yield {"tool": "calculator", "arguments": {"expression": f"3 * {price_in(found)}"}}
        return {"answer": total, "thought": "That is it."}

It gets the texts of passages as a list, and the result of any other tool as a text. The tools are the recipe's, and
really called. A rollout is kept if it ends with a golden answer.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.agent.calling import begin
from holdfast.agent.protocol import SearchProtocol, parse_action
from holdfast.agent.searching import search_patiently
from holdfast.agent.tools import ToolProtocol
from holdfast.agent.trajectory import Action, Answer, Call, Read, Search
from holdfast.base.errors import ConfigError
from holdfast.base.importing import import_named, running
from holdfast.base.jsonl import BadField, Skipped
from holdfast.base.rows import read_rows
from holdfast.base.scoring import exact_match
from holdfast.base.stored import bounded_json
from holdfast.base.thoughts import after_thought, thought_field, thoughts_in
from holdfast.retrieval.types import Hit, Retriever
from holdfast.tasks.demonstrate import Demonstrations, gathered
from holdfast.tasks.demonstrations import Observed, Text, Turn, answered, called, text_of
from holdfast.tasks.questions import Example

Script = Callable[[str], Generator[Mapping[str, Any], Any, Any]]

WRONG = "differs from the golden ones"
LONG = "comes after more turns than protocol.max_turns"
FAILED = "comes after a call that failed"
EXTRA = "already occurs often enough"
UNASKED = "belongs to no training question of the recipe"


def script_named(path: str) -> Script:
    """The function at an import path. Raises `ConfigError`."""
    script: Script = import_named(path)
    if not callable(script):
        raise ConfigError(f"--script {path}: it is of type {type(script).__name__}; name a generator function")
    return script


def demonstrate_by(
    script: Script,
    examples: Sequence[Example],
    retriever: Retriever,
    protocol: SearchProtocol,
    *,
    seed: int = 0,
    most: int | None = None,
) -> Demonstrations:
    """Let a script answer the questions in random order, until there are `most` demonstrations.

    Raises `ConfigError` for a script that fails, with its line, and for a call that no tool takes.
    """
    rows, left_out = gathered(
        examples,
        lambda example: _scripted(script, example, retriever, protocol),
        random.Random(f"demonstrations-{seed}"),
        most,
    )
    return Demonstrations(rows, left_out, "Print what the script yields and gets for one question")


def _scripted(script: Script, example: Example, retriever: Retriever, protocol: SearchProtocol) -> list[Turn] | str:
    """A rollout that ends with a golden answer, or why there is none."""
    name = f"the script {getattr(script, '__name__', 'of --script')}"
    turns, found, reply = list[Turn](), dict[str, Hit](), None
    with running(f"{name} fails"):
        rollout = script(example.question)
    while True:
        try:
            with running(f"{name} fails on {example.question!r}"):
                step = _next(rollout, reply)
            if isinstance(step, _End):
                end = step.value if isinstance(step.value, Mapping) else {"answer": str(step.value)}
                said, answer = answered(end, "the answer", protocol)
                golden = exact_match(answer.text, example.golden_answers)
                return [*turns, (said, "")] if golden else WRONG
            if not isinstance(step, Mapping) or "tool" not in step:
                raise BadField("a step", f"must be a dict with tool and arguments, is {step!r:.80}")
            call, action = called(step, "a step", protocol)
        except BadField as bad:
            raise ConfigError(f"{name}, on {example.question!r}: {bad.field} {bad.reason}") from None
        if len(turns) + 1 >= protocol.max_turns:
            return LONG
        seen = _seen(action, found, retriever, protocol)
        if seen is None:
            return FAILED
        turns.append((call, seen))
        reply = [hit.document.contents for hit in seen] if isinstance(seen, list) else getattr(seen, "text", seen)


class _End:
    """That a script has returned."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _next(rollout: Any, reply: Any) -> Any:
    """What a script yields next, or its `_End`."""
    try:
        return rollout.send(reply)
    except StopIteration as end:
        return _End(end.value)


def _seen(action: Action, found: dict[str, Hit], retriever: Retriever, protocol: SearchProtocol) -> Observed | None:
    """What comes back; None from a call that failed."""
    match action:
        case Search(query):
            hits = search_patiently(retriever, query, protocol.topk)
            found |= {hit.document.id: hit for hit in hits}
            return hits
        case Read(passage):
            return [found[passage]] if passage in found else []
        case Call(tool, arguments):
            assert isinstance(protocol, ToolProtocol)
            result = begin(protocol.by_name[tool], arguments, protocol.tool_timeout).result()
            return None if result.failed else result
    return None


# ---- rollouts of another model


def demonstrations_in(
    path: Path,
    examples: Sequence[Example],
    protocol: SearchProtocol,
    *,
    per_question: int = 1,
    most: int | None = None,
    on_skip: Callable[[Skipped], None] | None = None,
) -> Demonstrations:
    """The rollouts of a file that end with a golden answer of their question, at most so many of each question.

    A row has the `turns` of a demonstration, or `messages` as OpenAI's API has them: `tool_calls` of the assistant, and
    what came back as messages of the role `tool`. Its question is `question`, or the last message of the user before
    the first answer. Raises `DataError` as `read_rows` does.
    """
    golds = {example.question.strip(): example.golden_answers for example in examples}
    rows: list[Text] = []
    counts: defaultdict[str, int] = defaultdict(int)
    left_out: defaultdict[str, list[str]] = defaultdict(list)
    kept = read_rows(path, lambda row, _: _rollout(row, protocol), what="rollout", on_skip=on_skip)
    for question, turns in kept:
        reason = None
        if question not in golds:
            reason = UNASKED
        elif not exact_match(_answer_of(turns, protocol), golds[question]):
            reason = WRONG
        elif len(turns) > protocol.max_turns:
            reason = LONG
        elif counts[question] == per_question or len(rows) == most:
            reason = EXTRA
        if reason is not None:
            left_out[reason].append(question)
            continue
        counts[question] += 1
        rows.append((question, turns))
    return Demonstrations(rows, dict(left_out), "Take rollouts of the recipe's own training questions")


def _answer_of(turns: Sequence[Turn], protocol: SearchProtocol) -> str | None:
    said = turns[-1][0]
    action = parse_action(said, protocol) if isinstance(said, str) else None
    return action.text if isinstance(action, Answer) else None


def _rollout(row: dict[str, Any], protocol: SearchProtocol) -> Text:
    """A rollout as a demonstration. Raises `BadField`."""
    if "turns" in row:
        return text_of(row, protocol)
    messages = row.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BadField(
            "messages", "must be a list of messages; a rollout has messages, or the turns of a demonstration"
        )
    begins = next((k for k, message in enumerate(messages) if message.get("role") == "assistant"), len(messages))
    users = [_content(message) for message in messages[:begins] if message.get("role") == "user"]
    question = row.get("question") or (users[-1].rpartition("Question:")[2].strip() if users else "")
    return text_of({"question": question, "turns": list(_turns_of(messages[begins:]))}, protocol)


def _turns_of(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Messages after the question, as turns of a demonstration. Raises `BadField`."""
    places = [k for k, message in enumerate(messages) if message.get("role") == "assistant"]
    for k, following in zip(places, [*places[1:], len(messages)], strict=True):
        message, field = messages[k], f"messages, answer {places.index(k) + 1}"
        content, calls = _content(message), message.get("tool_calls") or []
        thought = thought_field(message) or "\n".join(thoughts_in(content))
        said = content[after_thought(content) or 0 :].strip()
        back = [_content(other) for other in messages[k + 1 : following] if other.get("role") == "tool"]
        if not isinstance(calls, list) or len(calls) > 1 or len(back) != len(calls):
            raise BadField(field, "needs one call, and a message of the role tool with its result; or neither")
        if calls:
            name, arguments = _call(calls[0], field)
            thought = thought or said
            yield {"thought": thought.strip(), "tool": name, "arguments": arguments, "observation": back[0]}
        else:
            yield {"thought": thought.strip(), "answer": said}


def _call(call: Any, field: str) -> tuple[Any, Any]:
    """(name, arguments) of an entry of `tool_calls`."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise BadField(field, "has a call without a function")
    arguments = function.get("arguments")
    try:
        return function.get("name"), bounded_json(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        raise BadField(field, "has a call whose arguments are not JSON") from None


def _content(message: Mapping[str, Any]) -> str:
    """The text of a message."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
