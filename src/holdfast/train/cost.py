"""The memory of a run, the disk of a checkpoint and the time of a step, estimated from the shape of the model.

The peak of memory is a micro-batch late in an optimizer step, or late rollouts of a batch or an evaluation. Float32
numbers, of 4 bytes each:

    always held      weights                      P, and 2 for each of the T that are trained: AdamW's moments
                     copies                       T for the reference, T for the anchor; P + 3 T for a critic; P for
                                                  each batch that rollouts are late, and one more
    in an update     gradients                    T
                     activations                  (layers + 1) × (16 hidden + 4 feed-forward) per token of a pass
                     logits                       3 vocabulary per sampled token
                     the embedding's gradient     3 vocabulary × hidden
    in rollouts      weights made ready           P, half of it under autocast; none where MKL multiplies
                     keys and values              those of all rollouts, but at most 2 GiB

Gradient checkpointing leaves two fifths of the activations. Python and its libraries take half a GiB. The factors are
those of the peaks of three models on a CPU (tests/train/test_cost.py); a third of the activations is memory that the C
library does not give back. Passages come on top.

Time is that of the matrix products: a rollout's tokens pass the layers once as it grows, once for the old log-probs and
three times in the update; a sampled token is decoded at half of the speed. A demonstration of the warm start passes
them three times, and a rollout of an evaluation once. The speed is measured.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch

from holdfast.base.errors import ConfigError
from holdfast.base.files import size_text
from holdfast.model.passes.onednn import mkl_is_slow, use_onednn
from holdfast.model.support import CACHE_CPU, SHARING_FROM, keys_of, text_config
from holdfast.recipe import Config
from holdfast.tasks.task_set import Questions
from holdfast.train.evaluate import CHUNK

_LIBRARIES = 2**29
_USABLE = 0.9
"""Share of the machine's memory that a suggestion fills."""
_EFFICIENCY = 0.6
"""Share of a float32 step that is matrix products: the rest is attention, softmax and what lies between."""
_ROWS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The numbers of a model that its memory depends on."""

    parameters: int
    trained: int
    layers: int
    hidden: int
    feed_forward: int
    vocabulary: int
    keys: int = 0
    """Numbers that are stored for each token of a rollout."""


def shape_of(model: Any, lora_rank: int = 0) -> Shape:
    """The shape of a model, which may be on the meta device. `lora_rank` is that of adapters that it will get."""
    config = text_config(model)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if lora_rank:
        head = model.get_output_embeddings()
        linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head]
        trained = sum(lora_rank * (m.in_features + m.out_features) for m in linear)
    return Shape(
        parameters=sum(p.numel() for p in model.parameters()),
        trained=trained,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        feed_forward=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        vocabulary=config.vocab_size,
        keys=keys_of(model),
    )


def held_bytes(shape: Shape, config: Config) -> int:
    """Memory that a run holds from its first optimizer step to its last."""
    copies = (config.loss.kl_coef > 0 or config.reward.kl > 0) + (config.train.anchor_every > 0)
    numbers = shape.parameters + (2 + copies) * shape.trained
    if config.loss.advantage == "gae":
        numbers += shape.parameters + 3 * shape.trained
    if config.sampler_differs:  # on a GPU these wait in the host's memory
        numbers += (config.train.staleness + 1) * shape.parameters
    return _LIBRARIES + 4 * numbers


def fixed_bytes(shape: Shape, config: Config) -> int:
    """Memory of an update that no size of a batch changes."""
    whole = shape.trained == shape.parameters
    return held_bytes(shape, config) + 4 * (shape.trained + whole * 3 * shape.vocabulary * shape.hidden)


def rollout_bytes(shape: Shape, config: Config) -> int:
    """Memory while the rollouts of a batch, or of an evaluation, are as long as they may be."""
    rows = max(config.train.questions * config.train.group_size, CHUNK)
    keys = min(4 * shape.keys * rows * config.protocol.max_total_tokens, CACHE_CPU)
    bf16 = config.model.autocast == "bf16"
    ready = 2 if bf16 else 4 if shape.hidden >= SHARING_FROM and mkl_is_slow() else 0
    return held_bytes(shape, config) + ready * shape.parameters + keys


def token_bytes(shape: Shape, config: Config) -> int:
    """Memory for each token of a micro-batch."""
    activations = (shape.layers + 1) * (16 * shape.hidden + 4 * shape.feed_forward)
    sampled = min(config.protocol.max_sampled_tokens / config.protocol.max_total_tokens, 1)
    left = 0.4 if config.model.gradient_checkpointing else 1
    return int(4 * (left * activations + 3 * sampled * shape.vocabulary))


def pass_tokens(config: Config) -> int:
    """The most tokens of a micro-batch: no more than an optimizer step, or a batch of the warm start, can have."""
    train, warm_start = config.train, config.warm_start
    rows = ceil(train.questions * train.group_size / train.optimizer_steps_per_rollout)
    rows = max(rows, warm_start.batch_size if warm_start.steps else 0)
    return min(train.micro_batch_tokens, rows * config.protocol.max_total_tokens)


def checkpoint_bytes(shape: Shape, config: Config) -> int:
    """Disk of a checkpoint: weights, of LoRA the adapters, and AdamW's moments."""
    numbers = 3 * shape.trained + (config.train.anchor_every > 0) * shape.trained
    if config.loss.advantage == "gae":
        numbers += shape.parameters + 2 * shape.trained
    return 4 * numbers


