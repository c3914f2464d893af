"""Methods as agents of the scheduler: a conversation, whose texts become tokens here, or a search agent's episode.

Nothing of a conversation is kept for training, so its whole text is encoded again for each call; the cache of a local
policy still serves what the calls have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import RetrievalError
from holdfast.evals.methods import Conversation, Outcome, Prompt, Reply
from holdfast.retrieval.types import Document, Hit
from holdfast.rollout.agent import Task, search_agent
from holdfast.rollout.policy import Completion
from holdfast.rollout.scheduler import Agent, ModelCall
from holdfast.rollout.searching import SEARCH
from holdfast.search.protocol import PLAIN, SearchProtocol, render_prompt
from holdfast.search.tokens import encode
from holdfast.trajectory import Search, Status

Step = dict[str, Any]
"""`{"says": str}` or `{"searches": str, "hits": [id]}`: what a row keeps of an attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What an agent made of a question."""

    status: Status
    steps: Sequence[Step]
    passages: Sequence[str]
    """Texts of all passages that came back from searches."""
    prediction: str | None = None
    raw: str | None = None
    """All of the text the prediction was taken from; None of an episode, or when there is none."""
    error: str | None = None

    @property
    def calls(self) -> int:
        """Calls of the model."""
        return sum("says" in step for step in self.steps)

    @property
    def searches(self) -> int:
        return sum("searches" in step for step in self.steps)


@dataclass(frozen=True, slots=True)
class PromptEncoder:
    """How texts become tokens, and how many a context may have."""

    tokenizer: Any
    chat_template: str
    positions: float
    """Most tokens of a context with its answer; infinite when nobody knows."""

    def __call__(self, text: str) -> list[int]:
        """Ids of a user message, up to where the model's turn begins."""
        return render_prompt(text, PLAIN, self.tokenizer, self.chat_template)


def converse(conversation: Conversation, encoder: PromptEncoder, seed: int) -> Agent[Attempt]:
    """A conversation as an agent.

    It ends as `ERROR` when its context outgrows the model or a call fails, as `RETRIEVAL_FAILED` when a search does.
    """
    steps: list[Step] = []
    passages: list[str] = []

    def failed(status: Status, error: str) -> Attempt:
        return Attempt(status=status, error=error, steps=steps, passages=passages)

    reply: Any = None
    while True:
        try:
            wanted = conversation.send(reply)
        except StopIteration as end:
            outcome: Outcome = end.value
            status = Status.TRUNCATED if outcome.truncated else Status.OK
            return Attempt(
                status=status, steps=steps, passages=passages, prediction=outcome.prediction, raw=outcome.raw
            )
        if isinstance(wanted, Prompt):
            context = encoder(wanted.user) + encode(encoder.tokenizer, wanted.begun)
            room = encoder.positions - len(context)
            if room < 1:
                return failed(
                    Status.ERROR, f"a context of {len(context)} tokens fills the model's {encoder.positions:g}"
                )
            completion: Completion = yield ModelCall(context, int(min(wanted.max_tokens, room)), wanted.stop, seed)
            if completion.error is not None:
                return failed(Status.ERROR, completion.error)
            steps.append({"says": completion.text})
            reply = Reply(_to_stop(completion.text, wanted.stop), completion.stop_reason)
        else:
            reply = yield wanted
            if isinstance(reply, RetrievalError):
                return failed(Status.RETRIEVAL_FAILED, str(reply))
            if wanted.tool == SEARCH:
                steps.append({"searches": wanted.argument, "hits": [hit.document.id for hit in reply]})
                passages += [hit.document.contents for hit in reply]
                reply = [Hit(_defused(hit.document, encoder.tokenizer), hit.score) for hit in reply]


def attempt_episode(task: Task, protocol: SearchProtocol, tokenizer: Any) -> Agent[Attempt]:
    """An episode of the search agent, with the outcome of a conversation."""
    trajectory = yield from search_agent(task, protocol, tokenizer)
    steps: list[Step] = []
    for turn in trajectory.turns:
        steps.append({"says": turn.text})
        if isinstance(turn.action, Search) and turn.observation_text:
            steps.append({"searches": turn.action.query, "hits": list(turn.hits)})
    return Attempt(
        status=trajectory.status,
        steps=steps,
        passages=[turn.observation_text for turn in trajectory.turns if turn.hits],
        prediction=trajectory.answer,
        error=trajectory.error,
    )


def _defused(document: Document, tokenizer: Any) -> Document:
    """Without texts that the tokenizer takes for special tokens: no passage may end the user's message."""
    contents = document.contents
    for token in getattr(tokenizer, "all_special_tokens", ()):
        contents = contents.replace(token, " ")
    return Document(document.id, contents)


def _to_stop(text: str, stop: Sequence[str]) -> str:
    """Up to the first stop text; the token that completed it may have brought more."""
    ends = [text.index(mark) + len(mark) for mark in stop if mark in text]
    return text[: min(ends)] if ends else text
