"""A turn and the end of a rollout as a person reads them: thoughts, searches, calls and the answer, without tags."""

from __future__ import annotations

import re

from holdfast.agent.protocol import CLEAN, SearchProtocol
from holdfast.agent.trajectory import Action, Answer, Call, Read, Search, Trajectory, Turn
from holdfast.base.thoughts import matches

_CALL = re.compile(r"(<[^<>\n]*(tool_call|function|invoke)[^<>\n]*>|\[TOOL_CALLS\]|(<[^<>]*>\s*)?\{).*", re.S)
"""A call in a message that has one, from its first tag or brace on."""


def parts_of_turn(turn: Turn, protocol: SearchProtocol) -> list[tuple[str, str]]:
    """A turn of a rollout as (kind, text) pairs; kinds are thinks, says, searches, reads, calls and answers."""
    if protocol.schemas is None:
        return parts_of(turn.text, protocol)
    return parts_of_message(turn.text, turn.action)


def parts_of(text: str, protocol: SearchProtocol = CLEAN) -> list[tuple[str, str]]:
    """A turn as (kind, text) pairs, without its tags and without empty parts.

    >>> parts_of("<think> hm </think> <search> Orsa </search>")
    [('thinks', 'hm'), ('searches', 'Orsa')]
    """
    pairs_of = {"thinks": protocol.thought_tags, "searches": protocol.search_tags, "answers": protocol.answer_tags}
    kinds = {opened: kind for kind, (opened, _) in pairs_of.items()}
    kinds |= {closed: "says" for _, closed in pairs_of.values()}
    tags = "|".join(map(re.escape, sorted(kinds, key=len, reverse=True)))
    marks = [
        match for match, inside in matches(re.compile(tags), text) if not inside or match[0] in protocol.thought_tags
    ]
    kind_of, begins = ["says", *(kinds[mark[0]] for mark in marks)], [0, *(mark.end() for mark in marks)]
    ends = [*(mark.start() for mark in marks), len(text)]
    parts = [text[begin:end].strip() for begin, end in zip(begins, ends, strict=True)]
    return [(kind, part) for kind, part in zip(kind_of, parts, strict=True) if part]


def parts_of_message(text: str, action: Action) -> list[tuple[str, str]]:
    """A turn without tags of search and answer, by its action.

    >>> parts_of_message('I look. <tool_call>{"name": "search", …', Search("Orsa"))
    [('says', 'I look.'), ('searches', 'Orsa')]
    >>> parts_of_message("I look. <tool_call>\\n<function=search> …", Search("Orsa"))
    [('says', 'I look.'), ('searches', 'Orsa')]
    """
    *before, (kind, said) = parts_of(text) or [("says", "")]
    match action:
        case Search(query):
            done = [("searches", query)]
        case Read(passage):
            done = [("reads", passage)]
        case Call(tool, arguments):
            done = [("calls", f"{tool} {arguments}")]
        case Answer(answer):
            return [*before, ("answers", answer)]
        case _:
            return [*before, (kind, said)]
    said = _CALL.sub("", said).strip()
    return [*before, *([(kind, said)] if said else []), *done]


def why_no_answer(trajectory: Trajectory, protocol: SearchProtocol) -> str:
    """Why a rollout has ended without an answer."""
    if trajectory.error is not None:
        return trajectory.error
    if len(trajectory.turns) >= protocol.max_turns:
        return f"all {protocol.max_turns} turns were used up (protocol.max_turns)"
    return f"the rollout reached protocol.max_total_tokens = {protocol.max_total_tokens}"
