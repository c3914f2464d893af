"""Real runs of verl: its trainer, Ray, vLLM and a served index, on a CPU. `make contracts-verl` runs these.

A run is what a user does: a warm-started model, `holdfast index build`, `holdfast serve`, `holdfast launch verl`, and
the folder's `run.sh`, unedited. `running.py` appends to it what a CPU needs, and `cpu_platform.py` gives verl a CPU.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ...waiting import wait_for
from .running import Run, environment, holdfast, start

collect_ignore = ["cpu_platform.py"]  # imports verl, for processes of its own

WORLD = {"people": 60, "train_questions": 200, "dev_questions": 20, "test_questions": 20, "two_hop": 0.0}

RECIPE = """
[run]
name = "small"
[model]
path = {model}
autocast = "none"
[data]
train = {train}
dev = {dev}
[retrieval]
url = {url}
[protocol]
prompt = "Question: {{question}}\\n"
max_turns = 3
max_turn_tokens = 48
max_observation_tokens = 120
max_total_tokens = 448
[reward]
em = 1.0
f1 = 0.5
retrieval = 0.3
[train]
steps = 4
questions = 4
group_size = 4
optimizer_steps_per_rollout = 2
micro_batch_tokens = 2048
lr = 3e-4
warmup = 0
[eval]
every = 0
questions = 4
[checkpoint]
every = 0
[loss]
kl_coef = 0.0
"""


class Served:
    """`holdfast serve` in a process of its own, on one port for as long as the tests run."""

    def __init__(self, index: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.index = index
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it answers."""
        command = [sys.executable, "-m", "holdfast", "serve", self.index, "--port", str(self.port)]
        log = self.index.parent / "serve.log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, env=environment(), stdout=out, stderr=out)
        wait_for(self._ready, minutes=5, process=self._process, log=log)

    def kill(self) -> None:
        """End it as a machine ends that loses power."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def answered(self) -> int:
        """Queries since the start."""
        assert self._process is not None and self._process.poll() is None, "the server has stopped"
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith("holdfast_queries_total")))

    def _ready(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/ready", timeout=30) as answer:
            return bool(answer.status == 200)


@dataclass
class Lab:
    """A model, an index behind a server, a recipe."""

    folder: Path
    model: Path
    server: Served
    passages: frozenset[str]
    runs: list[Run]

    def start(self, name: str, *overrides: str, verl: tuple[str, ...] = (), fresh: bool = True) -> Run:
        """`holdfast launch verl` with overrides of the recipe, and `run.sh` with `verl`'s and the CPU's behind it."""
        folder = self.folder / name
        if fresh:
            holdfast("launch", "verl", "recipe.toml", "--out", folder, *overrides, cwd=self.folder)
            (folder / "batches").mkdir()
        console = folder / f"console-{len(self.runs)}.log"
        dump = f"trainer.rollout_data_dir={folder / 'rollouts'}"
        run = start(folder, console, dump, *verl, VERL_CPU_BATCHES=str(folder / "batches"))
        self.runs.append(run)
        return run


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Made once: three minutes. The model searches and answers, and is often wrong."""
    from holdfast.base.jsonl import write_jsonl
    from holdfast.recipe import load
    from holdfast.tasks.world.facts import build_world

    folder = tmp_path_factory.mktemp("verl")
    settings = [f"--world.{name}={value}" for name, value in WORLD.items()]
    # A width of 32 for each attention head: vLLM's CPU kernels know no less.
    size = ("--world.model.hidden=64", "--world.model.heads=2", "--world.model.layers=2")
    steps = ("--warm_start.steps=300", "--warm_start.batch_size=16", "--run.name=start")
    holdfast("warm-start", "quickstart", *settings, *size, *steps, cwd=folder)
    model = folder / "runs/start/model"

    world = build_world(load(None, settings).world)
    for split in ("train", "dev"):
        rows = [q.example for q in world.questions[split]]
        write_jsonl(
            folder / f"{split}.jsonl",
            ({"question": row.question, "golden_answers": list(row.golden_answers)} for row in rows),
        )
    documents = world.documents("train", "dev")
    write_jsonl(folder / "corpus.jsonl", ({"id": d.id, "contents": d.contents} for d in documents))
    holdfast("index", "build", "corpus.jsonl", "--out", "index", cwd=folder)
    server = Served(folder / "index")
    server.start()
    texts = {"model": model, "train": folder / "train.jsonl", "dev": folder / "dev.jsonl", "url": server.url}
    recipe = RECIPE.format(**{name: json.dumps(str(value)) for name, value in texts.items()})
    (folder / "recipe.toml").write_text(recipe)
    lab = Lab(folder, model, server, frozenset(d.text for d in documents), [])
    yield lab
    for run in lab.runs:
        run.kill()
    server.kill()
