"""The parts of gpu.py. Each runs in a process of its own and writes a line of JSON for each thing it has measured."""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import importlib.util
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import rollout
from gpu_hardware import SHAPES, Shape, limits_of, parameters_of, seconds_of, step_bytes, update_flops, wait_for
from holdfast.agent.batch import TokenBatch
from holdfast.model.hf import HFPolicy
from holdfast.model.language_model import ready
from holdfast.model.models import MODELS, stored
from holdfast.model.policy import Request
from holdfast.recipe import load, validate
from holdfast.train.learner import make_learner
from holdfast.train.optimizer import clipped_step

ROOT = Path(__file__).resolve().parents[1]
OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRL_EXPERIMENTAL_SILENCE"), "1")
LIMITS = "limits.json"
SMOLLM2 = MODELS["smollm2"].hub_id
NO_GRAPHS = "holdfast, fp32 weights, autocast, no CUDA graphs"
TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a part runs, how large, for how long, and where its results go."""

    part: str
    folder: Path
    device: torch.device
    toy: bool
    deadline: float
    """Of `time.monotonic`: what has not begun by then is left out."""
    model: str = ""
    """The folder of SmolLM2; empty takes what `holdfast model get smollm2` has stored."""

    @property
    def left(self) -> float:
        """Seconds."""
        return self.deadline - time.monotonic()

    def write(self, row: dict[str, Any]) -> None:
        line = json.dumps(row)
        print(line, flush=True)
        with (self.folder / f"{self.part}.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    @contextmanager
    def arm(self, **labels: Any) -> Iterator[dict[str, Any]]:
        """A row to fill. It is written with the peak memory, or with the error that ended the arm; the next goes on."""
        row = dict(labels)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        try:
            yield row
        except torch.OutOfMemoryError:
            row["error"] = "out of memory"
        except Exception as error:
            traceback.print_exc()
            row["error"] = (f"{type(error).__name__}: {error}".strip().splitlines() or [""])[0][:200]
        if self.device.type == "cuda":
            row["peak_gb"] = torch.cuda.max_memory_allocated(self.device) / 1e9
        self.write(row)

    def limits(self) -> dict[str, Any]:
        """Of the device: as the part of that name has measured them, else measured now."""
        path = self.folder / LIMITS
        if not path.is_file():
            path.write_text(json.dumps(limits_of(self.device, toy=self.toy)))
        return json.loads(path.read_text())

    def environment(self) -> dict[str, str]:
        """For processes of their own: wall-clock seconds are measured, so no CPU thread is counted."""
        kept = os.environ if self.toy else {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        return {**kept, **OFFLINE}


def measure_limits(bench: Bench) -> None:
    with bench.arm(kind="limits") as row:
        row |= bench.limits()


# ---- tests


def run_tests(bench: Bench) -> None:
    with bench.arm(kind="tests") as row:
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", "-p", "no:cacheprovider", "tests/gpu"]
        done = subprocess.run(command, cwd=ROOT, env=bench.environment(), capture_output=True, text=True)
        print(done.stdout[-8000:], done.stderr[-2000:])
        counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", done.stdout)}
        row |= {"code": done.returncode, "counts": counts}
        row["failed"] = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)


# ---- rollouts


def silent_tokenizer() -> Any:
    """A tokenizer of made-up words that knows no token that ends a text. Models have more ids than it knows."""
    from holdfast.data.world.model import build_tokenizer

    tokenizer = copy.deepcopy(build_tokenizer([" ".join(rollout.words())], rollout.words()))
    tokenizer.eos_token = None
    return tokenizer


def random_prompts(rows: int, length: int, vocabulary: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(2, vocabulary) for _ in range(length)] for _ in range(rows)]


def ours(policy: HFPolicy, prompts: list[list[int]], new: int) -> None:
    """`new` tokens for every prompt, by our policy."""
    requests = [
        Request(id=str(i), token_ids=tuple(p), max_new_tokens=new, stop=(), seed=i) for i, p in enumerate(prompts)
    ]
    policy.submit(requests)
    done = 0
    while done < len(prompts):
        done += len(policy.poll())
    policy.release([request.id for request in requests])


@torch.inference_mode()
def theirs(model: Any, prompts: list[list[int]], new: int) -> None:
    """The same by `generate` of transformers, which is TRL's path without vLLM."""
    ids = torch.tensor(prompts, device=model.device)
    model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        pad_token_id=0,
        eos_token_id=None,
    )


