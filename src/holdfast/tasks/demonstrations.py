"""Demonstrations as texts: what they are, and the files of them that a warm start reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.agent.protocol import SearchProtocol, parse_action
from holdfast.agent.trajectory import Invalid, Search
from holdfast.base.jsonl import BadField, Skipped, clean_text, json_kind, text_field, write_jsonl
from holdfast.base.rows import read_rows
from holdfast.retrieval.types import Document, Hit

Observed = str | Sequence[Hit]
"""An observation as its text, or as the passages that a search found."""
Turn = tuple[str, Observed]
"""The text of a turn, and the observation after it."""
Text = tuple[str, Sequence[Turn]]
"""A question, and the turns of its rollout."""


def turn_text(thought: str, text: str, tags: tuple[str, str], protocol: SearchProtocol) -> str:
    """A turn that thinks, then writes a query or an answer in its tags."""
    (think, thought_end), (opened, closed) = protocol.thought_tags, tags
    return f"{think} {thought} {thought_end}\n{opened} {text} {closed}"


def read_demonstrations(
    path: Path, protocol: SearchProtocol, *, on_skip: Callable[[Skipped], None] | None = None
) -> list[Text]:
    """(question, turns) of every row `{"question": str, "turns": [{"text": str, "observation": …}, …]}`.

    The observation of a search is a list of passages, each a text or `{"contents": str}`, title on the first line, as
    in a corpus; or their text with the tags of the protocol, as in `trajectories.jsonl`, which is such a file. A row
    whose tags are not the protocol's is bad. For tool calls the tags are those of `clean`, and are translated. Bad rows
    and bad files are treated as in `read_questions`.
    """

    return read_rows(path, lambda row, _: text_of(row, protocol), what="demonstration", on_skip=on_skip)


def text_of(row: dict[str, Any], protocol: SearchProtocol) -> Text:
    """One row. Raises `BadField`."""
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns:
        raise BadField("turns", "must be a list of at least one turn")
    question = text_field(row, "question").strip()
    parsed = [_turn(turn, f"turns[{i}]", protocol, last=i == len(turns) - 1) for i, turn in enumerate(turns)]
    if all(isinstance(parse_action(text, protocol), Invalid) for text, _ in parsed):
        raise BadField("turns", f"none is a search or an answer: {_tags(protocol)}")
    return question, parsed


def _turn(turn: Any, field: str, protocol: SearchProtocol, *, last: bool) -> tuple[str, Observed]:
    if not isinstance(turn, dict):
        raise BadField(field, f"must be an object, is {json_kind(turn)}")
    if "text" not in turn:
        raise BadField(f"{field}.text", "missing")
    text, where = clean_text(turn["text"], f"{field}.text"), f"{field}.observation"
    observation = turn.get("observation", "")
    if not isinstance(observation, list):
        observation = clean_text(observation, where, empty=True)
    if not isinstance(parse_action(text, protocol), Search):
        if isinstance(observation, list) or not _squeezed(protocol.invalid_note).startswith(_squeezed(observation)):
            raise BadField(f"{field}.text", f"is not a search, but an observation follows: {_tags(protocol)}")
        return text, observation
    if isinstance(observation, list):
        passages = [passage.get("contents") if isinstance(passage, dict) else passage for passage in observation]
        texts = [clean_text(contents, f"{where}[{k}]") for k, contents in enumerate(passages)]
        return text, [Hit(Document("", contents), 0.0) for contents in texts]
    shown, (opened, closed) = observation.strip(), protocol.information_tags
    if shown.startswith(opened) and shown.endswith(closed):
        return text, f"{protocol.separator}{shown}{protocol.separator}"
    if shown or not last:
        raise BadField(where, f"must be a list of passages, or their text as {opened} … {closed}")
    return text, observation


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _tags(protocol: SearchProtocol) -> str:
    """What a turn has to look like."""
    (search, search_end), (answer, answer_end) = protocol.search_tags, protocol.answer_tags
    return f"write {search} query {search_end} or {answer} answer {answer_end} (protocol.preset = {protocol.name!r})"


def write_demonstrations(path: Path, rows: Sequence[Text]) -> None:
    """Write the rows that `warm_start.data` reads."""
    write_jsonl(path, ({"question": question, "turns": list(map(_row, turns))} for question, turns in rows))


def _row(turn: Turn) -> dict[str, Any]:
    text, observation = turn
    if not observation:
        return {"text": text}
    shown = observation if isinstance(observation, str) else [hit.document.contents for hit in observation]
    return {"text": text, "observation": shown}
