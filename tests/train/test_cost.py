"""Estimates of memory and disk: against what was measured, and what they refuse."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.base.errors import ConfigError
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Config, load
from holdfast.tasks.opening import load_questions
from holdfast.train import cost
from holdfast.train.cost import (
    Shape,
    checkpoint_bytes,
    cost_of,
    fixed_bytes,
    operations,
    pass_tokens,
    rollout_bytes,
    shape_of,
    speed,
    token_bytes,
)
from holdfast.train.prepare import prepare

from .whole_runs import a_start

GIB = 2**30
SMOLLM2 = Shape(
    parameters=134_515_008,
    trained=134_515_008,
    layers=30,
    hidden=576,
    feed_forward=1536,
    vocabulary=49_152,
    keys=11_520,
)
WIDE = Shape(parameters=111_174_656, trained=111_174_656, layers=6, hidden=1024, feed_forward=4096, vocabulary=8192)
SMALL = Shape(parameters=6_033_664, trained=6_033_664, layers=4, hidden=256, feed_forward=1024, vocabulary=4096)


def config(*settings: str) -> Config:
    return load(None, ["--loss.kl_coef=0", "--protocol.max_total_tokens=1000", *settings])


@pytest.mark.parametrize(
    ("shape", "tokens", "sampled", "checkpointing", "peak"),
    [
        (SMOLLM2, 1000, 0.02, False, 4.58),
        (SMOLLM2, 2000, 0.4, False, 6.81),
        (SMOLLM2, 3000, 0.4, False, 9.24),
        (SMOLLM2, 4000, 0.4, True, 6.32),
        (WIDE, 6000, 0.02, False, 7.19),
        (SMALL, 12000, 0.02, False, 2.37),
    ],
)
def test_the_estimate_is_near_the_peak_that_was_measured(
    shape: Shape, tokens: int, sampled: float, checkpointing: bool, peak: float
) -> None:
    """GiB of resident memory at the peak of two steps of two micro-batches: rows of 200 tokens, torch 2.13, Linux."""
    recipe = config(
        f"--protocol.max_turn_tokens={int(250 * sampled)}",
        f"--model.gradient_checkpointing={str(checkpointing).lower()}",
    )
    assert fixed_bytes(shape, recipe) + tokens * token_bytes(shape, recipe) == pytest.approx(peak * GIB, rel=0.15)


def test_rollouts_hold_ready_weights_and_bounded_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """1.68 GB of resident memory at the peak of an evaluation of SmolLM2-135M, with keys of 256 MiB (torch 2.13)."""
    monkeypatch.setattr(cost, "CACHE_CPU", 2**28)
    recipe = config("--model.autocast=bf16")
    moments = 2 * 4 * SMOLLM2.trained
    assert rollout_bytes(SMOLLM2, recipe) - moments == pytest.approx(1.68e9, rel=0.15)
    monkeypatch.setattr(cost, "mkl_is_slow", lambda: False)
    ready = rollout_bytes(SMOLLM2, recipe) - rollout_bytes(SMOLLM2, config())
    assert ready == 2 * SMOLLM2.parameters
    short = rollout_bytes(SMOLLM2, config("--protocol.max_total_tokens=32", "--train.questions=2"))
    assert rollout_bytes(SMOLLM2, config()) - short == 2**28 - 4 * SMOLLM2.keys * 128 * 32


def test_copies_of_the_weights_cost_what_they_hold() -> None:
    plain, size = fixed_bytes(SMOLLM2, config()), 4 * SMOLLM2.parameters
    assert fixed_bytes(SMOLLM2, config("--loss.kl_coef=0.1", "--train.anchor_every=5")) == plain + 2 * size
    assert checkpoint_bytes(SMOLLM2, config()) == 3 * size
    assert checkpoint_bytes(SMOLLM2, config("--train.anchor_every=5")) == 4 * size


def test_adapters_leave_gradients_and_moments_of_the_other_weights_out(language_model: LanguageModel) -> None:
    whole, adapters = shape_of(language_model.model), shape_of(language_model.model, lora_rank=2)
    widths = 2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 48)  # in and out of a layer: q and o, k and v, the MLP's three
    assert (whole.trained, adapters.trained) == (whole.parameters, 2 * 2 * widths)  # two layers, rank two
    assert fixed_bytes(adapters, config()) < fixed_bytes(whole, config())


def test_a_pass_has_no_more_tokens_than_an_optimizer_step() -> None:
    few = ("--train.questions=4", "--train.group_size=6", "--train.optimizer_steps_per_rollout=4")
    assert pass_tokens(config()) == 16_000  # 160 rollouts in ten optimizer steps
    assert pass_tokens(config(*few)) == 6_000
    assert pass_tokens(config(*few, "--train.micro_batch_tokens=1200")) == 1200
    assert pass_tokens(config(*few, "--warm_start.steps=5", "--warm_start.batch_size=8")) == 8_000


def test_the_time_of_a_step_is_that_of_its_products(
    monkeypatch: pytest.MonkeyPatch, own: Callable[..., Config]
) -> None:
    """On one core of an AMD EPYC (Zen 5) a step of 48 rollouts of 130 tokens, 57 of them sampled, took 55 seconds at
    220 GFLOP/s, with what rollouts share computed once."""
    recipe = config(
        "--protocol.max_total_tokens=390",
        "--protocol.max_turns=2",
        "--protocol.max_turn_tokens=85",
        "--train.questions=8",
        "--train.group_size=6",
    )
    assert operations(SMOLLM2, recipe) / (0.6 * 220e9) == pytest.approx(55, rel=0.5)
    assert operations(SMOLLM2, config("--train.questions=64")) == 2 * operations(SMOLLM2, config())
    assert speed(SMALL) > 1e8
    threads = []

    def known_speed(shape: Shape, *, bf16: bool = False) -> float:
        threads.append(torch.get_num_threads())
        return 1e12 if bf16 else 1e3

    monkeypatch.setattr(cost, "speed", known_speed)
    said = prepare(own("raw", {"run.threads": 2})).needs
    assert threads == [2]
    assert re.search(r" h, and the whole run .* h, .* h for evaluations included, if rollouts fill a third of", said)
    assert "the warm start" not in said
    in_bf16 = prepare(own("raw", {"model.autocast": "bf16"})).needs
    hours, fewer = (float(re.search(r"takes about (\S+) h,", text)[1]) for text in (said, in_bf16))
    assert fewer == pytest.approx(0.4 * hours, rel=0.1), "only the products, 0.6 of a step, are faster"


def test_what_does_not_fit_is_refused_with_a_value_that_does(
    own: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, language_model: LanguageModel
) -> None:
    recipe = own("raw")
    model, each = language_model.model, token_bytes(shape_of(language_model.model), recipe)
    room = fixed_bytes(shape_of(model), recipe) + 100 * each
    monkeypatch.setattr(cost, "CACHE_CPU", 0)
    monkeypatch.setattr(cost, "memory", lambda: int(room / 0.9))
    assert (said := prepare(recipe).needs) is not None and "A checkpoint takes" in said
    monkeypatch.setattr(cost, "memory", lambda: room)
    monkeypatch.setattr(cost, "_USABLE", 1.0)
    with pytest.raises(ConfigError, match=r"train\.micro_batch_tokens = 16384 needs about .* Set .*_tokens = 64$"):
        prepare(recipe)
    prepare(own("raw", {"train.micro_batch_tokens": 64}))
    monkeypatch.setattr(cost, "memory", lambda: 2**28)
    with pytest.raises(ConfigError, match="Take a smaller model, or set model"):
        cost_of(model, recipe, load_questions(recipe))


def test_a_run_says_what_it_needs_also_from_a_start_in_the_cache(
    own: Callable[..., Config], lesson: dict[str, Any], told: Any
) -> None:
    config = own("raw", {"warm_start": lesson["warm_start"] | {"steps": 1}, "run.threads": 0})
    for made in (False, True):
        told.notes.clear()
        a_start(config, told)
        (needs,) = (note for note in told.notes if note.startswith("this run needs about "))
        assert ("for the warm start" in needs) is not made
        assert any(note.startswith("CPU threads: ") for note in told.notes)
    assert any("taken from the cache" in note for note in told.notes)
