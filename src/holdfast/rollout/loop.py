"""Rollouts of the search agent: its episodes as agents of the scheduler.

What happens inside an episode is `rollout/episode.py`; how many run at once is `rollout/scheduler.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import RetrievalError
from holdfast.retrieval.types import Retriever
from holdfast.rollout.episode import Episode
from holdfast.rollout.policy import Policy
from holdfast.rollout.scheduler import Agent, ModelCall, ToolCall, run_agents
from holdfast.rollout.searching import SEARCH, RolloutStats, SearchQueue
from holdfast.search.protocol import SearchProtocol
from holdfast.trajectory import Trajectory, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")


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
    wrap: Callable[[Agent[Trajectory]], Agent[Trajectory]] | None = None,
    stats: RolloutStats | None = None,
    on_turn: Callable[[Task, Turn], None] | None = None,
) -> list[Trajectory]:
    """Run every task to its end; trajectories in task order.

    An episode ends as `Episode` says; it is `RETRIEVAL_FAILED` when a search still fails after `retries` retries, with
    pauses that double from `backoff_seconds`; a server that cannot be reached is tried for `patience` seconds more.

    Args:
        wrap: put around every episode, between it and the scheduler; see `lose_searches`.
        stats: counts and times are added to it.
        on_turn: called with each finished turn, its observation included, in the order they finish.

    Returns:
        Unscored trajectories. Their concatenated ids are exactly what the policy was given and sampled.
    """
    stats = stats or RolloutStats()
    agents = {task.id: search_agent(task, protocol, tokenizer, stats=stats, on_turn=on_turn) for task in tasks}
    if len(agents) < len(tasks):
        raise ValueError("two tasks have the same id, but samples of one question need an id each")
    if wrap is not None:
        agents = {id: wrap(agent) for id, agent in agents.items()}
    queue = SearchQueue(
        retriever, protocol.topk, retries=retries, backoff_seconds=backoff_seconds, patience=patience, stats=stats
    )
    with closing(queue):
        return run_agents(agents, policy=policy, tools={SEARCH: queue}, usage=stats)


def search_agent(
    task: Task,
    protocol: SearchProtocol,
    tokenizer: PreTrainedTokenizerBase,
    *,
    stats: RolloutStats | None = None,
    on_turn: Callable[[Task, Turn], None] | None = None,
) -> Agent[Trajectory]:
    """The episode of a task as an agent. `stats` and `on_turn` are those of `run_rollouts`."""
    stats = stats or RolloutStats()
    episode = Episode(task.prompt, protocol, tokenizer)
    while room := episode.room():
        completion = yield ModelCall(tuple(episode.context), room, protocol.stop, task.seed)
        query = episode.take_turn(completion)
        if query is not None:
            stats.searches += 1
            result = yield ToolCall(SEARCH, query)
            stats.failed_searches += isinstance(result, RetrievalError)
            episode.take_hits(result)
        if completion.error is None:
            stats.cut_observations += episode.turns[-1].cut
            if on_turn is not None:
                on_turn(task, episode.turns[-1])
    return episode.trajectory(task.example_id)


def lose_searches(agent: Agent[T], probability: float) -> Agent[T]:
    """Fault injection: the agent, some of whose searches find nothing, whatever it asks.

    Which ones is drawn from the seed of its last model call and the number of these calls, so that an agent with the
    same seed has the same luck, and what is sampled does not depend on whether searches are lost.
    """
    calls, seed, reply = 0, 0, None
    while True:
        try:
            call = agent.send(reply)
        except StopIteration as end:
            return end.value
        if isinstance(call, ModelCall):
            calls, seed = calls + 1, call.seed
        elif call.tool == SEARCH and random.Random(f"{seed}-{calls}").random() < probability:
            reply = ()
            continue
        reply = yield call
