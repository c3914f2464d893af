"""The agent loop in verl's own worker: a scripted token server, a BM25 retriever over HTTP, masks token by token."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")
pytest.importorskip("fastapi", reason="verl's agent loops need cachetools, uvicorn and fastapi")

import numpy as np
import torch
from tensordict import TensorDict
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.workers.rollout.replica import TokenOutput

from holdfast.adapters.verl.agent import to_completion
from holdfast.adapters.verl.check import EXAMPLE, compose
from holdfast.agent.protocol import CLEAN
from holdfast.base.errors import ConfigError
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Document

Script = dict[str, list[str]]

DOCUMENTS = [
    Document("a", '"Orsa"\nOrsa is a town by the lake Mirn.'),
    Document("b", '"Mirn"\nThe lake Mirn is deep.'),
    Document("c", '"Elk"\nAn animal.'),
]
QUESTION = "Which lake is Orsa at?"
SEARCH, ANSWER = "<think> hm </think>\n<search> Orsa lake </search>\n\n", "<answer> Mirn </answer>"


class TokenServer:
    """Says what the script has for the question in the prompt, token by token, with log-probs -0.01, -0.02, …"""

    def __init__(self, tokenizer: Any, script: Script, *, logprobs: bool = True, stops: bool = True) -> None:
        self.tokenizer, self.logprobs, self.stops = tokenizer, logprobs, stops
        self.script = {question: list(turns) for question, turns in script.items()}
        self.calls: list[tuple[str, list[int], dict[str, Any]]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        self.calls.append((request_id, list(prompt_ids), dict(sampling_params)))
        text = self.tokenizer.decode(prompt_ids)
        question = next(q for q in self.script if q in text)
        said = self.script[question].pop(0)
        if said == "ABORT":
            return TokenOutput(token_ids=[], stop_reason="aborted")
        ids = self.tokenizer(said, add_special_tokens=False)["input_ids"]
        limit = sampling_params.pop("max_tokens")  # servers take out what they have read
        sampling_params.pop("logprobs")
        ids = ids[:limit] if self.stops else ids
        logprobs = [-0.01 * (i + 1) for i in range(len(ids))] if self.logprobs else None
        step = len(self.calls)
        return TokenOutput(
            token_ids=ids,
            log_probs=logprobs,
            stop_reason="completed",
            num_preempted=1,
            extra_fields={"global_steps": step, "min_global_steps": step, "max_global_steps": step},
        )


@pytest.fixture
def make_worker(model_folder: Path, tmp_path: Path, retrieve_server: Callable[..., Any]) -> Callable[..., Any]:
    """make_worker(script, topk=2, …) -> (worker, token server, retrieve server); further arguments go to the YAML."""

    def make(
        script: Script, *, overrides: tuple[str, ...] = (), server: dict[str, Any] | None = None, **settings: Any
    ) -> tuple[Any, TokenServer, Any]:
        bm25 = retrieve_server(BM25Retriever.build(DOCUMENTS))
        loop = {
            "name": "holdfast_search",
            "_target_": "holdfast.adapters.verl_agent.SearchAgentLoop",
            "retriever": bm25.url,
            "topk": 2,
            "max_turns": 3,
            "retries": 0,
            **settings,
        }
        path = tmp_path / "agent.yaml"
        path.write_text(json.dumps([loop]))  # YAML contains JSON
        rollout = "actor_rollout_ref.rollout"
        config = compose(
            [
                *EXAMPLE,
                f"actor_rollout_ref.model.path={model_folder}",
                f"{rollout}.name=vllm",
                f"{rollout}.prompt_length=120",
                f"{rollout}.response_length=220",
                f"{rollout}.agent.default_agent_loop=holdfast_search",
                f"{rollout}.agent.agent_loop_config_path={path}",
                *overrides,
            ]
        )
        worker = AgentLoopWorker(config, llm_client=None)
        worker.llm_client = TokenServer(worker.tokenizer, script, **(server or {}))
        return worker, worker.llm_client, bm25

    return make


def rows(*questions: str, truth: Any = None, **columns: Any) -> DataProto:
    count = len(questions)
    golds = {"style": "rule", "ground_truth": truth if truth is not None else {"target": np.array(["Mirn"])}}
    own = {
        "raw_prompt": [[{"role": "user", "content": question}] for question in questions],
        "reward_model": [golds] * count,
        "index": list(range(count)),
        **{key: [value] * count for key, value in columns.items()},
    }
    arrays = {}
    for key, values in own.items():
        arrays[key] = np.empty(count, dtype=object)
        arrays[key][:] = values
    batch = TensorDict({"dummy_tensor": torch.zeros(count, 1)}, batch_size=[count])
    return DataProto(batch=batch, non_tensor_batch=arrays, meta_info={"global_steps": 1})


def sequences(worker: Any, batch: DataProto) -> DataProto:
    return asyncio.run(worker.generate_sequences(batch))


def one(worker: Any, question: str = QUESTION, **columns: Any) -> Any:
    """What the loop returns for a row, as verl's current trainer calls it: with a session's number."""

    async def call() -> Any:
        from hydra.utils import instantiate
        from verl.experimental.agent_loop.agent_loop import (
            AgentLoopBase,
            DictConfigWrap,
            ToolListWrap,
            _agent_loop_registry,
        )

        host = {
            "trainer_config": DictConfigWrap(worker.config),
            "server_manager": worker.llm_client,
            "tokenizer": worker.tokenizer,
            "processor": None,
            "dataset_cls": worker.dataset_cls,
            "data_config": DictConfigWrap(worker.config.data),
            "tools": ToolListWrap([]),
        }
        if "hf_model_type" in inspect.signature(AgentLoopBase.__init__).parameters:  # since verl 0.9
            host["hf_model_type"] = "qwen2"
        loop = instantiate(_agent_loop_registry["holdfast_search"], **host)
        row = {name: values[0] for name, values in rows(question, **columns).non_tensor_batch.items()}
        return await loop.run({"temperature": 1.0, "logprobs": True}, session_id=0, **row)

    return asyncio.run(call())


def test_masks_token_by_token(make_worker: Callable[..., Any]) -> None:
    worker, server, bm25 = make_worker({QUESTION: [SEARCH, ANSWER]})
    out = sequences(worker, rows(QUESTION))
    encode = lambda text: worker.tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    prompt = encode(f"user: {QUESTION}\nassistant: ")
    passages = "Doc 1(Title: Orsa) Orsa is a town by the lake Mirn.\nDoc 2(Title: Mirn) The lake Mirn is deep."
    first, last = encode(SEARCH), encode(ANSWER)
    feedback = [*encode("\n\n<information>"), *encode(passages), *encode("</information>\n\n")]
    response = [*first, *feedback, *last]
    mask = [1] * len(first) + [0] * len(feedback) + [1] * len(last)
    logprobs = [-0.01 * (i + 1) for i in range(len(first))] + [0.0] * len(feedback)
    logprobs += [-0.01 * (i + 1) for i in range(len(last))]

    rest = 220 - len(response)
    assert out.batch["responses"][0].tolist() == response + [0] * rest
    assert out.batch["response_mask"][0].tolist() == mask + [0] * rest
    assert out.batch["rollout_log_probs"][0].tolist() == pytest.approx(logprobs + [0.0] * rest)
    assert out.batch["prompts"][0].tolist() == [0] * (120 - len(prompt)) + prompt
    assert out.batch["rm_scores"][0].nonzero().tolist() == [[len(response) - 1]]
    assert out.batch["rm_scores"][0].sum() == 1.0

    fields = {key: values[0] for key, values in out.non_tensor_batch.items()}
    assert fields["action_ids"] == [1] * len(first) + [0] * len(feedback) + [2] * len(last)
    start, end = fields["answer_span"]
    assert worker.tokenizer.decode(response[start:end]) == ANSWER
    assert (fields["answer"], fields["searches"], fields["status"]) == ("Mirn", 1, "ok")
    assert (fields["em"], fields["f1"], fields["failed"], fields["__num_turns__"]) == (1.0, 1.0, 0.0, 4)
    assert (fields["min_global_steps"], fields["max_global_steps"]) == (1, 2)

    # token in, token out: the second request is the first with what was sampled and what came back behind it
    (id1, sent1, params1), (id2, sent2, params2) = server.calls
    assert sent1 == prompt and sent2 == [*prompt, *first, *feedback] and id1 == id2
    assert params1["stop"] == ["</search>", "</answer>"] and params1["max_tokens"] == 220
    assert params2["max_tokens"] == 220 - len(first) - len(feedback)
    assert params2 | {"max_tokens": 220} == params1
    assert (params1["temperature"], params1["top_p"]) == (1.0, 1)
    assert params1["logprobs"] is worker.config.actor_rollout_ref.rollout.calculate_log_probs
    assert [request["queries"] for request in bm25.requests] == [["Orsa lake"]]


def test_an_end_token_ends_the_turn_and_an_invalid_turn_gets_a_note(make_worker: Callable[..., Any]) -> None:
    worker, _, _ = make_worker({QUESTION: ["I give up<|end|>", ANSWER]})
    output = one(worker)
    said = worker.tokenizer.decode(output.response_ids)
    assert said == f"I give up<|end|>\n\n{CLEAN.invalid_note}\n\n{ANSWER}"
    sampled = [i for i, m in zip(output.response_ids, output.response_mask, strict=True) if m]
    assert worker.tokenizer.decode(sampled) == f"I give up<|end|>{ANSWER}"
    assert output.reward_score == 1.0 and output.extra_fields["searches"] == 0


@pytest.mark.parametrize(
    "turns",
    [[SEARCH, SEARCH, SEARCH], ["<think> " + "so " * 300], [SEARCH, "<think> " + "so " * 300]],
    ids=["three turns, no answer", "the response is full", "full after a search"],
)
def test_budgets_end_an_episode_and_nothing_is_longer_than_verl_allows(
    make_worker: Callable[..., Any], turns: list[str]
) -> None:
    worker, _, _ = make_worker({QUESTION: turns})
    output = one(worker)
    assert output.extra_fields["status"] == "truncated" and output.reward_score == 0.0
    assert len(output.response_ids) <= 220 and sum(output.response_mask) > 0
    assert output.extra_fields["reward_extra_info"]["truncated"] == 1.0


def test_the_import_of_the_agent_loop_leaves_what_the_yaml_file_says() -> None:
    """A Ray worker reads the file first and imports the agent loop with the first rollout: were the entry replaced, the
    second rollout would have no retriever."""
    code = """
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry as registry
registry["holdfast_search"] = {"_target_": "x", "retriever": "y"}
import holdfast.adapters.verl_agent
print(registry["holdfast_search"])
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1:] == ["{'_target_': 'x', 'retriever': 'y'}"], done.stderr[-3000:]


