"""Demonstrations: what they are, and the files of them that a warm start reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.agent.calling import READ, SEARCH, Tool
from holdfast.agent.protocol import CallTurn, SearchProtocol, parse_action
from holdfast.agent.tools import ToolProtocol
from holdfast.agent.trajectory import Action, Answer, Call, Invalid, Read, Search, ToolResult
from holdfast.base.jsonl import BadField, Skipped, clean_text, json_kind, text_field, write_jsonl
from holdfast.base.rows import read_rows
from holdfast.retrieval.types import Document, Hit

Said = str | CallTurn
"""A turn as its text, with tags, or as a call of a tool that has none."""
Observed = str | Sequence[Hit] | ToolResult
"""An observation as its text, as the passages that a search found, or as what a tool returned."""
Turn = tuple[Said, Observed]
"""What a turn says, and the observation after it."""
Text = tuple[str, Sequence[Turn]]
"""A question, and the turns of its rollout."""


def turn_text(thought: str, text: str, tags: tuple[str, str], protocol: SearchProtocol) -> str:
    """A turn that thinks, then writes a query or an answer in its tags."""
    (think, thought_end), (opened, closed) = protocol.thought_tags, tags
    said = f"{opened} {text} {closed}"
    return f"{think} {thought} {thought_end}\n{said}" if thought else said


def read_demonstrations(
    path: Path, protocol: SearchProtocol, *, on_skip: Callable[[Skipped], None] | None = None
) -> list[Text]:
    """(question, turns) of every row `{"question": str, "turns": [turn, …]}`.

    A turn is one of these, with an `observation` unless it is the last:

        {"text": str}                                   as the model writes it, with the tags of the protocol
        {"tool": name, "arguments": {…}, "thought": str}
        {"answer": str, "thought": str}

    The observation of a search is a list of passages, each a text or `{"contents": str}`, title on the first line, as
    in a corpus; or their text with the tags of the protocol, as in `trajectories.jsonl`, which is such a file. That of
    another tool is what it returned. A row whose tags are not the protocol's, or whose calls its tools do not take, is
    bad. For tool calls the tags are those of `clean`, and are translated. Bad rows and bad files are treated as in
    `read_questions`.
    """

    return read_rows(path, lambda row, _: text_of(row, protocol), what="demonstration", on_skip=on_skip)


def text_of(row: dict[str, Any], protocol: SearchProtocol) -> Text:
    """One row. Raises `BadField`."""
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns:
        raise BadField("turns", "must be a list of at least one turn")
    question = text_field(row, "question").strip()
    parsed = [_turn(turn, f"turns[{i}]", protocol, last=i == len(turns) - 1) for i, turn in enumerate(turns)]
    if all(isinstance(said, str) and isinstance(parse_action(said, protocol), Invalid) for said, _ in parsed):
        raise BadField("turns", f"none is a search or an answer: {_tags(protocol)}")
    return question, parsed


def called(turn: Mapping[str, Any], field: str, protocol: SearchProtocol) -> tuple[Said, Action]:
    """A turn `{"tool": name, "arguments": {…}, "thought": str}`, and what it does. Raises `BadField`."""
    tools: Mapping[str, Tool] = protocol.by_name if isinstance(protocol, ToolProtocol) else {SEARCH.name: SEARCH}
    name, thought = clean_text(turn["tool"], f"{field}.tool"), _thought(turn, field)
    if name not in tools:
        raise BadField(f"{field}.tool", f"is {name!r}, but the recipe has {', '.join(tools)} (protocol.tools)")
    action = tools[name].called(turn.get("arguments"))
    if isinstance(action, Invalid):
        raise BadField(f"{field}.arguments", f"do not fit: {action.reason}")
    if isinstance(action, Search):
        return _tagged(thought, action, protocol.search_tags, protocol, f"{field}.arguments"), action
    return CallTurn(thought, name, turn["arguments"]), action


def answered(turn: Mapping[str, Any], field: str, protocol: SearchProtocol) -> tuple[str, Answer]:
    """A turn `{"answer": str, "thought": str}`, as text and as what it does. Raises `BadField`."""
    action = Answer(clean_text(turn["answer"], f"{field}.answer").strip())
    thought = _thought(turn, field)
    return _tagged(thought, action, protocol.answer_tags, protocol, f"{field}.answer"), action


def returned(value: Any) -> ToolResult:
    """What a tool returned, as the model reads it."""
    return ToolResult(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), False, 0.0)


def _thought(turn: Mapping[str, Any], field: str) -> str:
    return clean_text(turn.get("thought", ""), f"{field}.thought", empty=True).strip()


def _tagged(thought: str, action: Search | Answer, tags: tuple[str, str], protocol: SearchProtocol, field: str) -> str:
    content = action.query if isinstance(action, Search) else action.text
    text = turn_text(thought, content, tags, protocol)
    if parse_action(text, protocol) != action:
        raise BadField(field, f"cannot be written with tags, because it contains some itself: {_tags(protocol)}")
    return text


def _turn(turn: Any, field: str, protocol: SearchProtocol, *, last: bool) -> Turn:
    if not isinstance(turn, dict):
        raise BadField(field, f"must be an object, is {json_kind(turn)}")
    kinds = [name for name in ("text", "tool", "answer") if name in turn]
    if len(kinds) != 1:
        raise BadField(field, f"must have one of text, tool and answer; it has {' and '.join(kinds) or 'none'}")
    where = f"{field}.observation"
    observation = turn.get("observation", "")
    if "tool" in turn:
        said, action = called(turn, field, protocol)
        if "observation" not in turn and not last:
            raise BadField(where, f"missing: what {turn['tool']} returned")
        if isinstance(action, Call) and "observation" in turn:
            return said, returned(observation)
    elif "answer" in turn:
        said, action = answered(turn, field, protocol)
    else:
        said = clean_text(turn["text"], f"{field}.text")
        action = parse_action(said, protocol)
    if not isinstance(observation, list):
        observation = clean_text(observation, where, empty=True)
    if not isinstance(action, Search | Read):
        if isinstance(observation, list) or not _squeezed(protocol.invalid_note).startswith(_squeezed(observation)):
            raise BadField(f"{field}.{kinds[0]}", f"is not a search, but an observation follows: {_tags(protocol)}")
        return said, observation
    if isinstance(observation, list):
        return said, [_hit(passage, f"{where}[{k}]") for k, passage in enumerate(observation)]
    shown, (opened, closed) = observation.strip(), protocol.information_tags
    if shown.startswith(opened) and shown.endswith(closed):
        return said, f"{protocol.separator}{shown}{protocol.separator}"
    if shown and "tool" in turn and isinstance(protocol, ToolProtocol):
        return said, returned(observation)
    if shown or not last:
        raise BadField(where, f"must be a list of passages, or their text as {opened} … {closed}")
    return said, observation


def _hit(passage: Any, field: str) -> Hit:
    contents, id = (passage.get("contents"), passage.get("id")) if isinstance(passage, dict) else (passage, None)
    return Hit(Document("" if id is None else str(id), clean_text(contents, field)), 0.0)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _tags(protocol: SearchProtocol) -> str:
    """What a turn has to look like."""
    (search, search_end), (answer, answer_end) = protocol.search_tags, protocol.answer_tags
    return f"write {search} query {search_end} or {answer} answer {answer_end} (protocol.preset = {protocol.name!r})"


def write_demonstrations(path: Path, rows: Sequence[Text]) -> None:
    """Write the rows that `warm_start.data` reads."""
    write_jsonl(path, ({"question": question, "turns": _turns(turns)} for question, turns in rows))


def _turns(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """With the ids of passages where one is read by its id."""
    with_ids = any(isinstance(said, CallTurn) and said.tool == READ.name for said, _ in turns)
    return [_row(turn, with_ids=with_ids) for turn in turns]


def _row(turn: Turn, *, with_ids: bool) -> dict[str, Any]:
    said, observation = turn
    row: dict[str, Any] = {"text": said}
    if isinstance(said, CallTurn):
        thought = {"thought": said.thought} if said.thought else {}
        row = {**thought, "tool": said.tool, "arguments": dict(said.arguments)}
    if isinstance(observation, ToolResult):
        return row | {"observation": observation.text}
    if not observation:
        return row
    if isinstance(observation, str):
        return row | {"observation": observation}
    documents = [hit.document for hit in observation]
    plain = [document.contents for document in documents]
    return row | {"observation": [{"id": d.id, "contents": d.contents} for d in documents] if with_ids else plain}
