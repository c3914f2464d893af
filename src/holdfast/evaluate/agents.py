"""Methods as agents of the scheduler: conversations, whose texts become tokens here, and rollouts of the search agent.

Nothing of a conversation is used for training, so its whole text is encoded again for each call; the cache of a local
policy still holds what the calls have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.agent.agent import Task, search_agent
from holdfast.agent.protocol import SearchProtocol
from holdfast.agent.scheduler import Agent
from holdfast.agent.trajectory import Call, Read, Search, Status
from holdfast.base.errors import RetrievalError
from holdfast.base.thoughts import after_thought, opens_thought, through_first
from holdfast.evaluate.methods import TAGS, Conversation, Outcome, Prompt, Reply
from holdfast.model.sampler.policy import Completion, Request
from holdfast.model.text.chat_template import ChatTemplate
from holdfast.model.text.tokens import decode, encode, foreign

_TAIL = 16
"""Tokens at the end of a context that show whether its template has opened a thought."""

Step = dict[str, Any]
"""One step, as rows record it: `{"says": str}`, `{"searches": str, "hits": [id]}`, `{"reads": id, "hits": [id]}`, or
`{"calls": tool, "arguments": str, "returns": str, "failed": bool}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The result of an agent on a question."""

    status: Status
    steps: Sequence[Step]
    passages: Sequence[str]
    """Texts of all passages that searches returned."""
    prediction: str | None = None
    raw: str | None = None
    """The full text that the prediction was extracted from. None for the search agent, or when there is none."""
    error: str | None = None

    @property
    def calls(self) -> int:
        """Number of model calls."""
        return sum("says" in step for step in self.steps)

    @property
    def searches(self) -> int:
        """Number of search calls."""
        return sum("searches" in step for step in self.steps)


@dataclass(frozen=True, slots=True)
class PromptEncoder:
    """Encodes model calls; knows how long a context may be."""

    tokenizer: Any
    template: ChatTemplate
    positions: float
    """The most tokens of a context with its answer; infinite when unknown."""
    thinking_tokens: int = 0
    """For a thought, beyond what a call has for its answer."""

    def __call__(self, prompt: Prompt) -> list[int]:
        """Token ids of the context of a call."""
        instruction = prompt.instruction and f"{prompt.instruction}\n\n"
        context = self.template.prompt(self.tokenizer, instruction + foreign(prompt.user))
        return context + encode(self.tokenizer, foreign(prompt.answer_start, TAGS))


def converse(conversation: Conversation, encoder: PromptEncoder, id: str, seed: int) -> Agent[Attempt]:
    """A conversation as the agent `id` of the scheduler.

    Its status is `TRUNCATED` when its own text has filled the model's context, `ERROR` when the context does not fit
    from the start or a call fails, and `RETRIEVAL_FAILED` when a search fails.
    """
    steps: list[Step] = []
    passages: list[str] = []

    def failed(status: Status, error: str) -> Attempt:
        return Attempt(status=status, error=error, steps=steps, passages=passages)

    reply: Any = None
    while True:
        try:
            request = conversation.send(reply)
        except StopIteration as end:
            outcome: Outcome = end.value
            status = Status.TRUNCATED if outcome.truncated else Status.OK
            return Attempt(
                status=status, steps=steps, passages=passages, prediction=outcome.prediction, raw=outcome.raw
            )
        if isinstance(request, Prompt):
            context = encoder(request)
            room = encoder.positions - len(context)
            if room < 1 and any("says" in step for step in steps):
                return Attempt(status=Status.TRUNCATED, steps=steps, passages=passages)
            if room < 1:
                return failed(
                    Status.ERROR, f"a context of {len(context)} tokens fills the model's {encoder.positions:g}"
                )
            longest = int(min(request.max_tokens + encoder.thinking_tokens, room))
            thinking = opens_thought(decode(encoder.tokenizer, context[-_TAIL:]))
            asked = Request(id=id, token_ids=context, max_new_tokens=longest, stop=request.stop, seed=seed)
            text, completion = yield from _said(request, asked, thinking, encoder.tokenizer)
            if completion.error is not None:
                return failed(Status.ERROR, completion.error)
            steps.append({"says": text})
            reply = Reply(_to_stop(text, request), completion.stop_reason, thinking)
        else:
            reply = yield request
            if isinstance(reply, RetrievalError):
                return failed(Status.RETRIEVAL_FAILED, str(reply))
            steps.append({"searches": request.argument, "hits": [hit.document.id for hit in reply]})
            passages += [hit.document.contents for hit in reply]


def _said(prompt: Prompt, request: Request, thinking: bool, tokenizer: Any) -> Agent[tuple[str, Completion]]:
    """What the model writes, and its last completion. A stop text inside a thought does not end the call."""
    text = ""
    while True:
        completion: Completion = yield request
        text += completion.text
        if completion.stop_reason != "stop" or completion.error is not None or prompt.stops_in_thought:
            return text, completion
        ids = completion.token_ids
        wrote = encode(tokenizer, foreign(completion.text, TAGS)) if ids is None else ids
        room = request.max_new_tokens - len(wrote)
        if room < 1 or after_thought(text, thinking=thinking) is not None:
            return text, completion
        request = replace(request, token_ids=[*request.token_ids, *wrote], max_new_tokens=room)


def run_search_agent(task: Task, protocol: SearchProtocol, tokenizer: Any) -> Agent[Attempt]:
    """A rollout of the search agent, as an attempt."""
    trajectory = yield from search_agent(task, protocol, tokenizer)
    steps: list[Step] = []
    for turn in trajectory.turns:
        steps.append({"says": turn.text})
        if isinstance(turn.action, Read) and turn.observation_text:
            steps.append({"reads": turn.action.passage, "hits": list(turn.hits)})
        if isinstance(turn.action, Search) and turn.observation_text:
            steps.append({"searches": turn.action.query, "hits": list(turn.hits)})
        if isinstance(turn.action, Call) and turn.result is not None:
            called = {"calls": turn.action.tool, "arguments": turn.action.arguments}
            steps.append(called | {"returns": turn.observation_text, "failed": turn.result.failed})
    return Attempt(
        status=trajectory.status,
        steps=steps,
        passages=[turn.observation_text for turn in trajectory.turns if turn.hits],
        prediction=trajectory.answer,
        error=trajectory.error,
    )


def _to_stop(text: str, prompt: Prompt) -> str:
    """The text up to its first stop text; the token that completed it may contain more."""
    if prompt.stops_in_thought:
        ends = [text.index(mark) + len(mark) for mark in prompt.stop if mark in text]
        return text[: min(ends)] if ends else text
    return through_first(prompt.stop, text) or text