def operations(shape: Shape, config: Config) -> float:
    """Floating-point operations in the matrix products of a step whose rollouts fill a third of their limits."""
    tokens, sampled = _lengths(config)
    rollouts = config.train.questions * config.train.group_size
    return rollouts * _products(shape, 5 * tokens + sampled, 6 * sampled)


def warm_start_operations(shape: Shape, config: Config) -> float:
    """Those of the warm start, with demonstrations as long as the rollouts."""
    tokens, sampled = _lengths(config)
    steps = config.warm_start.steps + config.world.scripts.plain_steps
    return steps * config.warm_start.batch_size * _products(shape, 3 * tokens, 3 * sampled)


def evaluation_operations(shape: Shape, config: Config, questions: Questions) -> float:
    """Those of all evaluations: on dev while the run trains, and at its end."""
    tokens, sampled = _lengths(config)
    settings = config.eval
    on_dev = 1 + config.train.steps // settings.every if settings.every else 0
    count = on_dev * min(settings.questions, len(questions.dev))
    count += (1 + settings.start) * len(questions.test or questions.dev)
    rollouts = count * (settings.samples + 1)  # one of them is greedy
    return rollouts * _products(shape, tokens + sampled, 2 * sampled)


def _lengths(config: Config) -> tuple[float, float]:
    """(tokens, sampled tokens) of a rollout that fills a third of its limits."""
    limit = config.protocol.max_total_tokens
    return limit / 3, min(config.protocol.max_sampled_tokens, limit) / 3


def _products(shape: Shape, tokens: float, predicted: float) -> float:
    """Operations of `tokens` that pass the layers, and of `predicted` tokens that pass the language-model head."""
    layers = shape.layers * (4 * shape.hidden**2 + 3 * shape.hidden * shape.feed_forward)
    return 2.0 * (layers * tokens + shape.hidden * shape.vocabulary * predicted)


def speed(shape: Shape, *, bf16: bool = False) -> float:
    """Floating-point operations a second in a linear layer of this model, as it would be computed here."""
    layer = torch.nn.Linear(shape.hidden, shape.feed_forward, bias=False)
    rows = torch.zeros(_ROWS, shape.hidden)
    if shape.hidden >= SHARING_FROM and not bf16:
        use_onednn(layer)
    seconds = []
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        for _ in range(5):
            started = time.perf_counter()
            layer(rows)
            seconds.append(time.perf_counter() - started)
    return 2.0 * _ROWS * shape.hidden * shape.feed_forward / min(seconds)


def _time_text(seconds: float) -> str:
    """Seconds for people, in two digits.

    >>> [_time_text(s) for s in (3.2, 40, 130, 5400, 60_000)]
    ['3 s', '40 s', '2 min', '1.5 h', '17 h']
    """
    if seconds < 60:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.2g} h"


def cost_of(model: Any, config: Config, questions: Questions, *, lora_rank: int = 0, made: bool = False) -> str:
    """A sentence on memory, disk and time on a CPU. `made`: whether the cache has the warm start.

    Raises `ConfigError` for a run that needs more memory than there is.
    """
    shape = shape_of(model, lora_rank)
    fixed, each, tokens, room = fixed_bytes(shape, config), token_bytes(shape, config), pass_tokens(config), memory()
    update, rollouts = fixed + each * tokens, rollout_bytes(shape, config)
    peak, smaller = max(update, rollouts), "Take a smaller model, or set model.lora_rank"
    needed = f"{size_text(peak)} of memory, {size_text(fixed)} of it for the model and AdamW"
    if rollouts > room:
        raise ConfigError(
            f"the rollouts of a batch, with protocol.max_total_tokens = {config.protocol.max_total_tokens}, need about "
            f"{size_text(rollouts)} of memory, and this machine has {size_text(room)}. {smaller}"
        )
    if update > room:
        fit = int((_USABLE * room - fixed) / each) // 64 * 64
        raise ConfigError(
            f"train.micro_batch_tokens = {config.train.micro_batch_tokens} needs about {needed}, and this machine has "
            f"{size_text(room)}. {f'Set train.micro_batch_tokens = {fit}' if fit >= 64 else smaller}"
        )
    what = "keys and weights of rollouts"
    if peak == update:
        what = f"{tokens:,} tokens in a pass (train.micro_batch_tokens)"
    plain = speed(shape)
    products = speed(shape, bf16=True) if config.model.autocast == "bf16" else plain  # the rest gets no faster
    a_second = 1 / (1 / products + (1 / _EFFICIENCY - 1) / plain)
    step = operations(shape, config) / a_second
    more = {
        "the warm start": 0.0 if made else warm_start_operations(shape, config) / a_second,
        "evaluations": evaluation_operations(shape, config, questions) / a_second,
    }
    of_it = " and ".join(f"{_time_text(seconds)} for {what}" for what, seconds in more.items() if seconds)
    whole = config.train.steps * step + sum(more.values())
    return (
        f"about {needed} and the rest for {what}; this machine has {size_text(room)}. A checkpoint takes "
        f"{size_text(checkpoint_bytes(shape, config))} of disk (checkpoint.keep = {config.checkpoint.keep}). A step "
        f"takes about {_time_text(step)}, and the whole run {_time_text(whole)}, {of_it} included, if rollouts fill a "
        "third of their limits"
    )


def memory() -> int:
    """Bytes of memory of this machine, or of the container that this process is in."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return total
