"""What a recipe trains on, for a host that holds the conversation: questions, tools, passages, rewards. No torch.

tasks = open_host_tasks("recipe.toml", ["--protocol.preset", "tools"])
session = tasks.session("train")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any

from holdfast.adapters.tool_session import ToolSession, first_message, rollout_of
from holdfast.agent.rewards import score_trajectory
from holdfast.agent.searching import search_with_retries
from holdfast.agent.tools import NATIVE, ToolProtocol
from holdfast.agent.trajectory import Trajectory
from holdfast.base.errors import RetrievalError, raise_all
from holdfast.base.retries import PATIENCE, Retries
from holdfast.model.hub import load_tokenizer
from holdfast.recipe import load
from holdfast.recipe.config import Config, code_errors
from holdfast.recipe.loading import find_recipe
from holdfast.retrieval.types import Hit
from holdfast.tasks.opening import Retrievers, load_protocol, open_retrievers, open_tasks
from holdfast.tasks.questions import Example
from holdfast.tasks.task_set import Questions


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTasks:
    """An open recipe. Threads may share it."""

    protocol: ToolProtocol
    questions: Questions
    retrievers: Retrievers
    tokenizer: Any
    """That of the recipe's model, which says what spells a control token."""
    weights: Mapping[str, float]
    _retries: Retries = field(default_factory=lambda: Retries(patience=PATIENCE))
    """Of searches. All rollouts share it, so a dead server is waited for once."""
    _lock: Lock = field(default_factory=Lock)

    def first_message(self, example: Example) -> dict[str, str]:
        """The user's message that asks a question."""
        return first_message(example.question, self.protocol, self.tokenizer)

    def session(self, split: str) -> ToolSession:
        """The tools of one rollout of a question of `split`."""
        retriever = self.retrievers.train if split == "train" else self.retrievers.eval

        def find(query: str) -> Sequence[Hit]:
            (result,), _ = search_with_retries(retriever, [query], self.protocol.topk, self._retries)
            if isinstance(result, RetrievalError):
                raise result
            return result

        def search(query: str) -> Sequence[Hit]:
            if not retriever.in_process:
                return find(query)
            with self._lock:  # an encoder of queries works for one thread at a time
                return find(query)

        return ToolSession(self.protocol, search, self.tokenizer)

    def scored(self, messages: Sequence[Mapping[str, Any]], session: ToolSession, golds: Sequence[str]) -> Trajectory:
        """The rollout of these messages with its reward: None if a search failed."""
        return score_trajectory(rollout_of(messages, session), golds, self.weights)


@cache
def open_host_tasks(recipe: str, overrides: tuple[str, ...] = ()) -> HostTasks:
    """The tasks of a recipe, with overrides as on a command line, opened once in a process.

    Raises `ConfigError` for a recipe that such a host cannot run: one without tool calls, with a judge, or
    with faults.
    """
    config = load(find_recipe(recipe), list(overrides))
    raise_all("this recipe cannot run in another trainer", _problems(config), where=recipe)
    protocol, tasks = load_protocol(config), open_tasks(config)
    assert isinstance(protocol, ToolProtocol)
    return HostTasks(
        protocol=protocol,
        questions=tasks.questions(),
        retrievers=open_retrievers(config, tasks),
        tokenizer=load_tokenizer(config.model.path, config.model),
        weights={name: weight for name, weight in config.reward.weights().items() if weight},
    )


def _problems(config: Config) -> Iterator[str]:
    """What of a recipe needs the conversation in our own hands."""
    if config.protocol.preset != NATIVE.name:
        yield (
            f"protocol.preset = {config.protocol.preset!r} reads tags in one long message, but this host has messages "
            "and tool calls. Set protocol.preset = 'tools'"
        )
    if config.reward.judge.weight:
        yield (
            f"reward.judge.weight = {config.reward.judge.weight:g}: only holdfast's own trainer asks a judge. Set it "
            "to 0, and give the host a judge of its own"
        )
    if config.faults.search_failure_rate:
        yield (
            f"faults.search_failure_rate = {config.faults.search_failure_rate:g}: searches are lost only in holdfast's "
            "own loop. Leave it out"
        )
    yield from code_errors(config)
