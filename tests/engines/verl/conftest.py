"""Real runs of verl: its trainer, Ray, vLLM and a served index, on a CPU. `make contracts-verl` runs these.

A run is what a user does: a warm-started model, `holdfast index build`, `holdfast serve`, `holdfast launch verl`, and
the folder's `run.sh`, unedited. `CPU` is appended to the command, and `cpu_platform.py` gives verl a CPU.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

collect_ignore = ["cpu_platform.py"]  # imports verl, for processes of its own

HERE = Path(__file__).parent
SOURCES = HERE.parents[2] / "src"
MINUTES = 60.0

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

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
CPU = (
    "trainer.device=cpu",
    "+ray_kwargs.ray_init.num_gpus=1",
    "ray_kwargs.ray_init.num_cpus=16",
    "+ray_kwargs.ray_init.include_dashboard=False",
    "data.dataloader_num_workers=0",
    "actor_rollout_ref.model.use_remove_padding=False",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    f"{ACTOR}.strategy=fsdp2",
    f"{ACTOR}.use_torch_compile=False",
    f"++{ACTOR}.fsdp_config.use_torch_compile=False",
    f"++{ACTOR}.fsdp_config.dtype=float32",
    f"++{ACTOR}.fsdp_config.model_dtype=float32",
    f"{ROLLOUT}.dtype=float32",
    f"{ROLLOUT}.enforce_eager=True",
    f"{ROLLOUT}.free_cache_engine=False",
    f"+{ROLLOUT}.enable_sleep_mode=False",
    f"{ROLLOUT}.max_num_seqs=64",
    f"{ROLLOUT}.max_num_batched_tokens=2048",
    f"{ROLLOUT}.calculate_log_probs=True",
    f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes=16",
    f"++{ROLLOUT}.n_gpus_per_node=1",
    f"{ROLLOUT}.agent.num_workers=1",
    "++reward.num_workers=1",
)
"""What a CPU needs, and sizes for a small machine."""


def environment(**more: str) -> dict[str, str]:
    """The variables of every process of a run."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    vllm = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_CI_ENV": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    quiet = {"VLLM_NO_USAGE_STATS": "1", "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1", "HYDRA_FULL_ERROR": "1"}
    verl = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "cpu_platform", "RAY_memory_monitor_refresh_ms": "0"}
    own = {"PATH": path, "PYTHONPATH": f"{SOURCES}:{HERE}", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **vllm, **quiet, **verl, **own, **more}


def holdfast(*words: str | Path, cwd: Path) -> str:
    """What a command of holdfast prints."""
    command = [sys.executable, "-m", "holdfast", *map(str, words)]
    plain = {**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, env=plain, capture_output=True, text=True, timeout=15 * MINUTES)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-3000:])
    return done.stdout


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
        command = [sys.executable, "-m", "holdfast", "serve", self.index, "--port", str(self.port), "--no-keep-cache"]
        plain = {**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}
        with (self.index.parent / "serve.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=plain, stdout=log, stderr=log)
        _wait_for(self._ready, minutes=5)

    def kill(self) -> None:
        """End it as a machine ends that loses power."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def answered(self) -> int:
        """Queries since the start."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith("holdfast_queries_total")))

    def _ready(self) -> bool:
        assert self._process is not None and self._process.poll() is None, "the server has stopped"
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/ready", timeout=30) as answer:
            return bool(answer.status == 200)
        return False


def _wait_for(condition: Callable[[], Any], *, minutes: float) -> Any:
    """The first true value of `condition`, which is asked once a second."""
    end = time.monotonic() + minutes * MINUTES
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(1)
    raise AssertionError(f"nothing after {minutes} minutes")


@pytest.fixture(scope="session")
def wait_for() -> Callable[..., Any]:
    """wait_for(condition, minutes=5): its first true value."""
    return _wait_for


@dataclass
class Run:
    """A run of verl."""

    folder: Path
    """What `holdfast launch verl` wrote."""
    process: subprocess.Popen[bytes]
    console: Path
    temporary: Path

    def wait(self, *, minutes: float = 25) -> str:
        """The console log of a run that ended well."""
        try:
            code = self.process.wait(minutes * MINUTES)
        finally:
            self.kill()
        text = self.console.read_text(errors="replace")
        assert code == 0, text[-6000:]
        return text

    def kill(self) -> None:
        """SIGKILL for every process of this run: those that have its folder for temporary files in the environment."""
        mark = f"RAY_TMPDIR={self.temporary}\0".encode()
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if mark in (entry / "environ").read_bytes() + b"\0":
                    os.kill(int(entry.name), signal.SIGKILL)
        shutil.rmtree(self.temporary, ignore_errors=True)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """verl's file log: the metrics of every step."""
        (log,) = (self.folder / "holdfast").glob("*.jsonl")
        return [json.loads(line) for line in log.read_text().splitlines()]

    @property
    def batches(self) -> list[dict[str, Any]]:
        """What `cpu_platform.py` recorded: the rollouts of every forward pass with a loss, in order."""
        files = (self.folder / "batches").glob("*.jsonl")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    @property
    def rollouts(self) -> list[dict[str, Any]]:
        """verl's own dump: `input`, `output`, `score`, `step` of every rollout that was trained on."""
        files = sorted((self.folder / "rollouts").glob("*.jsonl"), key=lambda file: int(file.stem))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


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
        temporary = Path(tempfile.mkdtemp(prefix="hf-ray-", dir="/tmp"))  # names of Ray's sockets must be short
        more = {"RAY_TMPDIR": str(temporary), "VERL_CPU_BATCHES": str(folder / "batches")}
        dump = f"trainer.rollout_data_dir={folder / 'rollouts'}"
        with console.open("wb") as log:
            process = subprocess.Popen(
                ["./run.sh", *CPU, dump, *verl],
                cwd=folder,
                env=environment(**more),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        run = Run(folder, process, console, temporary)
        self.runs.append(run)
        return run


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Made once: three minutes. The model searches and answers, and is often wrong."""
    from holdfast.config import load
    from holdfast.jsonl import write_jsonl
    from holdfast.world.bundle import world_of

    folder = tmp_path_factory.mktemp("verl")
    settings = [f"--world.{name}={value}" for name, value in WORLD.items()]
    # A width of 32 for each attention head: vLLM's CPU kernels know no less.
    size = ("--world.model.hidden=64", "--world.model.heads=2", "--world.model.layers=2")
    steps = ("--warm_start.steps=300", "--warm_start.batch_size=16", "--run.name=start")
    holdfast("warm-start", "quickstart", *settings, *size, *steps, cwd=folder)
    model = folder / "runs/start/model"

    world = world_of(load(None, settings).world)
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
