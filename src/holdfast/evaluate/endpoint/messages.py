"""What clients of OpenAI's API send, and what they read: requests checked, rollouts as messages.

Thoughts and searches are `reasoning_content` (DeepSeek's name) and `reasoning` (vLLM's). Passages are
`search_results` (Perplexity's), and those that have the answer in them are cited as `annotations` (OpenAI's). Searches
are not `tool_calls`: a client would run them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastapi import HTTPException
from pydantic import BaseModel, Field

from holdfast.agent.protocol import SearchProtocol
from holdfast.agent.trajectory import Status, Trajectory, Turn
from holdfast.agent.turn_parts import parts_of_turn, why_no_answer
from holdfast.base.answers import shown
from holdfast.retrieval.types import Document
from holdfast.tasks.demonstrate import answer_in

_MAX_QUESTION = 10_000
"""Characters of a question."""
_SNIPPET = 1000
"""Characters of a passage that are sent."""
_LABELS = {"notes": "Note: ", "searches": "Search: ", "reads": "Read: ", "calls": "Call: "}

Json = dict[str, Any]


class Part(BaseModel):
    """A part of a message."""

    type: str
    text: str | None = None


class Message(BaseModel):
    """A message of a conversation."""

    role: str
    content: str | list[Part] | None = None


class StreamOptions(BaseModel):
    """`stream_options`."""

    include_usage: bool = False


class ChatRequest(BaseModel):
    """The body of `POST /v1/chat/completions`, as far as it is read. Other fields are ignored."""

    messages: list[Message] = Field(min_length=1)
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    seed: int | None = None
    n: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request asks for."""

    question: str
    seed: int
    temperature: float | None = None
    """None: as the agent samples; 0: greedily."""
    max_tokens: int | None = None
    """The most tokens that the model may write, over all turns."""


def asked_of(request: ChatRequest, name: str) -> Asked:
    """What a request asks the model `name`. Raises `HTTPException` for what this model cannot do."""
    if request.model not in (None, "", name):
        raise HTTPException(404, f"there is no model {shown(request.model or '')}; this server has {name}")
    if request.tools or request.functions:
        raise HTTPException(
            400, "this agent has tools of its own and calls them itself; send the question without `tools`"
        )
    if request.n not in (None, 1):
        raise HTTPException(400, f"n = {request.n}, but an agent answers once; leave n out, and ask again")
    seed = secrets.randbits(63) if request.seed is None else request.seed % 2**63
    return Asked(
        question=_question(request.messages),
        seed=seed,
        temperature=request.temperature,
        max_tokens=request.max_completion_tokens or request.max_tokens,
    )


def _question(messages: Sequence[Message]) -> str:
    """The last message of the user: agents are trained on single questions."""
    content = next((message.content for message in reversed(messages) if message.role == "user"), None)
    parts = content if isinstance(content, list) else [Part(type="text", text=content)]
    if other := [part.type for part in parts if part.type not in ("text", "input_text")]:
        raise HTTPException(400, f"this agent reads text, and the message has a part of type {shown(other[0])}")
    question = "\n".join(part.text or "" for part in parts).strip()
    if not question:
        raise HTTPException(400, "there is no question: `messages` needs a message of the role user, with a text")
    if len(question) > _MAX_QUESTION:
        raise HTTPException(400, f"the question has {len(question)} characters; it may have {_MAX_QUESTION}")
    return question


# ---- what is sent


def step_of(turn: Turn, documents: Mapping[str, Document], protocol: SearchProtocol) -> Json:
    """A turn: what the model said as [kind, text] pairs, without the answer; then what it `found`, of the documents, or
    what came `back`."""
    says = [[kind, text] for kind, text in parts_of_turn(turn, protocol) if kind != "answers"]
    if turn.hits or not turn.observation_text:
        return {"says": says, "found": results_of(documents[id] for id in turn.hits if id in documents)}
    opened, closed = protocol.information_tags
    back = turn.observation_text.strip().removeprefix(opened).removesuffix(closed).strip()
    return {"says": says, "back": back or protocol.nothing_found or "Nothing was found."}


def step_of_note(note: str) -> Json:
    """A note on the question, as a step before the first."""
    return {"says": [["notes", note]]}


def reasoning(step: Json) -> str:
    """A step as text."""
    lines = [_LABELS.get(kind, "") + text for kind, text in step["says"]]
    if found := step.get("found"):
        lines.append("Found: " + "; ".join(passage["title"] for passage in found))
    lines += [f"Result: {step['back']}"] if "back" in step else []
    return "".join(f"{line}\n" for line in lines)


def results_of(documents: Iterable[Document]) -> list[Json]:
    """Passages as `search_results`. A passage whose id is no address has one that only names it."""
    return [
        {
            "title": document.title,
            "url": document.id if document.id.startswith(("http://", "https://")) else f"passage:{document.id}",
            "snippet": document.text.strip()[:_SNIPPET],
        }
        for document in documents
    ]


class Ending(NamedTuple):
    """What is sent of a rollout that has ended by itself."""

    content: str
    reason: str
    """`finish_reason`."""
    annotations: list[Json]
    results: list[Json]
    """`search_results`."""
    usage: Json


def ending_of(trajectory: Trajectory, documents: Sequence[Document], asked: Asked, protocol: SearchProtocol) -> Ending:
    """The end of a rollout that has found these documents. Raises `HTTPException` for one that says nothing about the
    question."""
    if trajectory.status is Status.RETRIEVAL_FAILED:
        raise HTTPException(503, f"a search failed, so there is no answer: {trajectory.error}")
    if trajectory.status is Status.ERROR:
        raise HTTPException(500 if trajectory.turns else 400, str(trajectory.error))
    read = len(trajectory.prompt) + sum(len(turn.observation) for turn in trajectory.turns)
    wrote = sum(len(turn.tokens or ()) for turn in trajectory.turns)
    usage = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
    if (content := trajectory.answer) is None:
        limit = f"the model has written as many tokens as the request allows, max_tokens = {wrote}"
        why = limit if wrote == asked.max_tokens else why_no_answer(trajectory, protocol)
        return Ending(f"There is no answer: {why}.", "length", [], results_of(documents), usage)
    cited = [document for document in documents if answer_in([document.contents], [content])]
    place = {"start_index": 0, "end_index": len(content)}
    annotations = [
        {"type": "url_citation", "url_citation": place | {"title": result["title"], "url": result["url"]}}
        for result in results_of(cited)
    ]
    return Ending(content, "stop", annotations, results_of(documents), usage)


_ERRORS = {
    401: ("authentication_error", "invalid_api_key"),
    404: ("invalid_request_error", "not_found"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    503: ("server_error", "search_failed"),
}
"""Status -> type and code, where it has one."""


def error_body(status: int, why: str) -> Json:
    """An error as OpenAI's clients read it."""
    kind, code = _ERRORS.get(status, ("invalid_request_error" if status < 500 else "server_error", None))
    return {"error": {"message": why, "type": kind, "param": None, "code": code}}


def event(data: Json) -> bytes:
    """An event of a stream."""
    return f"data: {json.dumps(data)}\n\n".encode()


DONE, ALIVE = b"data: [DONE]\n\n", b": waiting\n\n"