# ---- failures


def test_what_failed_is_no_wrong_answer(make_worker: Callable[..., Any]) -> None:
    """A search, a turn, a prompt that is too long: verl's current trainer then has no such rollout in the group."""
    worker, server, bm25 = make_worker({QUESTION: [SEARCH, "ABORT"], "long": []})
    bm25.replies.append((500, b"index lost"))
    assert [one(worker), one(worker), one(worker, "long " * 200)] == [[], [], []]
    assert len(server.calls) == 2


def test_verls_current_trainer_stores_the_others_and_goes_on(
    make_worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt with three sessions in the worker of verl's default trainer, one of which loses its retriever."""
    pytest.importorskip("transfer_queue")
    agent_loop_tq = pytest.importorskip("verl.trainer.ppo.v1.agent_loop_tq", reason="verl 0.8 has one trainer")

    stored: list[tuple[list[str], Any]] = []
    states: list[str] = []

    async def put(key: str, partition_id: str, tag: dict[str, Any]) -> None:
        states.append(tag["status"])

    async def batch_put(keys: list[str], fields: Any, tags: list[dict[str, Any]], partition_id: str) -> None:
        assert [tag["status"] for tag in tags] == ["success"] and tags[0]["min_global_steps"] >= 1
        stored.append((keys, fields))

    monkeypatch.setattr(agent_loop_tq.tq, "async_kv_put", put)
    monkeypatch.setattr(agent_loop_tq.tq, "async_kv_batch_put", batch_put)
    base, _, bm25 = make_worker({QUESTION: [SEARCH] * 3 + [ANSWER] * 2}, overrides=("actor_rollout_ref.rollout.n=3",))
    bm25.replies.append((500, b"index lost"))
    kind = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
    worker = kind.__new__(kind)  # without Ray and without a queue to connect to
    worker.__dict__ = base.__dict__
    prompt = {name: values[0] for name, values in rows(QUESTION).non_tensor_batch.items()}
    prompt |= {"uid": "u", "agent_name": "holdfast_search", "global_steps": 1}
    where = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}
    asyncio.run(worker._run_prompt(prompt, {"temperature": 1.0, "logprobs": True}, trajectory=where))

    assert states == ["running", "finished"]
    assert len(stored) == 2 and len({keys[0] for keys, _ in stored}) == 2
    for _, fields in stored:
        assert fields["rm_scores"][0].sum() == 1.0
        assert fields["response_mask"][0].sum() == fields["loss_mask"][0].sum() > 0


