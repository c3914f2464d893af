"""Many episodes at once: model turns and searches interleaved, without a barrier between turns.

Token in, token out: the context of an episode is its prompt, what was sampled, and the ids of the observations,
appended and never encoded again. Budgets end an episode as truncated; nothing is ever dropped from the left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast.errors import RetrievalError, RolloutError
from holdfast.retrieval.types import Hit, Retriever
from holdfast.rollout.policy import Completion, Policy, Request
from holdfast.rollout.searching import RolloutStats, SearchDesk
from holdfast.search.env import observation, token_span
from holdfast.search.protocol import SearchProtocol, answer_char_span, parse_action
from holdfast.search.tokens import encode
from holdfast.trajectory import Answer, Search, Status, Trajectory, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One episode to run."""

    id: str
    """Unique per episode: several samples of one question have several ids."""
    example_id: str
    prompt: tuple[int, ...]
    seed: int
    """All randomness of the episode; two tasks with equal prompt and seed sample the same tokens."""


@dataclass(slots=True, eq=False)
class _Episode:
    task: Task
    context: list[int]
    turns: list[Turn] = field(default_factory=list)
    status: Status | None = None
    """None while it runs."""

    def trajectory(self) -> Trajectory:
        assert self.status is not None, f"episode {self.task.id} never ended"
        return Trajectory(
            example_id=self.task.example_id,
            prompt=tuple(self.task.prompt),
            turns=tuple(self.turns),
            status=self.status,
        )


def run_rollouts(
    tasks: Sequence[Task],
    *,
    policy: Policy,
    retriever: Retriever,
    protocol: SearchProtocol,
    tokenizer: PreTrainedTokenizerBase,
    retries: int = 2,
    backoff_seconds: float = 0.5,
    stats: RolloutStats | None = None,
    on_turn: Callable[[Task, Turn], None] | None = None,
) -> list[Trajectory]:
    """Run every task to its end; trajectories in task order.

    How an episode ends: `OK` with an answer; `TRUNCATED` when its turns or tokens are used up (a search in the last
    turn included, whose result nobody could read); `RETRIEVAL_FAILED` when a search still fails after `retries`
    retries, with pauses that double from `backoff_seconds`; `ERROR` when its prompt alone fills `max_total_tokens`.

    Args:
        stats: counts and times are added to it.
        on_turn: called with each finished turn, its observation included, in the order they finish.

    Returns:
        Unscored trajectories. Their concatenated ids are exactly what the policy was given and sampled.
    """
    if len({task.id for task in tasks}) < len(tasks):
        raise ValueError("two tasks have the same id, but samples of one question need an id each")
    run = _Run(policy, protocol, tokenizer, stats or RolloutStats(), on_turn)
    desk = SearchDesk(retriever, protocol.topk, retries=retries, backoff_seconds=backoff_seconds, stats=run.stats)
    episodes = [_Episode(task, list(task.prompt)) for task in tasks]
    try:
        run.to_completion(episodes, desk)
    finally:
        desk.close()
        policy.release([task.id for task in tasks])
    return [episode.trajectory() for episode in episodes]


@dataclass(slots=True)
class _Run:
    policy: Policy
    protocol: SearchProtocol
    tokenizer: PreTrainedTokenizerBase
    stats: RolloutStats
    on_turn: Callable[[Task, Turn], None] | None

    def to_completion(self, episodes: list[_Episode], desk: SearchDesk) -> None:
        decoding: dict[str, _Episode] = {}
        searching: dict[str, list[_Episode]] = {}
        movable = episodes
        while movable or decoding or searching:
            requests = [request for episode in movable if (request := self._next_request(episode))]
            decoding.update((episode.task.id, episode) for episode in movable if episode.status is None)
            self.policy.release([episode.task.id for episode in movable if episode.status is not None])
            self.policy.submit(requests)
            movable = []
            stuck = True
            if decoding:
                for completion in self._poll():
                    stuck = False
                    episode = decoding.pop(completion.id)
                    query = self._take_turn(episode, completion)
                    if query is None:
                        movable.append(episode)
                    else:
                        searching.setdefault(query, []).append(episode)
                        self.stats.searches += 1
            desk.ask(searching)
            if stuck and decoding and not desk.busy:
                raise RolloutError(f"the policy has nothing to do, but {len(decoding)} requests are unanswered")
            for query, result in desk.collect(block=stuck):
                for episode in searching.pop(query):
                    self._take_hits(episode, result)
                    movable.append(episode)

    def _poll(self) -> list[Completion]:
        started = time.perf_counter()
        completions = self.policy.poll()
        self.stats.decode_seconds += time.perf_counter() - started
        return completions

    def _next_request(self, episode: _Episode) -> Request | None:
        """The episode's next turn; None when it has ended."""
        room = self.protocol.max_total_tokens - len(episode.context)
        if room < 1 and episode.status is None:
            episode.status = Status.ERROR  # only a prompt can do this: later on an episode ends before it is full
        if episode.status is not None:
            return None
        return Request(
            id=episode.task.id,
            token_ids=tuple(episode.context),
            max_new_tokens=min(self.protocol.max_turn_tokens, room),
            stop=self.protocol.stop,
            seed=episode.task.seed,
        )

    def _take_turn(self, episode: _Episode, completion: Completion) -> str | None:
        """Append the turn; the query if the episode must now wait for a search."""
        ids, text = completion.token_ids, completion.text
        action = parse_action(text, self.protocol)
        span = answer_char_span(text, self.protocol) if isinstance(action, Answer) else None
        turn = Turn(
            tokens=ids,
            logprobs=completion.logprobs,
            action=action,
            text=text,
            stop_reason=completion.stop_reason,
            answer_span=token_span(ids, span, self.tokenizer) if span and ids is not None else None,
            kept_mass=completion.kept_mass,
        )
        # A server that returns text only leaves no choice but to encode it; such an episode cannot be trained on.
        episode.context += encode(self.tokenizer, text) if ids is None else ids
        self.stats.tokens += len(ids or ())
        episode.turns.append(turn)
        if isinstance(action, Answer):
            self._end(episode, Status.OK)
            return None
        if len(episode.turns) >= self.protocol.max_turns or len(episode.context) >= self.protocol.max_total_tokens:
            self._end(episode, Status.TRUNCATED)
            return None
        if isinstance(action, Search):
            return action.query
        self._observe(episode, None)
        return None

    def _take_hits(self, episode: _Episode, result: list[Hit] | RetrievalError) -> None:
        if isinstance(result, RetrievalError):
            self.stats.failed_searches += 1
            self._end(episode, Status.RETRIEVAL_FAILED)
        else:
            self._observe(episode, result)

    def _observe(self, episode: _Episode, hits: list[Hit] | None) -> None:
        """Append the feedback if it leaves room for at least one more token; else the episode ends without it."""
        feedback = observation(hits, self.protocol, self.tokenizer)
        if len(episode.context) + len(feedback.token_ids) >= self.protocol.max_total_tokens:
            self._end(episode, Status.TRUNCATED)
            return
        self.stats.cut_observations += feedback.cut
        episode.context += feedback.token_ids
        episode.turns[-1] = replace(
            episode.turns[-1],
            observation=feedback.token_ids,
            observation_text=feedback.text,
            hits=tuple(hit.document.id for hit in hits or ()),
            cut=feedback.cut,
        )
        self._report(episode)

    def _end(self, episode: _Episode, status: Status) -> None:
        episode.status = status
        self._report(episode)

    def _report(self, episode: _Episode) -> None:
        if self.on_turn is not None:
            self.on_turn(episode.task, episode.turns[-1])
