"""The agent's tools for a host that holds the conversation: the calls of one rollout, and its messages as a rollout
that can be scored. No torch.

The host samples, parses and encodes. It encodes a message as one text, so that what spells a control token of the
tokenizer becomes one: questions and results get a blank inside such a spelling.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.agent.calling import begin
from holdfast.agent.observations import fit, format_hits
from holdfast.agent.protocol import SearchProtocol, prompt_text
from holdfast.agent.tools import ToolProtocol, final_answer
from holdfast.agent.trajectory import Action, Answer, Call, Invalid, Read, Search, Status, ToolResult, Trajectory, Turn
from holdfast.base.errors import RetrievalError
from holdfast.model.text.tokens import decode, encode, spelled_apart
from holdfast.retrieval.types import Hit


def first_message(question: str, protocol: SearchProtocol, tokenizer: Any) -> dict[str, str]:
    """The user's message that asks a question."""
    return {"role": "user", "content": prompt_text(spelled_apart(tokenizer, question), protocol)}


class ToolSession:
    """The tools of one rollout. Results have at most `max_observation_tokens` of the protocol.

    Args:
        search: the hits of a query. Raises `RetrievalError`.
    """

    def __init__(self, protocol: ToolProtocol, search: Callable[[str], Sequence[Hit]], tokenizer: Any) -> None:
        self.tools = protocol.by_name
        self.seen: list[tuple[str, ...] | ToolResult] = []
        """What each call returned: ids of passages, or the result of a function."""
        self.failure: str | None = None
        """Why a search failed. Such a rollout says nothing about the policy, and has no score."""
        self._protocol, self._search, self._tokenizer = protocol, search, tokenizer
        self._found: dict[str, Hit] = {}

    def call(self, name: str, arguments: Any) -> str:
        """The result of a call; `arguments` are an object, or its JSON.

        Raises `TypeError` for a call that no tool takes, and `RetrievalError` for a search that fails.
        """
        action = _action(name, arguments, self)
        match action:
            case Search(query):
                passages = self._shown(self._hits(query))
            case Read(passage):
                hit = self._found.get(passage)
                passages = self._shown([] if hit is None else [hit])
            case Call(tool, written):
                result = begin(self.tools[tool], written, self._protocol.tool_timeout).result()
                self.seen.append(result)
                passages = [result.text]
            case _:
                raise TypeError(spelled_apart(self._tokenizer, action.reason) if isinstance(action, Invalid) else name)
        text, limit = "".join(passages).strip(), self._protocol.max_observation_tokens
        if len(encode(self._tokenizer, text)) > limit:
            text = decode(self._tokenizer, fit(passages, limit, self._tokenizer)).strip()
        return spelled_apart(self._tokenizer, text)

    def _hits(self, query: str) -> Sequence[Hit]:
        try:
            hits = self._search(query)
        except RetrievalError as error:
            self.failure = spelled_apart(self._tokenizer, str(error))
            raise RetrievalError(self.failure) from error
        self._found |= {hit.document.id: hit for hit in hits}
        return hits

    def _shown(self, hits: Sequence[Hit]) -> list[str]:
        self.seen.append(tuple(hit.document.id for hit in hits))
        return format_hits(hits, with_ids="read" in self.tools) or [self._protocol.nothing_found]


def rollout_of(messages: Sequence[Mapping[str, Any]], session: ToolSession) -> Trajectory:
    """The messages of a completion as a rollout without tokens, which is enough to score it. A message with several
    calls is a turn for each of them."""
    turns: list[Turn] = []
    seen = iter(session.seen)
    next_result = 0  # the turn whose result comes next
    for message in messages:
        if message["role"] == "assistant":
            next_result = len(turns)
            text = str(message.get("content") or "")
            for i, action in enumerate(_actions(message, session)):
                turns.append(Turn(tokens=None, logprobs=None, action=action, text="" if i else text))
        elif next_result < len(turns):
            turn = turns[next_result]
            came = next(seen, ()) if not isinstance(turn.action, Invalid) else ()
            of_kind = {"result": came} if isinstance(came, ToolResult) else {"hits": came}
            turns[next_result] = replace(turn, observation_text=str(message["content"]), **of_kind)
            next_result += 1
    answered = bool(turns) and isinstance(turns[-1].action, Answer)
    failure = session.failure
    status = Status.RETRIEVAL_FAILED if failure else Status.OK if answered else Status.TRUNCATED
    return Trajectory(example_id="", prompt=(), turns=tuple(turns), status=status, error=failure)


def _actions(message: Mapping[str, Any], session: ToolSession) -> list[Action]:
    """An action for each call of a message; without calls, its answer."""
    functions = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    if functions:
        return [_action(function.get("name"), function.get("arguments"), session) for function in functions]
    return [final_answer(str(message.get("content") or ""))[0]]


def _action(name: Any, arguments: Any, session: ToolSession) -> Action:
    """What a call does: nothing, if there is no such tool or it does not take these arguments."""
    tool = session.tools.get(name)
    if tool is None:
        return Invalid(f"there is no tool {name!r}")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return Invalid("the arguments of the call are not JSON")
    return tool.called(arguments)
