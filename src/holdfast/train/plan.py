"""The optimizer step and the forward pass of each row of a batch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

Plan = list[list[list[int]]]
"""Optimizer steps -> forward passes -> rows of the batch."""

_PASS = 256
"""Fixed cost of a forward and backward pass, in tokens, measured on a CPU with a tiny model."""


def plan_update(lengths: Sequence[int], steps: int, micro_batch_tokens: int, generator: torch.Generator) -> Plan:
    """Split rows into `steps` mini-batches at random, each into micro-batches of rows of similar length.

    A micro-batch holds at most `micro_batch_tokens` tokens, padding included (a longer row gets a micro-batch of its
    own). Every row is used exactly once; mini-batches differ by one row at most.

    >>> plan = plan_update([5, 9, 5, 9], 2, 10, torch.Generator().manual_seed(0))
    >>> sorted(row for mini in plan for micro in mini for row in micro)
    [0, 1, 2, 3]
    """
    order = torch.randperm(len(lengths), generator=generator).tolist()
    plan = []
    for k in range(min(steps, len(order))):
        rows = sorted(order[k::steps], key=lambda row: (lengths[row], row))
        bounds = _cheapest_cuts([lengths[row] for row in rows], micro_batch_tokens)
        plan.append([rows[start:end] for start, end in itertools.pairwise(bounds)])
    return plan


def _cheapest_cuts(lengths: Sequence[int], budget: int) -> list[int]:
    """Bounds of micro-batches of rows of ascending length, [0, ..., len(lengths)], with the least cost in all.

    The cost is that of tokens, padding and passes. A pass holds at most `budget` tokens, or a single row. Of three
    short rows and a long one, the long one goes alone:

    >>> _cheapest_cuts([40, 41, 42, 500], budget=4000)
    [0, 3, 4]
    """
    best: list[tuple[int, list[int]]] = [(0, [0])]  # for the first n rows: cost in tokens, cuts
    for end, width in enumerate(lengths, start=1):
        start = max(0, min(end - 1, end - budget // max(width, 1)))
        ways = ((best[i][0] + (end - i) * width + _PASS, i) for i in range(start, end))
        cost, cut = min(ways)
        best.append((cost, [*best[cut][1], end]))
    return best[-1][1]
