"""The optimizer step and the forward pass of each row of a batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from holdfast.model.text.tokens import common_prefix

Plan = list[list[list[int]]]
"""Optimizer steps -> forward passes -> rows of the batch."""

_PASS, _PASS_ON_GPU = 256, 4096
"""Fixed cost of a forward and backward pass, in tokens: measured on a CPU with a tiny model, and on an H200, where
SmolLM2-135M takes as long for 1,200 tokens as for 4,096. Launching the kernels takes that time."""


def _pass_cost(device: torch.device) -> int:
    return _PASS_ON_GPU if device.type == "cuda" else _PASS


def gathered(parts: Iterable[Tensor], plan: Plan, like: Tensor) -> Tensor:
    """What the forward passes of a plan give, [b, t] each, as [B, T], the shape and dtype of `like`; 0 elsewhere."""
    whole = torch.zeros_like(like)
    for part, rows in zip(parts, itertools.chain.from_iterable(plan), strict=True):
        whole[rows, : part.shape[1]] = part
    return whole


def shuffled(count: int, steps: int, generator: torch.Generator) -> list[list[int]]:
    """Mini-batches of `count` rows that are drawn at random; there are `steps`, or as many as rows."""
    order = torch.randperm(count, generator=generator).tolist()
    return [order[k::steps] for k in range(min(steps, count))]


def in_order(count: int, steps: int) -> list[list[int]]:
    """Mini-batches of consecutive rows, so that rollouts of one question stay together.

    >>> in_order(5, 2)
    [[0, 1], [2, 3, 4]]
    """
    steps = min(steps, count)
    return [list(range(count * k // steps, count * (k + 1) // steps)) for k in range(steps)]


def apart(
    minibatches: Sequence[Sequence[int]], learns: Sequence[bool], lengths: Sequence[int], device: torch.device
) -> list[list[list[int]]]:
    """Each mini-batch as the rows that an update learns from and those that it skips, which get passes of their own.
    Whole where those it skips have fewer tokens than a pass costs.

    >>> apart([[0, 1, 2], [3, 4]], [True, False, True, True, False], [300, 300, 300, 300, 9], torch.device("cpu"))
    [[[0, 2], [1]], [[3, 4]]]
    """
    parts, pass_cost = [], _pass_cost(device)
    for mini in minibatches:
        kinds = [[row for row in mini if learns[row] is kind] for kind in (True, False)]
        worth = sum(lengths[row] for row in kinds[1]) >= pass_cost
        parts.append([rows for rows in kinds if rows] if worth else [[*mini]])
    return parts


def plan_update(
    lengths: Sequence[int], minibatches: Sequence[Sequence[int]], micro_batch_tokens: int, device: torch.device
) -> Plan:
    """Split the rows of each mini-batch into micro-batches of rows of similar length.

    A micro-batch holds at most `micro_batch_tokens` tokens, padding included (a longer row gets a micro-batch of its
    own). On a GPU another pass costs more than much padding does.

    >>> plan_update([40, 500, 41, 42], [[0, 1, 2, 3]], 4000, torch.device("cpu"))
    [[[0, 2, 3], [1]]]
    >>> plan_update([40, 500, 41, 42], [[0, 1, 2, 3]], 4000, torch.device("cuda"))
    [[[0, 2, 3, 1]]]
    """
    plan, pass_cost = [], _pass_cost(device)
    for mini in minibatches:
        rows = sorted(mini, key=lambda row: (lengths[row], row))
        bounds = _cheapest_cuts([lengths[row] for row in rows], micro_batch_tokens, pass_cost)
        plan.append([rows[start:end] for start, end in itertools.pairwise(bounds)])
    return plan


def plan_alike(rows: Sequence[Sequence[int]], minibatches: Sequence[Sequence[int]], micro_batch_tokens: int) -> Plan:
    """Split the rows of each mini-batch into micro-batches of rows that begin alike, for a model that passes over each
    shared token once (`holdfast.model.passes.packed`).

    Attention sees whole rows, with their padding. A token costs three quarters once, and a quarter in each row.

    >>> plan_alike([[1, 2, 3], [5, 5, 5], [1, 2, 4], [5, 5, 6]], [[0, 1, 2, 3]], 6)
    [[[0, 2], [1, 3]]]
    """
    return [_alike(rows, mini, micro_batch_tokens) for mini in minibatches]


def _alike(rows: Sequence[Sequence[int]], mini: Sequence[int], budget: int) -> list[list[int]]:
    parts: list[list[int]] = []
    different = width = 0
    for row in sorted(mini, key=lambda row: (rows[row], row)):
        length = len(rows[row])
        if parts:
            new, wide = length - common_prefix(rows[parts[-1][-1]], rows[row]), max(width, length)
            if 3 * (different + new) + (len(parts[-1]) + 1) * wide <= 4 * budget:
                parts[-1].append(row)
                different, width = different + new, wide
                continue
        parts.append([row])
        different = width = length
    return parts


def _cheapest_cuts(lengths: Sequence[int], budget: int, pass_cost: int) -> list[int]:
    """Bounds of micro-batches of rows of ascending length, [0, ..., len(lengths)], with the least cost in all.

    The cost is that of tokens, padding and passes. A pass holds at most `budget` tokens, or a single row.

    >>> _cheapest_cuts([40, 41, 42, 500], budget=4000, pass_cost=256)
    [0, 3, 4]
    """
    best: list[tuple[int, list[int]]] = [(0, [0])]  # for the first n rows: cost in tokens, cuts
    for end, width in enumerate(lengths, start=1):
        start = max(0, min(end - 1, end - budget // max(width, 1)))
        ways = ((best[i][0] + (end - i) * width + pass_cost, i) for i in range(start, end))
        cost, cut = min(ways)
        best.append((cost, [*best[cut][1], end]))
    return best[-1][1]