def test_the_older_trainer_gets_a_row_that_trains_nothing(make_worker: Callable[..., Any]) -> None:
    worker, _, bm25 = make_worker({QUESTION: [SEARCH], "Second?": [ANSWER]})
    bm25.replies.append((500, b"index lost"))
    out = sequences(worker, rows(QUESTION, "Second?"))
    assert out.non_tensor_batch["status"].tolist() == ["retrieval_failed", "ok"]
    assert out.batch["response_mask"].sum(-1).tolist()[0] == 0 < out.batch["response_mask"].sum(-1).tolist()[1]
    assert out.non_tensor_batch["failed"].tolist() == [1.0, 0.0]
    assert out.non_tensor_batch["em"].tolist() == [0.0, 1.0]


# ---- what a row may hold, and what the YAML may say


def test_every_shape_of_a_ground_truth(make_worker: Callable[..., Any]) -> None:
    truths = ["Mirn", ["x", "mirn"], {"target": ["Mirn"]}, np.array(["the Mirn"])]
    worker, _, _ = make_worker({QUESTION: [ANSWER] * len(truths)})
    assert [one(worker, truth=truth).reward_score for truth in truths] == [1.0] * len(truths)


@pytest.mark.parametrize("settings", [{"reward": None}, {}])
def test_scoring_is_verls_where_it_is_not_ours(make_worker: Callable[..., Any], settings: dict[str, Any]) -> None:
    worker, _, _ = make_worker({QUESTION: [ANSWER]}, **settings)
    output = one(worker, truth={} if not settings else None)
    assert output.reward_score is None and "reward_extra_info" not in output.extra_fields