def seconds_per_token(device: torch.device, generate: Callable[[int], None], new: int) -> dict[str, float]:
    """Seconds of one decoding step: a long turn less a turn of one token, which is the prefill."""
    generate(2)
    steps, prefills = [], []
    for _ in range(3):
        prefills.append(seconds_of(device, partial(generate, 1)))
        steps.append((seconds_of(device, partial(generate, 1 + new)) - prefills[-1]) / new)
    return {"step_s": max(statistics.median(steps), TINY), "prefill_s": statistics.median(prefills)}


def profiled(device: torch.device) -> Any:
    """PyTorch's profiler, of the host and the device."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=kinds)


def print_costs(device: torch.device, profile: Any) -> None:
    """Into the log of the part: what took the device longest, and what the host."""
    for where in ("cuda", "cpu") if device.type == "cuda" else ("cpu",):
        column = "self_device_time_total" if where == "cuda" else "self_cpu_time_total"
        print(profile.key_averages().table(sort_by=column, row_limit=15, max_name_column_width=60), flush=True)


def work_per_token(device: torch.device, generate: Callable[[int], None], new: int = 8) -> dict[str, float]:
    """What a decoding step asks of PyTorch and of the device, by its profiler."""
    totals = []
    for tokens in (1, 1 + new):
        with profiled(device) as profile:
            generate(tokens)
            wait_for(device)
        counts: Counter[str] = Counter()
        for event in profile.key_averages():
            counts["operations"] += event.count * event.key.startswith("aten::")
            counts["casts"] += event.count * (event.key == "aten::_to_copy")
            counts["launches"] += event.count * ("LaunchKernel" in event.key or "GraphLaunch" in event.key)
            counts["waits"] += event.count * ("StreamSynchronize" in event.key)
            if event.device_type != torch.autograd.DeviceType.CPU:  # an operator has the time of its kernels too
                counts["kernels"] += event.count
                counts["device_us"] += event.self_device_time_total
        totals.append(counts)
    print_costs(device, profile)
    before, after = totals
    return {f"{name}_per_step": (after[name] - before[name]) / new for name in after}


def measure_decoding(bench: Bench, shape: Shape, size: str) -> None:
    """64 rows of equal length, so that nothing but decoding is measured."""
    rows, length, new = (4, 16, 8) if bench.toy else (64, 512, 128)
    prompts, tokenizer = random_prompts(rows, length, shape.vocabulary), silent_tokenizer()
    limits, model = bench.limits(), shape.build().to(bench.device)
    labels = {"kind": "decode", "size": size, "rows": rows, "prompt": length, "new": new}
    most = length + new + 1
    labels["floor_s"] = step_bytes(shape, rows, length + new / 2, 2) / (limits["copy_gb_s"] * 1e9)

    def measure(row: dict[str, Any], generate: Callable[[int], None]) -> None:
        row |= seconds_per_token(bench.device, generate, new)
        row |= {"tokens_per_s": rows / row["step_s"], "share_of_floor": labels["floor_s"] / row["step_s"]}
        row |= work_per_token(bench.device, generate)

    with bench.arm(arm="holdfast, fp32 weights, autocast", **labels) as row:
        measure(row, partial(ours, HFPolicy(model, tokenizer, autocast_dtype=torch.bfloat16, max_tokens=most), prompts))
    with (
        bench.arm(arm=NO_GRAPHS, **labels) as row,
        patch("holdfast.model.hf.StepGraphs", lambda: None),
    ):
        measure(row, partial(ours, HFPolicy(model, tokenizer, autocast_dtype=torch.bfloat16, max_tokens=most), prompts))
    model = model.to(torch.bfloat16)
    with bench.arm(arm="holdfast, bf16 weights", **labels) as row:
        measure(row, partial(ours, HFPolicy(model, tokenizer, max_tokens=most), prompts))
    with bench.arm(arm="transformers generate, bf16 weights", **labels) as row:
        measure(row, partial(theirs, model, prompts))
    del model
    if importlib.util.find_spec("vllm") is not None:
        with bench.arm(arm="vLLM, bf16 weights", **labels) as row:
            row |= seconds_per_token(bench.device, with_vllm(shape, prompts, new), new)
            row |= {"tokens_per_s": rows / row["step_s"], "share_of_floor": labels["floor_s"] / row["step_s"]}


def with_vllm(shape: Shape, prompts: list[list[int]], new: int) -> Callable[[int], None]:
    """Decoding by vLLM in this process, with weights that it draws itself."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        config = shape.config()
        config.architectures = [f"{shape.family}ForCausalLM"]
        config.save_pretrained(folder)
        silent_tokenizer().save_pretrained(folder)
        engine = LLM(
            model=folder,
            load_format="dummy",
            dtype="bfloat16",
            max_model_len=len(prompts[0]) + new + 8,
            max_num_seqs=len(prompts),
            gpu_memory_utilization=0.6,
            enable_prefix_caching=False,
        )

    def generate(tokens: int) -> None:
        sampling = SamplingParams(max_tokens=tokens, temperature=1.0, ignore_eos=True, detokenize=False)
        engine.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)

    return generate


