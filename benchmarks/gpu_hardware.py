"""What a device can do at most, what a step of decoding or an update needs at least, and where a part runs."""

from __future__ import annotations

import copy
import gc
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import rollout

OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRL_EXPERIMENTAL_SILENCE"), "1")
LIMITS = "limits.json"

BF16_PEAKS = {
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "GH200": 989,
    "H100": 989,
    "H200": 989,
    "GB200": 2500,
    "B200": 2250,
    "A100": 312,
    "A40": 150,
    "A30": 165,
    "L40S": 362,
    "L4": 121,
    "A10G": 70,
    "A10": 125,
    "RTX 4090": 165,
    "RTX 3090": 71,
}
"""Part of a device's name -> dense bf16 TFLOP/s, from NVIDIA's data sheets; the first match is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    family: str = "Qwen2"
    """Or `Llama`, which has no biases."""

    @property
    def dim(self) -> int:
        """Of a head."""
        return self.hidden // self.heads

    def build(self, seed: int = 0) -> Any:
        """The model with random float32 weights, on the CPU; it knows no token that ends a text."""
        import transformers

        torch.manual_seed(seed)
        return getattr(transformers, f"{self.family}ForCausalLM")(self.config()).eval()

    def config(self) -> Any:
        """For transformers."""
        import transformers

        return getattr(transformers, f"{self.family}Config")(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=32_768,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
            eos_token_id=None,
            bos_token_id=None,
            pad_token_id=0,
        )


SHAPES = {
    "toy": Shape(hidden=64, layers=2, heads=2, kv_heads=1, intermediate=96, vocabulary=4000),
    "smollm2": Shape(hidden=576, layers=30, heads=9, kv_heads=3, intermediate=1536, vocabulary=49_152, family="Llama"),
    "0.5b": Shape(hidden=896, layers=24, heads=14, kv_heads=2, intermediate=4864, vocabulary=151_936),
    "1.5b": Shape(hidden=1536, layers=28, heads=12, kv_heads=2, intermediate=8960, vocabulary=151_936),
}
"""SmolLM2-135M, and the two smallest of Qwen2.5."""


def parameters_of(shape: Shape) -> tuple[int, int]:
    """Parameters of the embedding, which is the projection to the vocabulary too, and of everything else."""
    attention = 2 * shape.hidden * shape.hidden + 2 * shape.hidden * shape.kv_heads * shape.dim
    biases = (shape.hidden + 2 * shape.kv_heads * shape.dim) * (shape.family == "Qwen2")
    layer = attention + biases + 3 * shape.hidden * shape.intermediate + 2 * shape.hidden
    return shape.vocabulary * shape.hidden, shape.layers * layer + shape.hidden


def step_bytes(shape: Shape, rows: int, positions: float, item: int) -> float:
    """Bytes that one step of decoding has to read: every weight once, and the keys and values of every row.

    Args:
        positions: of a row, on average.
        item: bytes of a weight, a key or a value.
    """
    cached = 2 * shape.layers * shape.kv_heads * shape.dim * positions * rows
    return item * (sum(parameters_of(shape)) + cached)


def update_flops(shape: Shape, lengths: Sequence[int], sampled: int) -> tuple[float, float]:
    """Floating-point operations of forward and backward pass, a multiplication and an addition counted as two.

    Returns:
        What is usually reported: 6 for each parameter and token, and causal attention. And what is needed here, where
        only sampled tokens are projected to the vocabulary.
    """
    embedding, rest = parameters_of(shape)
    tokens = sum(lengths)
    attention = 6 * shape.layers * shape.heads * shape.dim * sum(n * n for n in lengths)
    return 6 * (embedding + rest) * tokens + attention, 6 * (rest * tokens + embedding * sampled) + attention


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(device: torch.device, work: Callable[[], Any]) -> float:
    """Wall-clock seconds of `work`, the device's own work included."""
    wait_for(device)
    started = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - started


def copy_speed(device: torch.device, size: int, repeats: int = 20) -> float:
    """GB/s of a copy of `size` bytes: what is read and what is written."""
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    seconds = seconds_of(device, lambda: [target.copy_(source) for _ in range(repeats)])
    return 2 * size * repeats / seconds / 1e9


def product_speed(device: torch.device, width: int, repeats: int = 10) -> float:
    """TFLOP/s of bf16 products of square matrices."""
    a, b = (torch.randn(width, width, device=device).to(torch.bfloat16) for _ in range(2))
    a @ b
    seconds = seconds_of(device, lambda: [a @ b for _ in range(repeats)])
    return 2 * width**3 * repeats / seconds / 1e12


def peak_of(name: str, measured: float) -> tuple[float, str]:
    """bf16 peak of a device in TFLOP/s, and where it is from: the table, else what was measured."""
    for part, peak in BF16_PEAKS.items():
        if part in name:
            return float(peak), "data sheet"
    return measured, "measured"


def limits_of(device: torch.device, *, toy: bool) -> dict[str, Any]:
    """What the device can do, in seconds of measuring."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    product = product_speed(device, 128 if toy else 8192)
    peak, source = peak_of(name, product)
    return {
        "device": name,
        "memory_gb": torch.cuda.get_device_properties(device).total_memory / 1e9 if device.type == "cuda" else None,
        "copy_gb_s": copy_speed(device, 2**20 if toy else 2**30),
        "product_tflop_s": product,
        "peak_tflop_s": peak,
        "peak_from": source,
    }


def silent_tokenizer() -> Any:
    """A tokenizer of made-up words that knows no token that ends a text. Models have more ids than it knows."""
    from holdfast.tasks.world.model import build_tokenizer

    tokenizer = copy.deepcopy(build_tokenizer([" ".join(rollout.words())], rollout.words()))
    tokenizer.eos_token = None
    return tokenizer


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
