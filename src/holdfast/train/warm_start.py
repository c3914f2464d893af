"""Supervised learning on demonstrations, observations masked: reinforcement learning then starts from a policy that can
search.

A demonstration is a whole rollout, of the task set or a row of a JSONL file. It works for any model.
The loss is the mean over the tokens an agent would have sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from holdfast.agent.protocol import SearchProtocol
from holdfast.agent.tools import ToolProtocol
from holdfast.agent.trajectory import ToolResult
from holdfast.base.errors import ModelError
from holdfast.model.language_model import LanguageModel
from holdfast.model.support import give_back_memory
from holdfast.recipe.sections import WarmStart
from holdfast.tasks.demonstrations import Turn
from holdfast.train.optimizer import adamw, clipped_step, set_learning_rate, training_mode
from holdfast.train.plan import plan_update

_LARGE = 10_000_000
"""Models of at least so many weights return freed memory after each step, because passes of many lengths fragment the
heap. With SmolLM2-135M a process held 7.7 GiB without it (60 steps), and 6.3 like this (24 steps), for 3 % more time;
7.0 when memory was returned every eighth step. A step of the tiny model would take a sixth longer."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A rollout to learn from."""

    token_ids: Sequence[int] | np.ndarray
    """Prompt, turns and observations; an int32 array where there are many."""
    loss_mask: tuple[bool, ...]
    """True on tokens of turns, False on the prompt and on observations."""


def encode_demonstration(
    prompt: Sequence[int], turns: Sequence[Turn], protocol: SearchProtocol, tokenizer: Any
) -> Demonstration:
    """A demonstration from its texts. Each turn and each observation is encoded alone, as in a rollout."""
    ids, mask = list(prompt), [False] * len(prompt)
    for text, observation in turns:
        turn_ids = protocol.encode_turn(text, tokenizer)
        if isinstance(observation, str):
            observation_ids = protocol.encode_observation(observation, tokenizer, turn=turn_ids)
        elif isinstance(observation, ToolResult):
            assert isinstance(protocol, ToolProtocol)
            observation_ids = list(protocol.observe_result(observation, tokenizer, turn=turn_ids).token_ids)
        else:
            observation_ids = list(protocol.observe(observation, tokenizer, turn=turn_ids).token_ids)
        ids += turn_ids + observation_ids
        mask += [True] * len(turn_ids) + [False] * len(observation_ids)
    return Demonstration(tuple(ids), tuple(mask))