def measure_rollouts(bench: Bench, shape: Shape, size: str) -> None:
    """Ragged rollouts of several turns, as benchmarks/rollout.py has them: what a trainer waits for."""
    sizes = {"questions": 2, "group": 2, "turn_tokens": 4, "observation_tokens": 30}
    if not bench.toy:
        sizes = {"questions": 8, "group": 8, "turn_tokens": 64, "observation_tokens": 300}
    tokenizer = silent_tokenizer()
    work = rollout.make_work(argparse.Namespace(seed=0, spread=0.5, **sizes), 2 if bench.toy else 4, tokenizer)
    model = shape.build().to(bench.device)
    labels = {"kind": "rollouts", "size": size, "rollouts": len(work.tasks), "sampled": work.sampled}
    policies: dict[str, Callable[[], HFPolicy]] = {
        "holdfast, fp32 weights, autocast": lambda: HFPolicy(model, tokenizer, autocast_dtype=torch.bfloat16),
        NO_GRAPHS: lambda: HFPolicy(model, tokenizer, autocast_dtype=torch.bfloat16),
        "holdfast, bf16 weights": lambda: HFPolicy(model.to(torch.bfloat16), tokenizer),
        "transformers generate, bf16 weights": lambda: HFPolicy(model.to(torch.bfloat16), tokenizer),
    }
    for arm, make in policies.items():
        eager = patch("holdfast.model.hf.StepGraphs", lambda: None) if arm == NO_GRAPHS else nullcontext()
        with bench.arm(arm=arm, **labels) as row, eager:
            policy = make()
            run = rollout.run_generate if "generate" in arm else partial(rollout.run_loop, forget=False)
            row["seconds"] = min(
                seconds_of(bench.device, lambda run=run, policy=policy: run(policy, work, tokenizer)) for _ in range(2)
            )
            row["tokens_per_s"] = work.sampled / row["seconds"]


def measure_size(bench: Bench, size: str) -> None:
    shape = SHAPES["toy" if bench.toy else size]
    measure_decoding(bench, shape, size)
    measure_rollouts(bench, shape, size)


# ---- updates