def test_a_message_of_the_data_writes_no_control_token(make_worker: Callable[..., Any]) -> None:
    worker, server, _ = make_worker({QUESTION: [ANSWER, ANSWER]})
    end = worker.tokenizer.eos_token
    for question in (f"{QUESTION} x", f"{QUESTION} {end}"):
        one(worker, question)
    usual, spelled = (ids for _, ids, _ in server.calls)
    assert spelled.count(worker.tokenizer.eos_token_id) == usual.count(worker.tokenizer.eos_token_id)
    assert f"{QUESTION} {end}" in worker.tokenizer.decode(spelled)


def test_the_chat_template_of_a_recipe_replaces_the_tokenizers(make_worker: Callable[..., Any], tmp_path: Path) -> None:
    worker, server, _ = make_worker({QUESTION: [ANSWER]}, chat_template="none")
    assert one(worker).reward_score == 1.0
    assert server.calls[0][1] == worker.tokenizer(QUESTION)["input_ids"]
    shout = tmp_path / "shout.jinja"
    shout.write_text("{{ messages[0].content }} {{ mark }}")
    mark = ["+data.apply_chat_template_kwargs={mark:'!'}"]
    worker, server, _ = make_worker({QUESTION: [ANSWER]}, chat_template=str(shout), overrides=mark)
    one(worker)
    assert server.calls[0][1] == worker.tokenizer(f"{QUESTION} !")["input_ids"]


