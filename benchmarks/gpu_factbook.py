"""The part of gpu.py that trains a real model, SmolLM2, on the Factbook: with holdfast, and in TRL."""

from __future__ import annotations

import ast
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_hardware import SHAPES, Bench, Shape, silent_tokenizer, step_bytes, update_flops
from holdfast.model.hub import MODELS, stored
from holdfast.recipe import load

SMOLLM2 = MODELS["smollm2"].hub_id


def measure_factbook(bench: Bench) -> None:
    """The recipe `factbook` with GRPO, with LLDS and in TRL, one after another, from one warm start.

    Each has an equal share of the time that is left; what it has logged by then counts.
    """
    model = bench.model or (str(tiny_model(bench.folder / "tiny")) if bench.toy else str(stored(SMOLLM2) or SMOLLM2))
    settings = f"--run.dir {bench.folder / 'factbook'} --run.device {bench.device.type} --checkpoint.every 0"
    settings += " --data.test none --eval.start false --train.steps 30 --train.micro_batch_tokens 16384"
    if bench.toy:
        settings += " --warm_start.steps 1 --train.steps 2 --train.questions 2 --train.group_size 2"
        settings += " --train.optimizer_steps_per_rollout 2 --protocol.max_turn_tokens 4 --eval.questions 1"

    with bench.arm(kind="factbook", arm="warm start") as row:
        started = time.monotonic()
        start = Run(bench, f"warm-start factbook {settings} --model.path {model} --run.name start", "start")
        row["finished"] = start.finish(bench.left / 4)
        row["seconds"] = time.monotonic() - started
    if not row.get("finished"):
        return
    settings += f" --model.path {bench.folder / 'factbook' / 'start' / 'model'} --warm_start.steps 0"
    penalties = {"GRPO": "--loss.penalty.name none", "LLDS": "--loss.penalty.name llds --loss.penalty.coef 1"}
    arms = [*penalties, *["TRL"] * (importlib.util.find_spec("trl") is not None)]
    for n, arm in enumerate(arms):
        with bench.arm(kind="factbook", arm=arm) as row:
            share = bench.left / (len(arms) - n)
            if arm == "TRL":
                row |= run_trl(bench, f"factbook {settings} {penalties['GRPO']} --run.name trl", share)
                continue
            run = Run(bench, f"train factbook {settings} {penalties[arm]} --run.name {arm}", arm)
            row["finished"] = run.finish(share)
            row |= read_run(bench.folder / "factbook" / arm)
            shape = shape_of(json.loads((bench.folder / "factbook/start/model/config.json").read_text()))
            row |= speeds(row, shape, bench.limits())


def tiny_model(folder: Path) -> Path:
    """A model folder of toy size that has the files of SmolLM2's; it has learned nothing."""
    tokenizer, shape = silent_tokenizer(), SHAPES["toy"]
    tokenizer.eos_token = tokenizer.pad_token
    shape.build().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def shape_of(config: dict[str, Any]) -> Shape:
    """Of a model's config.json."""
    return Shape(
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        intermediate=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        family="Qwen2" if config["model_type"] == "qwen2" else "Llama",
    )


def speeds(row: dict[str, Any], shape: Shape, limits: dict[str, Any]) -> dict[str, float]:
    """Of the medians of a run: tokens/s, the share of the floor in rollouts, and the MFU of old pass and update.

    Rollouts are taken as equally long. The longest of them needs more steps of decoding than this floor has.
    """
    rollouts, sampled, tokens = (round(row[name]) for name in ("rollouts", "sampled", "tokens"))
    floor = sampled / rollouts * step_bytes(shape, rollouts, tokens / rollouts / 2, 2) / (limits["copy_gb_s"] * 1e9)
    usual, _ = update_flops(shape, [tokens // rollouts] * rollouts, sampled)
    return {
        "rollout_tokens_per_s": sampled / row["rollout_s"],
        "step_tokens_per_s": sampled / row["step_s"],
        "share_of_floor": floor / row["rollout_s"],
        "mfu": usual / row["update_s"] / (limits["peak_tflop_s"] * 1e12),
    }


def run_trl(bench: Bench, settings: str, seconds: float) -> dict[str, Any]:
    """GRPO by the folder of `holdfast launch trl`: rollouts by vLLM where it is installed, else by transformers."""
    folder = bench.folder / "factbook" / "trl"
    Run(bench, f"launch trl {settings} --out {folder}", "launch").finish(seconds)
    vllm = importlib.util.find_spec("vllm") is not None and not bench.toy
    script = folder / "train.py"
    if vllm:
        script.write_text(script.read_text().replace("use_vllm=False", "use_vllm=True"))
    run = Run(bench, str(script), "trl", python=())
    finished = run.finish(seconds)
    rows = [row for row in read_prints(run.log) if "step_time" in row]
    config = load(folder / "recipe.toml")
    steps, rollouts = config.train.optimizer_steps_per_rollout, config.train.questions * config.train.group_size
    step_s = statistics.median(row["step_time"] * steps for row in rows)
    sampled = statistics.median(row["completions/mean_length"] for row in rows) * rollouts
    return {
        "finished": finished,
        "sampler": "vLLM" if vllm else "its own generate",
        "steps": len(rows),
        "step_s": step_s,
        "step_tokens_per_s": sampled / step_s,
        **ends([row["reward"] for row in rows]),
    }


def read_prints(log: Path) -> list[dict[str, float]]:
    """The rows that a trainer of transformers has printed."""
    rows = [line for line in log.read_text().splitlines() if line.startswith("{'")]
    return [{name: float(value) for name, value in ast.literal_eval(row).items()} for row in rows]


class Run:
    """A command of holdfast, or with `python=()` a script, in the background."""

    def __init__(self, bench: Bench, command: str, name: str, python: tuple[str, ...] = ("-m", "holdfast")) -> None:
        self.log = bench.folder / "logs" / f"{bench.part}-{name}.log"
        self.log.parent.mkdir(exist_ok=True)
        environment = bench.environment() | {"HOLDFAST_CACHE": str(bench.folder / "cache")}
        where = bench.folder if python else Path(command).parent
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *python, *command.split()],
                cwd=where, env=environment, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def finish(self, seconds: float) -> bool:
        """Wait until it ends, or for so long; whether it ended by itself. Raises `RuntimeError` for one that failed."""
        try:
            self.process.wait(timeout=max(seconds, 1))
        except subprocess.TimeoutExpired:
            self.process.kill()  # what it has logged is whole; nobody waits for what it still saves
            self.process.wait()
            return False
        if self.process.returncode:
            raise RuntimeError((self.log.read_text().strip().splitlines() or ["it printed nothing"])[-1])
        return True


def read_run(run: Path) -> dict[str, Any]:
    """What a run has logged so far, as medians over its steps."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "reward/mean" in row]
    config = load(run / "config.toml")
    rollouts = config.train.questions * config.train.group_size

    def median(of: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(map(of, rows))

    return {
        "steps": len(rows),
        "rollouts": rollouts,
        "sampled": median(lambda row: row["rollout/length"]) * rollouts,
        "tokens": median(lambda row: row["tokens_per_s"] * row["time/step_s"]),
        "step_s": median(lambda row: row["time/step_s"]),
        "rollout_s": median(lambda row: row["time/rollout_s"]),
        "update_s": median(lambda row: row["time/update_s"]),
        **ends([row["reward/mean"] for row in rows]),
    }


def ends(rewards: list[float]) -> dict[str, float]:
    return {"first_reward": statistics.mean(rewards[:5]), "last_reward": statistics.mean(rewards[-5:])}
