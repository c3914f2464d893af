"""The parts of gpu.py. Each runs in a process of its own and writes a line of JSON for each thing it has measured."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import rollout
from gpu_factbook import measure_factbook
from gpu_hardware import (
    SHAPES,
    Bench,
    Shape,
    parameters_of,
    seconds_of,
    silent_tokenizer,
    step_bytes,
    update_flops,
    wait_for,
)
from holdfast.agent.batch import TokenBatch
from holdfast.model.language_model import ready
from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.sampler.policy import Request
from holdfast.model.support import decoder_layers
from holdfast.recipe import validate
from holdfast.train.learner import Learner, make_learner
from holdfast.train.optimizer import clipped_step

ROOT = Path(__file__).resolve().parents[1]
NO_GRAPHS, GENERATE = "holdfast, fp32 weights, autocast, no CUDA graphs", "transformers generate, bf16 weights"
SAMPLERS = ("holdfast, fp32 weights, autocast", NO_GRAPHS, "holdfast, bf16 weights", GENERATE)
TINY = 1e-9


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


def policy_of(arm: str, model: Any, tokenizer: Any, **options: Any) -> HFPolicy:
    """Weights of bf16, or of float32 with autocast."""
    model.to(torch.bfloat16 if "bf16" in arm else torch.float32)
    return HFPolicy(model, tokenizer, autocast_dtype=None if "bf16" in arm else torch.bfloat16, **options)


def graphs_of(arm: str) -> Any:
    """Where no step is captured, in the arm of that name."""
    return patch("holdfast.model.sampler.hf.StepGraphs", lambda: None) if arm == NO_GRAPHS else nullcontext()


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
    labels["floor_s"] = step_bytes(shape, rows, length + new / 2, 2) / (limits["copy_gb_s"] * 1e9)

    def measure(row: dict[str, Any], generate: Callable[[int], None]) -> None:
        row |= seconds_per_token(bench.device, generate, new)
        row |= {"tokens_per_s": rows / row["step_s"], "share_of_floor": labels["floor_s"] / row["step_s"]}

    for arm in SAMPLERS:
        with graphs_of(arm):
            policy = policy_of(arm, model, tokenizer, max_tokens=length + new + 1)
            generate = partial(theirs, model, prompts) if arm == GENERATE else partial(ours, policy, prompts)
            with bench.arm(arm=arm, **labels) as row:
                measure(row, generate)
                row |= work_per_token(bench.device, generate)
    del policy, generate
    del model
    if importlib.util.find_spec("vllm") is not None:
        with bench.arm(arm="vLLM, bf16 weights", **labels) as row:
            measure(row, with_vllm(shape, prompts, new))


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
    for arm in SAMPLERS:
        with graphs_of(arm):
            policy = policy_of(arm, model, tokenizer)
            run = rollout.run_generate if arm == GENERATE else partial(rollout.run_loop, forget=False)
            with bench.arm(arm=arm, **labels) as row:
                row["seconds"] = min(seconds_of(bench.device, partial(run, policy, work, tokenizer)) for _ in range(2))
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
        lengths=torch.full((rows,), length),
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


UPDATES = tuple(
    (compiled, f"{arm}{', compiled layers' * compiled}", shorter)
    for compiled in (False, True)
    for arm, shorter in (("rows of one length", 0), ("a new length in each update", 5))
)
"""Whether the layers are compiled, the name, and by how many tokens each update is shorter than the last."""


def measure_update(bench: Bench, size: str) -> None:
    """Two optimizer steps of 4,096 tokens each, in one micro-batch each, with LLDS and all statistics.

    With rows of the same length in every update, and with a new length in each, as rollouts have; then with compiled
    layers.
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
    generator, spent = torch.Generator().manual_seed(0), Counter[str]()
    learner: Learner | None = None

    def clocked_step(*arguments: Any) -> float:
        norm: list[float] = []
        spent["optimizer"] += seconds_of(bench.device, lambda: norm.append(clipped_step(*arguments)))
        return norm[0]

    def update(batch: TokenBatch) -> tuple[float, float, float]:
        """Seconds of an optimizer step, of AdamW and clipping in it, and of its old pass."""
        assert learner is not None
        spent.clear()
        plan = learner.plan(batch, generator)
        old: list[Any] = []
        old_s = seconds_of(bench.device, lambda: old.append(learner.old_pass(batch, plan)))
        with patch("holdfast.train.learner.clipped_step", clocked_step):
            step_s = seconds_of(bench.device, lambda: learner.step(old[0].minibatches, mean_searches=1.0))
        return step_s / steps, spent["optimizer"] / steps, old_s / steps

    for compiled, arm, shorter in UPDATES:
        labels = {"kind": "update", "arm": arm, "size": size, "tokens": rows * length // steps}
        with bench.arm(**labels, parameters=sum(parameters_of(shape))) as row:
            limits = bench.limits()
            if learner is None or not shorter:  # rows of one length come first
                learner = None
                learner = make_learner(config, ready(shape.build(), silent_tokenizer(), config.model, bench.device))
                for layer in decoder_layers(learner.language_model.model) if compiled and not bench.toy else ():
                    layer.compile(dynamic=True)
            batches = [random_batch(rows, length - n * shorter, shape.vocabulary).to(bench.device) for n in range(6)]
            row["first_s"] = seconds_of(bench.device, lambda batch=batches[0]: update(batch))
            measured = [update(batch) for batch in batches][2:]
            step_s, optimizer_s, old_s = (statistics.median(values) for values in zip(*measured, strict=True))
            sampled = int(batches[0].loss_mask.sum()) // steps
            usual, needed = update_flops(shape, [length] * (rows // steps), sampled)
            peak = limits["peak_tflop_s"] * 1e12
            row |= {"step_s": step_s, "optimizer_s": optimizer_s, "old_pass_s": old_s}
            row |= {"tokens_per_s": labels["tokens"] / step_s}
            row |= {"mfu": usual / step_s / peak, "needed_share_of_peak": needed / step_s / peak}
        if shorter:
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


PARTS: dict[str, tuple[float, Callable[[Bench], None]]] = {
    "limits": (45, measure_limits),
    "tests": (150, run_tests),
    "rollouts-smollm2": (180, partial(measure_size, size="smollm2")),
    "update-smollm2": (120, partial(measure_update, size="smollm2")),
    "update-0.5b": (120, partial(measure_update, size="0.5b")),
    "update-1.5b": (150, partial(measure_update, size="1.5b")),
    "step": (180, measure_step),
    "factbook": (405, measure_factbook),
    "rollouts-0.5b": (150, partial(measure_size, size="0.5b")),
    "rollouts-1.5b": (180, partial(measure_size, size="1.5b")),
}
"""Name -> seconds it may take at most, and what it does; what matters most comes first. 1,680 seconds together."""


def run_part(bench: Bench) -> None:
    """Run one part, with an empty file of results to begin with."""
    (bench.folder / f"{bench.part}.jsonl").write_text("")
    PARTS[bench.part][1](bench)