@pytest.mark.parametrize(
    ("room", "reason", "text"), [(9, "eos", "<think> done"), (3, "length", "<think> done <|eom|>")]
)
def test_an_end_that_the_tokenizer_does_not_list_ends_a_turn(room: int, reason: str, text: str) -> None:
    """A model's configuration can have more end tokens than its tokenizer: Llama 3.1's <|eom_id|>. An engine that
    stopped before it had to has met one."""
    words = ["<think>", " done", " <|eom|>"]
    tokenizer = SimpleNamespace(all_special_ids=[99], decode=lambda ids, **_: "".join(words[i] for i in ids))
    completion = to_completion("1", [0, 1, 2], None, ["</search>"], tokenizer, room=room)
    assert (completion.stop_reason, completion.text, completion.token_ids) == (reason, text, (0, 1, 2))


def test_log_probs_and_the_routing_of_the_last_turn_are_passed_on(make_worker: Callable[..., Any]) -> None:
    """A list without log-probs, as of verl's asynchronous trainers, is none; routing, [L, layers, k] of the whole
    context, is replayed by token."""
    worker, server, _ = make_worker({QUESTION: [SEARCH, ANSWER + " and on"]}, server={"logprobs": False})
    generate = server.generate

    async def routed(request_id: str, *, prompt_ids: list[int], **kwargs: Any) -> TokenOutput:
        output = await generate(request_id, prompt_ids=prompt_ids, **kwargs)
        length = len(prompt_ids) + len(output.token_ids)
        experts = np.arange(length)[:, None, None] + 1000 * len(server.calls)
        return output.model_copy(update={"routed_experts": experts, "log_probs": []})

    server.generate = routed
    output = one(worker)
    assert output.response_logprobs is None and output.reward_score == 1.0
    length = len(output.prompt_ids) + len(output.response_ids)
    assert output.routed_experts[:, 0, 0].tolist() == [2000 + i for i in range(length)]


REFUSED = {
    "misspelt": ({"max_turn": 3}, "holdfast_search has no argument 'max_turn'; did you mean max_turns?"),
    "no retriever": ({"retriever": None}, "needs the address of a retriever; add `retriever: http://HOST:PORT/"),
    "bad address": ({"retriever": "localhost"}, "'localhost' is not the address of a retriever"),
    "preset": ({"preset": "r2"}, "presets are clean, search-r1, sapo, r1, tools"),
    "reward": ({"reward": {"exact": 1.0}}, "reward part 'exact' does not exist"),
    "no template": ({"preset": "tools", "chat_template": "none"}, "there is no chat template"),
    "no tools in it": ({"preset": "tools"}, "does not describe tools to the model"),
    "two of a name": ({"preset": "tools", "tool_names": ["search", "search"]}, "two tools with the name"),
    "tags": ({"tool_names": ["search"]}, "a protocol of tags has no tools"),
    "limit": ({"topk": 0}, "topk = 0; a rollout needs 1 or more"),
    "an engine that cannot stop at text": (
        {"overrides": ("actor_rollout_ref.rollout.name=sglang",)},
        "Set actor_rollout_ref.rollout.skip_tokenizer_init=False",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_a_sentence(make_worker: Callable[..., Any], case: str) -> None:
    settings, sentence = REFUSED[case]
    worker, _, _ = make_worker({QUESTION: [SEARCH, ANSWER]}, **settings)
    with pytest.raises(Exception) as caught:  # Hydra wraps it
        one(worker)
    error: BaseException = caught.value
    assert sentence in str(error)
    assert isinstance(error if isinstance(error, ConfigError) else error.__cause__, ConfigError)


def test_an_engine_of_another_kind_stops_at_text_with_a_tokenizer(make_worker: Callable[..., Any]) -> None:
    options = ("actor_rollout_ref.rollout.name=sglang", "actor_rollout_ref.rollout.skip_tokenizer_init=False")
    worker, _, _ = make_worker({QUESTION: [ANSWER]}, overrides=options)
    assert one(worker).reward_score == 1.0
