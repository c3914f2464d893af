"""A recipe as OpenEnv's resource sessions, in the process of the trainer: no server, no copy of passages over a wire.

factory = partial(SearchSessionFactory, "recipe.toml")
worker = HarnessRolloutWorker(harness_session_factory=factory, harness_adapter=MCPHarnessAdapter(), ...)
dataset = Dataset.from_list(factory().prompts())
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness import (
    RESERVED_TOOL_NAMES,
    HarnessRolloutResult,
    HarnessRunLimits,
    MCPHarnessAdapter,
    ModelStep,
    ModelStepResult,
    ResourceSession,
    ResourceSessionFactory,
    ToolResult,
    VerifyResult,
)

from holdfast.adapters.host_tasks import HostTasks, open_host_tasks
from holdfast.base.errors import ConfigError, DataError, RetrievalError
from holdfast.tasks.questions import Example


class SearchAdapter(MCPHarnessAdapter):
    """OpenEnv's loop of calls, with the arguments of earlier calls as objects. OpenEnv has them as texts, which a chat
    template quotes once more: the model would read other calls than it has written, and TRL would not train on those.
    """

    def run_white_box(
        self, model_step: ModelStep, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        """See `MCPHarnessAdapter`."""

        def step(messages: list[dict[str, Any]], tools: list[Tool], sampling: dict[str, Any]) -> ModelStepResult:
            return model_step([_with_objects(message) for message in messages], tools, sampling)

        return super().run_white_box(step, session, limits)


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [{"type": "function", "function": {**f, "arguments": json.loads(f["arguments"])}} for f in functions]
    return {**message, "tool_calls": calls} if calls else message


class SearchSession(ResourceSession):
    """One rollout of a question."""

    def __init__(self, tasks: HostTasks, example: Example, split: str) -> None:
        self._tasks, self._example = tasks, example
        self._tools = tasks.session(split)

    def initial_messages(self) -> list[dict[str, Any]]:
        """The user's message."""
        return [self._tasks.first_message(self._example)]

    def list_tools(self) -> list[Tool]:
        """What the model can call."""
        return [
            Tool(name=name, description=tool.description, input_schema=tool.takes)
            for name, tool in self._tools.tools.items()
        ]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """The result of a call. One that cannot be run gets the protocol's note; a failed search ends the rollout."""
        try:
            return ToolResult(data=self._tools.call(name, arguments))
        except TypeError as refused:
            return ToolResult(data=self._tasks.protocol.invalid_note, error=str(refused))
        except RetrievalError as failed:
            return ToolResult(data="", done=True, error=str(failed))

    def verify(self, transcript: list[dict[str, Any]], final_state: Any | None = None) -> VerifyResult:
        """The reward of the recipe; None after a failed search, which OpenEnv and TRL leave out."""
        scored = self._tasks.scored(transcript, self._tools, self._example.golden_answers)
        metrics = {**scored.reward_parts, "searches": scored.searches, "failed": scored.status.is_failure}
        return VerifyResult(env_reward=scored.reward, done=scored.answer is not None, metrics=metrics)

    def close(self) -> None:
        """Nothing is held."""


class SearchSessionFactory(ResourceSessionFactory[SearchSession]):
    """Sessions for the questions of a recipe, which is opened once in a process.

    Args:
        recipe: a recipe's file, or the name of a bundled one.
        overrides: settings as on a command line, such as `["--model.path", "Qwen/Qwen3-0.6B"]`.
        split: which of its questions.

    Raises `ConfigError` as `open_host_tasks` does, and for a tool of a name that OpenEnv keeps for itself.
    """

    def __init__(self, recipe: str, overrides: Sequence[str] = (), split: str = "train") -> None:
        self._tasks, self._split = open_host_tasks(recipe, tuple(overrides)), split
        if hidden := sorted(RESERVED_TOOL_NAMES & set(self._tasks.protocol.by_name)):
            raise ConfigError(f"OpenEnv keeps the tool name {hidden[0]!r} for itself; rename the function")
        self._asked = {self._tasks.first_message(e)["content"]: e for e in self._tasks.questions.splits[split]}

    def prompts(self) -> list[dict[str, Any]]:
        """The rows of a data set, each with its `prompt`, a conversation."""
        return [{"prompt": [{"role": "user", "content": asked}]} for asked in self._asked]

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> SearchSession:
        """A session for `task`, a prompt of `prompts`. Raises `DataError` for any other."""
        last: Any = task[-1] if isinstance(task, Sequence) and not isinstance(task, str) and task else task
        asked = last.get("content") if isinstance(last, Mapping) else last
        example = self._asked.get(asked) if isinstance(asked, str) else None
        if example is None:
            raise DataError(f"{str(task)[:100]!r} asks no question of this recipe; train on the rows of prompts()")
        return SearchSession(self._tasks, example, self._split)
