"""What tests of whole runs share: the recipe with everything switched on, and when two runs are the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from holdfast.base.run_folder import list_checkpoints
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Config
from holdfast.train.listener import Listener
from holdfast.train.prepare import prepare
from holdfast.train.start import starting_policy
from holdfast.train.trainer import Trainer, make_trainer

Recipe = Callable[..., Config]

EVERYTHING: dict[str, Any] = {
    "train.steps": 4,
    "train.warmup": 3,
    "train.displacement_every": 2,
    "checkpoint.every": 2,
    "eval.every": 2,
    "loss.kl_coef": 0.05,
    "loss.entropy_coef": 0.01,
    "loss.penalty.answer_weight": "adaptive-paper",
    "sampling.temperature": 0.9,
}


class Killed(BaseException):
    """Nothing in holdfast catches it."""


def a_start(config: Config, listener: Listener | None = None) -> LanguageModel:
    """The policy that a run of the recipe starts from."""
    return starting_policy(prepare(config), listener)


def a_trainer(config: Config) -> Trainer:
    """At its first step."""
    prepared = prepare(config)
    return make_trainer(prepared, starting_policy(prepared))


def comparable(run_dir: Path) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl without what a clock says."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    clock = ("retrieval/latency_ms", "tokens_per_s")
    return [
        {k: v for k, v in row.items() if not k.startswith("time") and not k.endswith("_s") and k not in clock}
        for row in rows
    ]


def weights_of(run_dir: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    (newest, *_) = list_checkpoints(run_dir)
    return load_file(newest / "model" / "model.safetensors") | load_file(newest / "optimizer.safetensors")


def assert_same_run(one: Path, other: Path) -> None:
    assert comparable(one) == comparable(other)
    for name in ("trajectories.jsonl", "displacement.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    left, right = weights_of(one), weights_of(other)
    assert left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)
    results = [json.loads((folder / "results.json").read_text()) for folder in (one, other)]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]