def augment_by_renaming(
    demonstrations: Sequence[Demonstration], pools: Sequence[Sequence[int]], count: int, seed: int
) -> list[Demonstration]:
    """`count` demonstrations made from the given ones by renaming: in each, the token ids of every pool are permuted.

    A tiny model that sees the same few thousand facts again and again memorises them, and then does not read its
    observations. If each demonstration has names of its own, only reading gives the answer.

    >>> demonstration = Demonstration((1, 2, 3, 1), (False, True, True, True))
    >>> sorted({tuple(e.token_ids.tolist()) for e in augment_by_renaming([demonstration], [(1, 2)], 20, seed=1)})
    [(1, 2, 3, 1), (2, 1, 3, 2)]
    """
    rng = np.random.default_rng(seed)
    size = 1 + max(max(demonstration.token_ids) for demonstration in demonstrations)
    size = max(size, 1 + max((i for pool in pools for i in pool), default=0))
    disguises = []
    for k in range(count):
        renamed = np.arange(size, dtype=np.int32)
        for pool in pools:
            renamed[list(pool)] = rng.permutation(pool)
        demonstration = demonstrations[k % len(demonstrations)]
        token_ids = renamed[np.asarray(demonstration.token_ids)]
        disguises.append(Demonstration(token_ids, demonstration.loss_mask))
    return disguises


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over the first twentieth, then a cosine to a tenth of the peak."""
    rise = max(steps // 20, 1)
    if step < rise:
        return peak * (step + 1) / rise
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1))))


def warm_start(
    language_model: LanguageModel,
    demonstrations: Sequence[Demonstration],
    settings: WarmStart,
    *,
    micro_batch_tokens: int,
) -> Iterator[dict[str, float]]:
    """Train in place; yields `{"step", "loss"}` after every optimizer step. Nothing is learned from tokens of prompts
    and observations. A forward pass has at most `micro_batch_tokens`, padding included.

    Steps whose gradient is not finite are skipped; raises `ModelError` after ten in a row.
    """
    steps, pad_token_id, device = settings.steps, language_model.pad_token_id, language_model.device
    parameters = [p for p in language_model.model.parameters() if p.requires_grad]
    optimizer = adamw(parameters, lr=settings.lr, betas=(0.9, 0.98), weight_decay=0.01)
    is_large = sum(p.numel() for p in language_model.model.parameters()) >= _LARGE
    skipped = 0
    with training_mode(language_model):
        for step, rows in zip(range(steps), batches(demonstrations, settings), strict=False):
            set_learning_rate(optimizer, learning_rate(step, steps, settings.lr))
            optimizer.zero_grad(set_to_none=True)
            loss, tokens = 0.0, sum(sum(row.loss_mask) for row in rows)
            for part in _micro_batches(rows, settings, micro_batch_tokens, device):
                ids, mask = pad(part, pad_token_id, device)
                logprobs = language_model.logprobs(ids, mask).logprobs
                share = -logprobs.sum() / tokens
                share.backward()
                loss += float(share.detach())
            if math.isfinite(clipped_step(optimizer, parameters, 1.0)):
                skipped = 0
            elif (skipped := skipped + 1) == 10:
                raise ModelError(
                    f"warm start, step {step + 1}: ten gradients in a row are not finite, so nothing is learned; lower "
                    "warm_start.lr, or set model.autocast = 'none'"
                )
            yield {"step": step + 1, "loss": loss}
            if is_large:
                give_back_memory()
    optimizer.zero_grad(set_to_none=True)  # rollouts need the memory


def pad(rows: Sequence[Demonstration], pad_token_id: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and loss mask `[B, T]`, padded on the right."""
    width = max(len(row.token_ids) for row in rows)
    ids = torch.full((len(rows), width), pad_token_id)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row.token_ids)] = torch.from_numpy(np.asarray(row.token_ids, dtype=np.int64))
        mask[i, : len(row.loss_mask)] = torch.tensor(row.loss_mask)
    return ids.to(device), mask.to(device)


def batches(demonstrations: Sequence[Demonstration], settings: WarmStart) -> Iterator[list[Demonstration]]:
    """Endless batches, the shortest demonstration of each first: shuffle, and cut.

    By length, cut into pools of 16 batches, sort each pool by length, and shuffle its batches. Small batches
    then hold demonstrations of one kind, because length goes with the number of turns, and a short warm start ends with
    the habits of its last batches.
    """
    size, generator = settings.batch_size, torch.Generator().manual_seed(settings.seed)
    pool_size = size * 16 if settings.batches == "by-length" else size
    while True:
        order = torch.randperm(len(demonstrations), generator=generator).tolist()
        for start in range(0, len(order), pool_size):
            pool = sorted(order[start : start + pool_size], key=lambda i: len(demonstrations[i].token_ids))
            parts = [pool[i : i + size] for i in range(0, len(pool), size)]
            for b in torch.randperm(len(parts), generator=generator).tolist():
                yield [demonstrations[i] for i in parts[b]]


def _micro_batches(
    rows: Sequence[Demonstration], settings: WarmStart, max_tokens: int, device: torch.device
) -> list[list[Demonstration]]:
    """Runs of rows, which come shortest first, of at most `max_tokens` each with their padding."""
    lengths = [len(row.token_ids) for row in rows]
    if settings.batches == "mixed":  # of different lengths: a pass more may cost less than the padding
        return [[rows[i] for i in part] for part in plan_update(lengths, [range(len(rows))], max_tokens, device)[0]]
    parts: list[list[Demonstration]] = []
    for row, length in zip(rows, lengths, strict=True):
        if parts and (len(parts[-1]) + 1) * length <= max_tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts
