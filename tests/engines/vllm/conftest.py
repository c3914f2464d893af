"""A tiny model that vLLM loads, and one `vllm serve` for all tests. `make contracts-vllm` runs these."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from holdfast.agent.protocol import CLEAN, render_prompt
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Document
from holdfast.tasks.questions import Example
from holdfast.tasks.world.model import build_model, build_tokenizer

from ...waiting import wait_for
from .on_cpu import VARIABLES, free_port, prepare

collect_ignore = ["on_cpu.py"]  # a script
POSITIONS = 1024
SAID = ("<search> lake </search>", "<answer> town </answer>", "<answer> lake </answer>", "Mora lake town Mora lake")
PROTOCOL = replace(CLEAN, max_turns=3, max_turn_tokens=30, max_observation_tokens=60, max_total_tokens=700)
PASSAGES = [Document(f"d{i}", f'"Mora {i}"\nThe lake of Mora {i} is near the town.') for i in range(8)]
QUESTIONS = [
    Example(source="mora", split="train", index=i, question=f"What is the lake of Mora {i}?", golden_answers=("town",))
    for i in range(8)
]


@pytest.fixture(scope="session", autouse=True)
def vllm_on_cpu() -> None:
    prepare()
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"


@dataclass(frozen=True, slots=True)
class Tiny:
    """A model that searches, answers right or wrong, or babbles."""

    folder: Path
    model: Any
    tokenizer: Any

    def prompt(self, question: str) -> tuple[int, ...]:
        return tuple(int(i) for i in render_prompt(question, PROTOCOL, self.tokenizer))

    def logprobs(self, prompt: tuple[int, ...], sampled: tuple[int, ...], model: Any = None) -> list[float]:
        """Of the sampled tokens, by transformers in float32."""
        with torch.no_grad():
            logits = (model or self.model)(torch.tensor([[*prompt, *sampled]])).logits[0]
        rows = logits[len(prompt) - 1 : -1].float().log_softmax(-1)
        return rows[torch.arange(len(sampled)), torch.tensor(sampled)].tolist()


def teach(model: Any, pad: int, rows: list[list[int]], steps: int) -> None:
    """What to say, whole rows at once. vLLM draws by itself, so here no test can tell it what to say."""
    ids = torch.full((len(rows), max(map(len, rows))), pad)
    labels = torch.full_like(ids, -100)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = labels[i, : len(row)] = torch.tensor(row)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Heads have 32 dimensions, the fewest that vLLM's attention has on a CPU."""
    folder = tmp_path_factory.mktemp("tiny")
    asked = [PROTOCOL.prompt.replace("{question}", example.question) for example in QUESTIONS]
    tokenizer = build_tokenizer([*SAID, *asked] * 20, ("lake", "town", "Mora"))
    model = build_model(tokenizer, seed=1, hidden=64, layers=2, heads=2)
    model.config.max_position_embeddings = POSITIONS
    prompts = [tokenizer.decode(render_prompt(e.question, PROTOCOL, tokenizer)) for e in QUESTIONS]
    texts = [prompt + said + "\n" for prompt in prompts for said in SAID]
    ids = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
    teach(model, tokenizer.pad_token_id, ids, steps=60)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Tiny(folder, AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder))


@pytest.fixture
def retriever() -> BM25Retriever:
    return BM25Retriever.build(PASSAGES)


@pytest.fixture(scope="session")
def served(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `vllm serve` with the tiny model under the name `tiny`, as TRL asks for it to be started."""
    port = free_port()
    url, log = f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("served") / "vllm.log"
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(tiny.folder), "--served-model-name", "tiny"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", str(POSITIONS), "--max-num-seqs", "16"]
    command += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1", "--enable-scale-out"]
    command += ["--weight-transfer-config", '{"backend": "nccl"}']
    environment = os.environ | VARIABLES | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with log.open("w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        wait_for(lambda: _healthy(url), minutes=15, process=server, log=log)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def _healthy(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as response:
        return bool(json.load(response)["data"])