def random_batch(rows: int, length: int, vocabulary: int) -> TokenBatch:
    """Rows of equal length: a prompt, and four actions with an observation of the same length between them."""
    generator = torch.Generator().manual_seed(0)
    actions = torch.arange(length) // max(length // 8, 1)  # eight pieces; the odd ones are sampled
    action_ids = torch.where(actions % 2 == 1, (actions + 1) // 2, 0).expand(rows, length).contiguous()
    sign = torch.tensor([1.0, -1.0]).repeat(rows)[:rows]
    return TokenBatch(
        token_ids=torch.randint(2, vocabulary, (rows, length), generator=generator),
        attention_mask=torch.ones(rows, length, dtype=torch.long),
        loss_mask=action_ids > 0,
        action_ids=action_ids,
        answer_mask=action_ids == action_ids.max(),
        rollout_logprobs=torch.zeros(rows, length),
        advantages=sign[:, None],
        rewards=(sign > 0).float(),
        correct=sign > 0,
        group_ids=torch.arange(rows) // 2,
        valid=torch.ones(rows, dtype=torch.bool),
    )


def measure_update(bench: Bench, size: str) -> None:
    """Two optimizer steps of 4,096 tokens each, in one micro-batch each, with LLDS and all statistics.

    Once with rows of the same length in every update, and once with a new length in each, as rollouts have.
    """
    shape = SHAPES["toy" if bench.toy else size]
    rows, length, steps = (4, 64, 2) if bench.toy else (8, 1024, 2)
    config = validate(
        {
            "loss": {"kl_coef": 0.0, "penalty": {"name": "llds", "gate": "action"}},
            "train": {
                "optimizer_steps_per_rollout": steps,
                "micro_batch_tokens": rows * length // steps,
                "lr": 1e-6,
                "displacement_every": 0,
            },
        }
    )
    learner = make_learner(config, ready(shape.build(), silent_tokenizer(), config.model, bench.device))
    generator, spent = torch.Generator().manual_seed(0), Counter[str]()

    def clocked_step(*arguments: Any) -> float:
        norm: list[float] = []
        spent["optimizer"] += seconds_of(bench.device, lambda: norm.append(clipped_step(*arguments)))
        return norm[0]

    def update(batch: TokenBatch) -> tuple[float, float, float]:
        """Seconds of an optimizer step, of AdamW and clipping in it, and of its old pass."""
        spent.clear()
        plan = learner.plan(batch, generator)
        old: list[Any] = []
        old_s = seconds_of(bench.device, lambda: old.append(learner.old_pass(batch, plan)))
        with patch("holdfast.train.learner.clipped_step", clocked_step):
            step_s = seconds_of(bench.device, lambda: learner.step(old[0].minibatches, mean_searches=1.0))
        return step_s / steps, spent["optimizer"] / steps, old_s / steps

    for arm, shorter in (("rows of one length", 0), ("a new length in each update", 5)):
        labels = {"kind": "update", "arm": arm, "size": size, "tokens": rows * length // steps}
        with bench.arm(**labels, parameters=sum(parameters_of(shape))) as row:
            limits = bench.limits()
            batches = [random_batch(rows, length - n * shorter, shape.vocabulary).to(bench.device) for n in range(4)]
            measured = [update(batch) for batch in batches][1:]
            step_s, optimizer_s, old_s = (statistics.median(values) for values in zip(*measured, strict=True))
            sampled = int(batches[0].loss_mask.sum()) // steps
            usual, needed = update_flops(shape, [length] * (rows // steps), sampled)
            peak = limits["peak_tflop_s"] * 1e12
            row |= {"step_s": step_s, "optimizer_s": optimizer_s, "old_pass_s": old_s}
            row |= {"tokens_per_s": labels["tokens"] / step_s}
            row |= {"mfu": usual / step_s / peak, "needed_share_of_peak": needed / step_s / peak}
    with profiled(bench.device) as profile:
        update(batches[0])
    print_costs(bench.device, profile)


# ---- a whole step, beside TRL


def measure_step(bench: Bench) -> None:
    sizes = "--hidden 512 --layers 12 --heads 8 --words 6000 --questions 8 --group 8 --turn-tokens 64 --rounds 3"
    if bench.toy:
        sizes = "--hidden 16 --layers 1 --words 400 --questions 2 --group 2 --updates 2 --turns 3 --rounds 1"
        sizes += " --observation-tokens 60"
    arms = ["holdfast"] + ["trl"] * (importlib.util.find_spec("trl") is not None and not bench.toy)
    with bench.arm(kind="step") as row:
        path = bench.folder / "step_vs_trl.json"
        command = [sys.executable, "benchmarks/step_vs_trl.py", *sizes.split(), "--device", bench.device.type]
        command += ["--arms", *arms, "--json", str(path)]
        done = subprocess.run(command, cwd=ROOT, env=bench.environment(), capture_output=True, text=True)
        print(done.stdout[-4000:], done.stderr[-4000:])
        if done.returncode:
            raise RuntimeError(f"step_vs_trl.py ended with code {done.returncode}; the log of this part says why")
        results = json.loads(path.read_text())
        row["counts"] = results["holdfast"]["steps"][0]["counts"]
        for arm in arms:
            steps = [step["seconds"] for step in results[arm]["steps"]]
            row[arm] = {name: statistics.median(step[name] for step in steps) for name in steps[0]}
            row[arm]["gpu_peak_gb"] = results[arm]["gpu_peak_gb"]
        if "trl" in arms:
            row["trl_over_holdfast"] = row["trl"]["step"] / row["holdfast"]["step"]


# ---- a real model


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


PARTS: dict[str, tuple[float, Callable[[Bench], None]]] = {
    "limits": (45, measure_limits),
    "tests": (150, run_tests),
    "rollouts-smollm2": (180, partial(measure_size, size="smollm2")),
    "rollouts-0.5b": (150, partial(measure_size, size="0.5b")),
    "rollouts-1.5b": (180, partial(measure_size, size="1.5b")),
    "update-smollm2": (60, partial(measure_update, size="smollm2")),
    "update-0.5b": (60, partial(measure_update, size="0.5b")),
    "update-1.5b": (90, partial(measure_update, size="1.5b")),
    "step": (180, measure_step),
    "factbook": (405, measure_factbook),
}
"""Name -> seconds it may take at most, and what it does. 1,500 seconds together."""


def run_part(bench: Bench) -> None:
    """Run one part, with an empty file of results to begin with."""
    (bench.folder / f"{bench.part}.jsonl").write_text("")
    PARTS[bench.part][1](bench)
