"""Conversations of the prompting methods, many at once: calls of the model and searches interleaved, as in `rollout`.

Token ids are made here, from the texts of a method. Nothing is kept for training, so what was said before is encoded
again with the next call; the cache of a local policy still serves what the two have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import RetrievalError, RolloutError
from holdfast.evals.methods import Ask, Conversation, Find, Outcome, Said
from holdfast.retrieval.types import Document, Hit
from holdfast.rollout.policy import Completion, Policy, Request
from holdfast.rollout.searching import RolloutStats, SearchDesk
from holdfast.search.bare import PLAIN
from holdfast.search.protocol import render_prompt
from holdfast.search.tokens import encode
from holdfast.trajectory import Status

Step = dict[str, Any]
"""`{"says": str}` or `{"searches": str, "hits": [id]}`: what a row keeps of a conversation."""


@dataclass(frozen=True, slots=True)
class Speech:
    """How texts become tokens, and how many a context may have."""

    tokenizer: Any
    chat_template: str
    positions: float
    """Most tokens of a context with its answer; infinite when nobody knows."""


@dataclass(slots=True)
class Talk:
    """One conversation under way."""

    id: str
    seed: int
    conversation: Conversation
    wants: Ask | Find | None = None
    steps: list[Step] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    """Contents of all passages that came back."""
    outcome: Outcome | None = None
    status: Status | None = None
    """None while it goes on."""
    error: str | None = None

    def go_on(self, news: Said | list[Hit] | None) -> None:
        """Hand over what was wanted; then `wants` is the next thing, or `status` is set."""
        try:
            self.wants = self.conversation.send(news)
        except StopIteration as end:
            self.outcome, self.wants = end.value, None
            self.status = Status.TRUNCATED if end.value.truncated else Status.OK

    def fail(self, status: Status, error: str) -> None:
        self.status, self.error, self.wants = status, error, None
        self.conversation.close()


def hold(
    talks: Sequence[Talk],
    *,
    policy: Policy,
    desk: SearchDesk | None,
    speech: Speech,
) -> None:
    """Take every conversation to its end, in place.

    One whose context outgrows the model, whose call fails or whose search fails ends as `ERROR` or `RETRIEVAL_FAILED`,
    with the reason. `desk` may be None for methods that never search.
    """
    asking: dict[str, Talk] = {}
    searching: dict[str, list[Talk]] = {}
    for talk in talks:
        talk.go_on(None)
    movable = list(talks)
    try:
        while movable or asking or searching:
            requests = []
            for talk in movable:
                if isinstance(talk.wants, Find):
                    searching.setdefault(talk.wants.query, []).append(talk)
                elif isinstance(talk.wants, Ask) and (request := _request(talk, talk.wants, speech)) is not None:
                    asking[talk.id] = talk
                    requests.append(request)
            policy.release([talk.id for talk in movable if talk.status is not None])
            policy.submit(requests)
            movable, stuck = [], True
            if asking:
                for completion in policy.poll():
                    stuck = False
                    talk = asking.pop(completion.id)
                    _hear(talk, completion)
                    movable.append(talk)
            if searching:
                assert desk is not None, "a method that never searches has searched"
                desk.ask(searching)
                if stuck and asking and not desk.busy:
                    raise RolloutError(f"the policy has nothing to do, but {len(asking)} requests are unanswered")
                for query, result in desk.collect(block=stuck):
                    for talk in searching.pop(query):
                        _receive(talk, query, result, speech.tokenizer)
                        movable.append(talk)
            elif stuck and asking:
                raise RolloutError(f"the policy has nothing to do, but {len(asking)} requests are unanswered")
    finally:
        policy.release([talk.id for talk in talks])


def search_desk(retriever: Any, topk: int, *, retries: int = 2, backoff_seconds: float = 0.5) -> SearchDesk:
    """A desk for one batch of conversations."""
    return SearchDesk(retriever, topk, retries=retries, backoff_seconds=backoff_seconds, stats=RolloutStats())


def prompt_ids(text: str, speech: Speech) -> list[int]:
    """Token ids of a user message, up to where the model's turn begins."""
    return render_prompt(text, PLAIN, speech.tokenizer, speech.chat_template)


def _request(talk: Talk, ask: Ask, speech: Speech) -> Request | None:
    ids = prompt_ids(ask.user, speech) + encode(speech.tokenizer, ask.begun)
    room = speech.positions - len(ids)
    if room < 1:
        talk.fail(Status.ERROR, f"a context of {len(ids)} tokens fills the model's {speech.positions:g}")
        return None
    most = int(min(ask.max_tokens, room))
    return Request(id=talk.id, token_ids=ids, max_new_tokens=most, stop=ask.stop, seed=talk.seed)


def _hear(talk: Talk, completion: Completion) -> None:
    if completion.error is not None:
        talk.fail(Status.ERROR, completion.error)
        return
    talk.steps.append({"says": completion.text})
    ask = talk.wants
    assert isinstance(ask, Ask)
    talk.go_on(Said(_to_stop(completion.text, ask.stop), completion.stop_reason))


def _receive(talk: Talk, query: str, result: list[Hit] | RetrievalError, tokenizer: Any) -> None:
    if isinstance(result, RetrievalError):
        talk.fail(Status.RETRIEVAL_FAILED, str(result))
        return
    talk.steps.append({"searches": query, "hits": [hit.document.id for hit in result]})
    talk.found += [hit.document.contents for hit in result]
    talk.go_on([Hit(_defused(hit.document, tokenizer), hit.score) for hit in result])


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
