"""The search agent: a policy that can search, and its rollouts as agents of the scheduler.

What happens inside a rollout is in `agent/state.py`; how many run at once is in `agent/scheduler.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from holdfast.agent.calling import CALL, CallQueue
from holdfast.agent.protocol import SearchProtocol, render_prompt
from holdfast.agent.scheduler import Agent, ToolCall, ToolQueue, run_agents
from holdfast.agent.searching import SEARCH, RolloutStats, SearchQueue
from holdfast.agent.state import RolloutState
from holdfast.agent.tools import ToolProtocol
from holdfast.agent.trajectory import Search, Trajectory, Turn
from holdfast.base.errors import RetrievalError
from holdfast.base.retries import Retries
from holdfast.model.sampler.policy import Policy, Request
from holdfast.model.text.tokens import Tokenizer
from holdfast.retrieval.types import Retriever

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from holdfast.model.sampler.hf import HFPolicy

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One rollout to run."""

    id: str
    """Unique per rollout, also among the rollouts of one question."""
    example_id: str
    prompt: tuple[int, ...]
    seed: int
    """All randomness of the rollout: two tasks with equal prompt and seed sample the same tokens."""
    max_completion_tokens: int | None = None
    """Tokens after the prompt, observations included, if `max_total_tokens` of the protocol does not end it before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAgent:
    """A policy, a retriever, and the protocol between them.

    Change one with `dataclasses.replace`: `retriever=...`, `policy=agent.policy.with_sampling(...)`.
    """

    policy: HFPolicy
    retriever: Retriever
    protocol: SearchProtocol
    wrap: Callable[[Agent[Trajectory]], Agent[Trajectory]] | None = None
    """Applied to every rollout: a fault injection such as `lose_searches`."""
    retries: Retries = field(default_factory=Retries, compare=False, repr=False)
    """Of searches. An agent has one for all its runs, so a dead retriever is waited for once."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's tokenizer."""
        tokenizer: PreTrainedTokenizerBase = self.policy.tokenizer
        return tokenizer

    def evaluated(self, *, greedy: bool) -> SearchAgent:
        """The agent for evaluation: without fault injection, and decoding greedily or sampling untruncated at its
        temperature."""
        policy = self.policy.with_sampling(temperature=self.policy.temperature, greedy=greedy)
        return replace(self, policy=policy, wrap=None)

    def prompt(self, question: str) -> tuple[int, ...]:
        """Token ids of a question's prompt."""
        return tuple(render_prompt(question, self.protocol, self.tokenizer))

    def ask(self, question: str, *, seed: int = 0, on_turn: Callable[[Task, Turn], None] | None = None) -> Trajectory:
        """One rollout, unscored. `on_turn` is called with each turn as it ends."""
        task = Task(id="ask", example_id="ask", prompt=self.prompt(question), seed=seed)
        (trajectory,) = self.run([task], on_turn=on_turn)
        return trajectory

    def run(
        self,
        tasks: Sequence[Task],
        *,
        stats: RolloutStats | None = None,
        on_turn: Callable[[Task, Turn], None] | None = None,
    ) -> list[Trajectory]:
        """`run_rollouts` by this agent."""
        return run_rollouts(
            tasks,
            policy=self.policy,
            retriever=self.retriever,
            protocol=self.protocol,
            tokenizer=self.tokenizer,
            retries=self.retries,
            wrap=self.wrap,
            stats=stats,
            on_turn=on_turn,
        )


def run_rollouts(
    tasks: Sequence[Task],
    *,
    policy: Policy,
    retriever: Retriever,
    protocol: SearchProtocol,
    tokenizer: Tokenizer,
    retries: Retries | None = None,
    wrap: Callable[[Agent[Trajectory]], Agent[Trajectory]] | None = None,
    stats: RolloutStats | None = None,
    on_turn: Callable[[Task, Turn], None] | None = None,
) -> list[Trajectory]:
    """Run every task to its end; trajectories in task order.

    A rollout ends as `RolloutState` describes. It is `RETRIEVAL_FAILED` when a search still fails after its retries.

    Args:
        retries: of searches; None: `Retries()`.
        wrap: applied to every rollout, between it and the scheduler; see `lose_searches`.
        stats: counts and times are added to it.
        on_turn: called with each finished turn, including its observation, in the order they finish.

    Returns:
        Unscored trajectories. Their concatenated ids are exactly what the policy was given and sampled.
    """
    stats = stats or RolloutStats()
    agents = {task.id: search_agent(task, protocol, tokenizer, stats=stats, on_turn=on_turn) for task in tasks}
    if len(agents) < len(tasks):
        raise ValueError("two tasks have the same id; give each rollout of a question a different id")
    if wrap is not None:
        agents = {id: wrap(agent) for id, agent in agents.items()}
    with closing(SearchQueue(retriever, protocol.topk, retries=retries, stats=stats)) as queue:
        return run_agents(agents, policy=policy, tools={SEARCH: queue, **call_queue(protocol)})


def call_queue(protocol: SearchProtocol) -> dict[str, ToolQueue]:
    """The queue of the scheduler for the functions of a protocol, if it has any."""
    if not isinstance(protocol, ToolProtocol):
        return {}
    return {CALL: CallQueue(protocol.by_name.values(), protocol.tool_timeout)}


def search_agent(
    task: Task,
    protocol: SearchProtocol,
    tokenizer: Tokenizer,
    *,
    stats: RolloutStats | None = None,
    on_turn: Callable[[Task, Turn], None] | None = None,
) -> Agent[Trajectory]:
    """The rollout of a task as an agent. `stats` and `on_turn`: as in `run_rollouts`."""
    stats = stats or RolloutStats()
    if task.max_completion_tokens is not None:
        longest = min(protocol.max_total_tokens, len(task.prompt) + task.max_completion_tokens)
        protocol = replace(protocol, max_total_tokens=longest)
    state = RolloutState(task.prompt, protocol, tokenizer)
    while remaining := state.remaining_tokens():
        completion = yield Request(
            id=task.id, token_ids=tuple(state.context), max_new_tokens=remaining, stop=protocol.stop, seed=task.seed
        )
        action = state.take_turn(completion)
        if isinstance(action, Search):
            stats.searches += 1
            result = yield ToolCall(SEARCH, action.query)
            stats.failed_searches += isinstance(result, RetrievalError)
            state.take_hits(result)
        elif action is not None:
            state.take_result((yield ToolCall(CALL, (task.id, action))))
        if completion.error is None and on_turn is not None:
            on_turn(task, state.turns[-1])
    return state.trajectory(task.example_id)


def lose_searches(agent: Agent[T], probability: float) -> Agent[T]:
    """Fault injection: the agent, with some of its searches returning nothing.

    Which searches fail depends only on the seed of the last model call and the number of model calls. So the same seed
    loses the same searches, and what is sampled does not depend on whether searches are lost.
    """
    calls, seed, reply = 0, 0, None
    while True:
        try:
            call = agent.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        if isinstance(call, Request):
            calls, seed = calls + 1, call.seed
        elif call.tool == SEARCH and random.Random(f"{seed}-{calls}").random() < probability:
            reply = ()
            continue
        reply = yield call
