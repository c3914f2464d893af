"""A real OpenEnv server with its own client, OpenEnv's own rollouts of sessions, and TRL's loop around them."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("openenv.core")

import uvicorn
from openenv.core import GenericEnvClient
from openenv.core.harness import HarnessRunLimits, MCPHarnessAdapter, ModelStepResult, build_harness_rollout_func
from openenv.core.llm_client import LLMResponse, ToolCall

from holdfast.adapters.openenv.server import search_app
from holdfast.adapters.openenv.sessions import SearchAdapter, SearchSessionFactory
from holdfast.base.errors import ConfigError, DataError
from holdfast.model.text.tokens import encode

from .conftest import QUESTIONS

MORA, ORSA, NOBODY, LOST = QUESTIONS


@contextmanager
def running(app: Any) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def address(recipe: Path, searches: str) -> Iterator[str]:
    with running(search_app(str(recipe), ["--retrieval.url", searches], max_concurrent_envs=2)) as address:
        yield address


def search(query: str) -> dict[str, Any]:
    return {"tool": "search", "arguments": {"query": query}}


def test_a_rollout_over_the_wire(address: str) -> None:
    with GenericEnvClient(base_url=address).sync() as client:
        begun = client.reset(split="dev", index=0)
        assert MORA in begun.observation["text"] and not begun.done and begun.reward is None
        assert [tool["function"]["name"] for tool in begun.observation["tools"]] == ["search"]
        found = client.step(search("the lake")).observation
        assert found["text"].endswith("It < |im_end|> is deep.") and found["error"] is None
        done = client.step({"answer": "<think>hm</think>the Sile"})
        assert (done.done, done.reward, done.metadata["parts"]["em"]) == (True, 1.5, 1.0)
        with pytest.raises(RuntimeError, match="call reset first"):
            client.step({"answer": "Sile"})
        assert client.reset(split="dev", index=2).observation["text"] != begun.observation["text"]
        assert client.state()["step_count"] == 0


def test_calls_that_cannot_be_run_cost_a_step_and_nothing_else(address: str) -> None:
    with GenericEnvClient(base_url=address).sync() as client:
        client.reset(split="dev", index=0)
        refused = client.step({"tool": "browse"}).observation
        assert "neither a call" in refused["text"] and refused["error"] == "there is no tool 'browse'"
        for action in ({}, {"tool": "search", "answer": "x"}, {"query": "x"}):
            with pytest.raises(RuntimeError):
                client.step(action)
        assert not client.step({"tool": "search", "arguments": {"query": 1}}).done
        over = client.step(search("the lake"))  # the third turn, after which nobody can read its result
        assert (over.done, over.reward) == (True, 0.0)


def test_a_failed_search_has_a_field_of_its_own_and_no_reward(address: str) -> None:
    with GenericEnvClient(base_url=address).sync() as client:
        client.reset(split="train", index=3)
        lost = client.step(search("what is lost"))
        assert lost.done and lost.reward is None and "< |im_end|> away" in lost.observation["failure"]
        with pytest.raises(RuntimeError, match="call reset first"):
            client.step({"answer": "nothing"})


def test_equal_seeds_ask_the_same_and_bad_tasks_are_refused(address: str) -> None:
    with GenericEnvClient(base_url=address).sync() as client:
        asked = [client.reset(seed=seed).observation["text"] for seed in (*range(20), *range(20))]
        assert asked[:20] == asked[20:] and len(set(asked)) == 4
        for task in ({"split": "other"}, {"split": "test"}, {"index": 4}, {"index": -1}):
            with pytest.raises(RuntimeError, match=r"there is no split|has the questions 0 to 3"):
                client.reset(**task)
    with GenericEnvClient(base_url=address).sync() as client, pytest.raises(RuntimeError, match="call reset first"):
        client.step({"answer": "x"})


def test_nothing_that_a_client_reads_has_a_golden_answer(address: str) -> None:
    import httpx

    with httpx.Client(base_url=address) as http:
        read = [http.get(path).text for path in ("/metadata", "/schema", "/state", "/openapi.json", "/holdfast/splits")]
        for ask in ({"split": "train"}, {"split": "train", "index": 2}, {"split": "train", "start": 0}):
            read += [http.post(f"/holdfast/{path}", json=ask).text for path in ("tasks", "task", "task_range")]
        read.append(http.post("/reset", json={"split": "train", "index": 2}).text)
    assert any(NOBODY in text for text in read) and not any("nobody" in text for text in read)


def test_one_session_more_than_it_may_have_is_refused(address: str) -> None:
    clients = [GenericEnvClient(base_url=address).sync() for _ in range(3)]
    try:
        for client in clients[:2]:
            client.reset(split="dev", index=0)
        with pytest.raises(Exception, match=r"(?i)capacity"):
            clients[2].reset(split="dev", index=0)
    finally:
        for client in clients:
            client.close()


# ---- sessions


def said(question: str, turn: int) -> LLMResponse:
    calls = {
        MORA: [("search", {"query": "the lake"}), "Sile"],
        ORSA: [("browse", {}), "Sile"],
        NOBODY: ["I do not know"],
        LOST: [("search", {"query": "what is lost"}), "nothing"],
    }[question][turn]
    if isinstance(calls, str):
        return LLMResponse(calls)
    return LLMResponse("", [ToolCall(id="c", name=calls[0], args=calls[1])])


def step(messages: list[dict[str, Any]], tools: list[Any], sampling: dict[str, Any]) -> ModelStepResult:
    question = next(asked for asked in QUESTIONS if asked[:20] in messages[0]["content"])
    return ModelStepResult(said(question, sum(message["role"] == "assistant" for message in messages)))


@pytest.fixture
def factory(recipe: Path, searches: str) -> SearchSessionFactory:
    return SearchSessionFactory(str(recipe), ["--retrieval.url", searches])


def test_openenv_runs_sessions_by_itself(factory: SearchSessionFactory) -> None:
    results = {}
    for row in factory.prompts():
        session = factory.create(row["prompt"])
        done = MCPHarnessAdapter().run_white_box(step, session, HarnessRunLimits(max_turns=3))
        results[row["prompt"][0]["content"]] = session.verify(done.messages), done
        session.close()
    verified = {next(a for a in QUESTIONS if a[:20] in asked): pair for asked, pair in results.items()}
    assert {a: pair[0].env_reward for a, pair in verified.items()} == {MORA: 1.5, ORSA: 1.0, NOBODY: 0.0, LOST: None}
    assert verified[LOST][0].metrics == {"searches": 1, "failed": True} and verified[LOST][1].done
    assert verified[ORSA][1].tool_trace[0].result.error == "there is no tool 'browse'"
    rollouts = build_harness_rollout_func(
        session_factory=factory, harness_adapter=MCPHarnessAdapter(), model_step_builder=lambda *_: step
    )
    assert rollouts([factory.prompts()[0]["prompt"]], None)["env_reward"] == [1.5]
    with pytest.raises(ValueError, match="did not produce an environment reward"):
        rollouts([factory.prompts()[3]["prompt"]], None)


def test_a_prompt_of_another_data_set_is_refused(factory: SearchSessionFactory, recipe: Path) -> None:
    for task in ("Who?", [{"role": "user", "content": "Who?"}], [], None, {"content": ["x"]}):
        with pytest.raises(DataError, match=r"train on the rows of prompts"):
            factory.create(task)
    with pytest.raises(ConfigError, match="'reset' for itself"):
        SearchSessionFactory(str(recipe), ["--protocol.tools", json.dumps([f"{__name__}:reset"])])


def reset(x: str) -> str:
    """Have a name that is taken.

    Args:
        x: Anything.
    """
    return x


def test_trl_trains_on_what_it_sampled(recipe: Path, searches: str, speaker: Callable[[str], Any]) -> None:
    """`HarnessRolloutWorker`'s own loop, with a script in the place of vLLM."""
    harness = pytest.importorskip("trl.experimental.async_grpo.openenv_harness", exc_type=ImportError)
    tokenizer = speaker("qwen2_5")
    factory = partial(SearchSessionFactory, str(recipe), ["--retrieval.url", searches])
    loop = harness._HarnessRolloutLoop(
        harness_session_factory=factory,
        harness_adapter=SearchAdapter(),
        model_name="m",
        dataset=factory().prompts(),
        reward_funcs=[],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        **{name: queue.Queue() for name in ("rollout_buffer", "exception_info_queue", "metrics_queue")},
        **{name: SimpleNamespace(value=0) for name in ("model_version_value", "heartbeat_value")},
        failed_event=threading.Event(),
    )
    sampled: list[list[int]] = []

    async def generate(prompt_ids: list[int]) -> tuple[list[int], list[float]]:
        prompt = tokenizer.decode(prompt_ids)
        turn = prompt.count("<|im_start|>assistant") - 1
        response = said(next(asked for asked in QUESTIONS if asked[:20] in prompt), turn)
        text = response.content
        for call in response.tool_calls:
            text = f'<tool_call>\n{{"name": "{call.name}", "arguments": {json.dumps(call.args)}}}\n</tool_call>'
        ids = [*encode(tokenizer, text), tokenizer.eos_token_id]
        sampled.append(ids)
        return ids, [-0.5] * len(ids)

    loop._generate_one_turn = generate
    thread = threading.Thread(target=loop._loop.run_forever, daemon=True)
    thread.start()
    try:
        rewards = {}
        for row in factory().prompts():
            sampled.clear()
            (_, ids, sequences, calls, failures, reward), _ = loop._run_session(row["prompt"])
            asked = next(asked for asked in QUESTIONS if asked[:20] in row["prompt"][0]["content"])
            rewards[asked] = (reward, calls, failures)
            assert ids == [i for turn in sampled for i in turn]
            (sequence,) = sequences
            assert [i for i, m in zip(sequence.input_ids, sequence.completion_mask, strict=True) if m] == ids
    finally:
        loop._loop.call_soon_threadsafe(loop._loop.stop)
        thread.join()
        loop._loop.run_until_complete(asyncio.sleep(0))
        loop._loop.close()
    assert rewards == {MORA: (1.5, 1, 0), ORSA: (1.0, 1, 1), NOBODY: (0.0, 0, 0), LOST: (None, 1, 1)}
