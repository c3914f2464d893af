"""Start what `holdfast launch verl` wrote, on a CPU, and end it with every process that it started."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCES = HERE.parents[2] / "src"
MINUTES = 60.0

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
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
)
"""What a CPU needs, and sizes for a small machine."""


def environment(**more: str) -> dict[str, str]:
    """The variables of every process of a run."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    vllm = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_CI_ENV": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    quiet = {"VLLM_NO_USAGE_STATS": "1", "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1", "HYDRA_FULL_ERROR": "1"}
    ray = {"RAY_memory_monitor_refresh_ms": "0", "RAY_worker_niceness": "0"}  # by default its workers are at nice 15
    verl = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "cpu_platform"}
    own = {"PATH": path, "PYTHONPATH": f"{SOURCES}:{HERE}", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **vllm, **quiet, **ray, **verl, **own, **more}


def holdfast(*words: str | Path, cwd: Path) -> str:
    """What a command of holdfast prints."""
    command = [sys.executable, "-m", "holdfast", *map(str, words)]
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=15 * MINUTES)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-3000:])
    return done.stdout


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


def start(folder: Path, console: Path, *overrides: str, **variables: str) -> Run:
    """`run.sh` of a launch folder with what a CPU needs and `overrides` behind it; output to `console`."""
    temporary = Path(tempfile.mkdtemp(prefix="hf-ray-", dir="/tmp"))  # names of Ray's sockets must be short
    with console.open("wb") as log:
        process = subprocess.Popen(
            ["./run.sh", *CPU, *overrides],
            cwd=folder,
            env=environment(RAY_TMPDIR=str(temporary), **variables),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Run(folder, process, console, temporary)
