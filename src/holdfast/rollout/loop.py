"""Many episodes at once: model turns and searches interleaved, without a barrier between turns.

What happens inside an episode is `rollout/episode.py`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import RetrievalError, RolloutError
from holdfast.retrieval.types import Retriever
from holdfast.rollout.episode import Episode
from holdfast.rollout.policy import Completion, Policy, Request
from holdfast.rollout.searching import RolloutStats, SearchDesk
from holdfast.search.protocol import SearchProtocol
from holdfast.trajectory import Trajectory, Turn

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


def run_rollouts(
    tasks: Sequence[Task],
    *,
    policy: Policy,
    retriever: Retriever,
    protocol: SearchProtocol,
    tokenizer: PreTrainedTokenizerBase,
    retries: int = 2,
    backoff_seconds: float = 0.5,
    patience: float = 0.0,
    drop: float = 0.0,
    stats: RolloutStats | None = None,
    on_turn: Callable[[Task, Turn], None] | None = None,
) -> list[Trajectory]:
    """Run every task to its end; trajectories in task order.

    An episode ends as `Episode` says; it is `RETRIEVAL_FAILED` when a search still fails after `retries` retries, with
    pauses that double from `backoff_seconds`; a server that cannot be reached is tried for `patience` seconds more.

    Args:
        drop: probability that a search finds nothing, whatever is asked; drawn from the task's seed, so that the same
            tasks have the same luck.
        stats: counts and times are added to it.
        on_turn: called with each finished turn, its observation included, in the order they finish.

    Returns:
        Unscored trajectories. Their concatenated ids are exactly what the policy was given and sampled.
    """
    if len({task.id for task in tasks}) < len(tasks):
        raise ValueError("two tasks have the same id, but samples of one question need an id each")
    run = _Run(policy, protocol, drop, stats or RolloutStats(), on_turn)
    desk = SearchDesk(
        retriever,
        protocol.topk,
        retries=retries,
        backoff_seconds=backoff_seconds,
        stats=run.stats,
        patience=patience,
    )
    episodes = [(task, Episode(task.prompt, protocol, tokenizer)) for task in tasks]
    try:
        run.to_completion(episodes, desk)
    finally:
        desk.close()
        policy.release([task.id for task in tasks])
    return [episode.trajectory(task.example_id) for task, episode in episodes]


_Running = tuple[Task, Episode]


@dataclass(slots=True)
class _Run:
    policy: Policy
    protocol: SearchProtocol
    drop: float
    stats: RolloutStats
    on_turn: Callable[[Task, Turn], None] | None

    def to_completion(self, episodes: list[_Running], desk: SearchDesk) -> None:
        decoding: dict[str, _Running] = {}
        searching: dict[str, list[_Running]] = {}
        movable = episodes
        while movable or decoding or searching:
            ended = [task.id for task, episode in movable if episode.status is not None]
            going = {task.id: (task, episode) for task, episode in movable if episode.status is None}
            decoding |= going
            self.policy.release(ended)
            self.policy.submit([self._request(*running) for running in going.values()])
            movable = []
            stuck = True
            if decoding:
                for completion in self._poll():
                    stuck = False
                    task, episode = decoding.pop(completion.id)
                    self.stats.tokens += len(completion.token_ids or ())
                    query = episode.take_turn(completion)
                    if query is None:
                        if completion.error is None:
                            self._finish_turn(task, episode)
                        movable.append((task, episode))
                        continue
                    self.stats.searches += 1
                    if self._is_dropped(task, episode):
                        episode.take_hits(())
                        self._finish_turn(task, episode)
                        movable.append((task, episode))
                    else:
                        searching.setdefault(query, []).append((task, episode))
            desk.ask(searching)
            if stuck and decoding and not desk.busy:
                raise RolloutError(f"the policy has nothing to do, but {len(decoding)} requests are unanswered")
            for query, result in desk.collect(block=stuck):
                for task, episode in searching.pop(query):
                    self.stats.failed_searches += isinstance(result, RetrievalError)
                    episode.take_hits(result)
                    self._finish_turn(task, episode)
                    movable.append((task, episode))

    def _is_dropped(self, task: Task, episode: Episode) -> bool:
        # A generator of its own: what is sampled must not depend on whether luck was asked.
        return self.drop > 0 and random.Random(f"{task.seed}-{len(episode.turns)}").random() < self.drop

    def _poll(self) -> list[Completion]:
        started = time.perf_counter()
        completions = self.policy.poll()
        self.stats.decode_seconds += time.perf_counter() - started
        return completions

    def _request(self, task: Task, episode: Episode) -> Request:
        return Request(
            id=task.id,
            token_ids=tuple(episode.context),
            max_new_tokens=episode.room(),
            stop=self.protocol.stop,
            seed=task.seed,
        )

    def _finish_turn(self, task: Task, episode: Episode) -> None:
        self.stats.cut_observations += episode.turns[-1].cut
        if self.on_turn is not None:
            self.on_turn(task, episode.turns[-1])
