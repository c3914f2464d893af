"""A verifiers v1 environment: the questions of a recipe, and its agent loop in the process of the environment.

Every model call goes through verifiers' interception server, which keeps ids, masks and log-probs. The messages that
come back are sent on as they came, so that each turn extends the last one. Where a renderer writes them anew in other
tokens, the rollout would become several samples: it fails instead (`renderer.py` prevents it). A rollout whose search
fails, fails too: its score would say nothing about the policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import httpx
import verifiers.v1 as vf
from pydantic import Field

from holdfast.adapters.host_tasks import HostTasks, open_host_tasks
from holdfast.adapters.tool_session import ToolSession
from holdfast.base.errors import RetrievalError
from holdfast.model.text.tokens import encode


class Question(vf.TaskData):
    """A question of a recipe, and where its tools come from."""

    split: str
    golden_answers: list[str]
    """Nobody sends them to the model."""
    recipe: str
    overrides: tuple[str, ...]

    def tasks(self) -> HostTasks:
        """The open recipe, one in a process."""
        return open_host_tasks(self.recipe, self.overrides)


class Scored(vf.State):
    """What the harness says of the rollout."""

    reward: float | None = None
    parts: dict[str, float] = Field(default_factory=dict)
    searches: int = 0


class SearchTask(vf.Task[Question, Scored]):
    """One question. Its reward is that of the recipe, as holdfast scores it."""

    @property
    def key(self) -> str:
        """The id of the question, unique in the recipe."""
        assert self.data.id is not None, "every question has an id"
        return self.data.id

    @vf.reward()
    async def reward(self, trace: vf.Trace) -> float:
        """The weighted sum of the recipe's parts. Raises `TypeError` with a harness that keeps none."""
        if trace.state.reward is None:
            raise TypeError("this task is scored by its own harness; set harness.id = 'holdfast-verifiers'")
        return float(trace.state.reward)

    @vf.metric
    async def parts(self, trace: vf.Trace) -> Mapping[str, float]:
        """Exact match, token F1, the other parts of the reward, and the number of searches."""
        return {**trace.state.parts, "searches": float(trace.state.searches)}


class SearchTasksetConfig(vf.TasksetConfig):
    """Settings under `env.taskset`."""

    recipe: str = ""
    """A recipe's file, the name of a bundled one, or the `config.toml` of a run. It must be set; verifiers reads the
    settings once without it."""
    overrides: list[str] = Field(default_factory=list)
    """Settings of the recipe, as on a command line: `["--model.path", "Qwen/Qwen3-0.6B"]`."""
    split: Literal["train", "dev", "test"] = "train"
    """Which of its questions."""


class SearchTaskset(vf.Taskset[SearchTask, SearchTasksetConfig]):
    """The questions of a recipe."""

    def load(self) -> Iterator[SearchTask]:
        """A task for each question of the split."""
        config = self.config
        tasks = open_host_tasks(config.recipe, tuple(config.overrides))
        for example in tasks.questions.splits[config.split]:
            data = Question(
                id=example.id,
                prompt=tasks.first_message(example)["content"],
                split=config.split,
                golden_answers=list(example.golden_answers),
                recipe=config.recipe,
                overrides=tuple(config.overrides),
            )
            yield SearchTask(data, config.task)


class SearchHarnessConfig(vf.HarnessConfig):
    """Settings under `env.agent.harness`: there are none of its own. Limits are the recipe's, in `[protocol]`."""


class SearchHarness(vf.Harness[SearchHarnessConfig]):
    """The agent loop of a recipe, in this process: no sandbox, no script, nothing to install."""

    NEEDS_CONTAINER = False
    EXECUTES_CODE = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Question,
    ) -> vf.ProgramResult:
        """One rollout. Raises what becomes a `HarnessError`: for a failed search, a failed model call, and a rollout
        that became several samples."""
        tasks = await asyncio.to_thread(data.tasks)
        session = tasks.session(data.split)
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(base_url=endpoint, headers=headers, timeout=None) as client:
            messages = await _conversation(client, ctx.model, str(data.prompt), tasks, session)
        if trace.num_branches > 1:
            raise ValueError(
                f"the rollout became {trace.num_branches} samples, because the renderer tokenized an earlier message "
                "differently from the sampled tokens. Use holdfast's renderer: name = 'custom', import_path = "
                "'holdfast.adapters.verifiers.renderer.ToolRenderer'"
            )
        scored = await asyncio.to_thread(tasks.scored, messages, session, data.golden_answers)
        trace.state.reward, trace.state.parts = scored.reward, scored.reward_parts
        trace.state.searches = scored.searches
        return vf.ProgramResult(0, "", "")


async def _conversation(
    client: httpx.AsyncClient, model: str, prompt: str, tasks: HostTasks, session: ToolSession
) -> Sequence[Mapping[str, Any]]:
    """The messages of a rollout; without the last one, if the model did not end it. Raises `RetrievalError`."""
    protocol = tasks.protocol
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    body = {"model": model, "tools": protocol.schemas, "max_tokens": protocol.max_turn_tokens}
    for turn in range(1, protocol.max_turns + 1):
        response = await client.post("/chat/completions", json={**body, "messages": messages})
        response.raise_for_status()
        answer = response.json()
        choice, used = answer["choices"][0], (answer.get("usage") or {}).get("total_tokens") or 0
        if choice["finish_reason"] == "length":
            break
        messages.append(choice["message"])
        calls = choice["message"].get("tool_calls") or ()
        if not calls or turn == protocol.max_turns:
            break
        results = [await asyncio.to_thread(_result, call["function"], tasks, session) for call in calls]
        if used + sum(len(encode(tasks.tokenizer, text)) for text in results) >= protocol.max_total_tokens:
            break
        for call, text in zip(calls, results, strict=True):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    return messages


def _result(function: Mapping[str, Any], tasks: HostTasks, session: ToolSession) -> str:
    try:
        return session.call(function["name"], function["arguments"])
    except TypeError:  # not a call that can be run
        return tasks.protocol.invalid_note
    except RetrievalError as error:
        raise RetrievalError(f"the search failed, so the rollout has no score: {error}") from error
