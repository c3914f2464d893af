"""An OpenEnv server of a recipe: a rollout is a WebSocket session, a step is a call of a tool or the answer.

    app = search_app("recipe.toml", max_concurrent_envs=256)
    uvicorn.run(app)  # or: uvicorn --factory my_module:my_app

Over plain HTTP, `POST /reset` and `POST /step` meet two different environments; use `GenericEnvClient`. Nothing that a
client can read has a golden answer. A search that fails ends the rollout, with the reason in `failure` and without a
reward: leave such a rollout out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from holdfast.adapters.host_tasks import HostTasks, open_host_tasks
from holdfast.adapters.tool_session import ToolSession
from holdfast.base.errors import DataError, RetrievalError
from holdfast.tasks.questions import Example

NAME = "holdfast"


class SearchAction(Action):
    """A call of a tool, or the answer."""

    tool: str | None = None
    """The tool's name."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    answer: str | None = None
    """The model's last message. It ends the rollout."""


class SearchObservation(Observation):
    """What the model reads, and how the rollout stands."""

    text: str = ""
    """After `reset` the user's message, then the result of a call."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """After `reset`: the JSON schemas of the tools, for the chat template."""
    error: str | None = None
    """Why the call could not be run. The model reads the protocol's note, and goes on."""
    failure: str | None = None
    """Why a search failed. The rollout has ended, and has no reward: it says nothing about the policy."""


class SearchEnvironment(Environment[SearchAction, SearchObservation, State]):
    """One rollout at a time of the questions of a recipe."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, tasks: HostTasks) -> None:
        super().__init__()
        self._tasks = tasks
        self._example: Example | None = None
        """None before the first rollout and after the end of one."""
        self._session: ToolSession
        self._messages: list[dict[str, Any]] = []
        self._turns = 0
        self._id: str | None = None

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str = "train",
        index: int | None = None,
        **_: Any,
    ) -> SearchObservation:
        """Begin a rollout of the question at `index` of a split; else of one that `seed` chooses, equal seeds the
        same."""
        if index is None:
            index = random.Random(seed).randrange(self.num_tasks(split))
        self._example = self._question(split, index)
        self._session, self._messages, self._turns = self._tasks.session(split), [], 0
        self._id = episode_id
        asked = self._tasks.first_message(self._example)["content"]
        return SearchObservation(text=asked, tools=self._tasks.protocol.schemas)

    def step(self, action: SearchAction, timeout_s: float | None = None, **_: Any) -> SearchObservation:
        """Run a call, or end the rollout with its answer. `protocol.max_turns` steps end it too.

        Raises `DataError` before `reset`, after the end of a rollout, and for an action that is both or neither.
        """
        if (action.tool is None) == (action.answer is None):
            # OpenEnv 0.10 ends a session when a validator of the action raises.
            raise DataError("an action is either a tool, with its arguments, or an answer")
        if self._example is None:
            raise DataError("this rollout has ended, or none was begun: call reset first")
        self._turns += 1
        if action.answer is not None:
            self._messages.append({"role": "assistant", "content": action.answer})
            return self._ended()
        function = {"name": action.tool, "arguments": action.arguments}
        self._messages.append({"role": "assistant", "tool_calls": [{"type": "function", "function": function}]})
        if self._turns >= self._tasks.protocol.max_turns:
            return self._ended()
        error = None
        try:
            text = self._session.call(str(action.tool), action.arguments)
        except TypeError as refused:
            text, error = self._tasks.protocol.invalid_note, str(refused)
        except RetrievalError as failed:
            self._example = None
            return SearchObservation(done=True, failure=str(failed))
        self._messages.append({"role": "tool", "content": text})
        return SearchObservation(text=text, error=error)

    def _ended(self) -> SearchObservation:
        assert self._example is not None, "a rollout ends once"
        scored = self._tasks.scored(self._messages, self._session, self._example.golden_answers)
        self._example = None
        return SearchObservation(done=True, reward=scored.reward, metadata={"parts": scored.reward_parts})

    @property
    def state(self) -> State:
        """How far the rollout is."""
        return State(episode_id=self._id, step_count=self._turns)

    # ---- OpenEnv's TaskProvider

    def list_splits(self) -> list[str]:
        """The splits that have questions."""
        return [split for split, questions in self._tasks.questions.splits.items() if questions]

    def num_tasks(self, split: str) -> int:
        """Number of questions. Raises `DataError` for a split that has none."""
        if split not in self.list_splits():
            raise DataError(f"there is no split {split!r}; there are {', '.join(self.list_splits())}")
        return len(self._tasks.questions.splits[split])

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """A question, without its golden answers."""
        example = self._question(split, index)
        return {"id": example.id, "index": index, "question": example.question}

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """The first thousand questions of a split."""
        return self.get_task_range(split, stop=1000)

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """The questions of a slice."""
        return [self.get_task(split, index) for index in range(self.num_tasks(split))[start:stop]]

    def _question(self, split: str, index: int) -> Example:
        count = self.num_tasks(split)
        if not 0 <= index < count:
            raise IndexError(f"index = {index}, but split {split!r} has the questions 0 to {count - 1}")
        return self._tasks.questions.splits[split][index]


def search_app(recipe: str, overrides: Sequence[str] = (), *, max_concurrent_envs: int = 64) -> Any:
    """The FastAPI application of a recipe, with overrides as on a command line. Its index is loaded once.

    Args:
        max_concurrent_envs: rollouts at once. OpenEnv refuses one more; it does not wait.

    Raises `ConfigError` as `open_host_tasks` does.
    """
    tasks = open_host_tasks(recipe, tuple(overrides))
    return create_fastapi_app(
        lambda: SearchEnvironment(tasks),
        SearchAction,
        SearchObservation,
        max_concurrent_envs=max_concurrent_envs,
        env_name=NAME,
    )
