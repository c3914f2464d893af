"""Statistics of a batch, for the log: detached tensors, no host sync. Read the numbers once, at log time.

Each function returns means together with the counts they are means over, so that `merge_stats` can combine the
micro-batches of a step exactly. docs/reference/metrics.md lists the names; `count/*` are the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from holdfast.losses._tensors import (
    MAX_LOG_RATIO,
    check_flags,
    check_logprobs,
    check_paired,
    check_per_row,
    check_rows,
)
from holdfast.losses.policy import importance_log_ratio

SIGNS = ("positive", "negative")
"""Signs of a rollout's advantage. A rollout with A = 0 has neither."""
KINDS = ("thought", "query", "answer")
"""Kinds of sampled tokens."""
EPSILONS = {"half": 1 / 2, "tenth": 1 / 10, "hundredth": 1 / 100}
"""The paper of ISDD names no ε."""

_DRIFT_WEIGHTS = {
    name: f"count/{sign}"
    for sign in SIGNS
    for name in (
        f"drift/{sign}",
        f"ratio/log_product/{sign}",
        *(f"isdd/{sign}/below_{epsilon}" for epsilon in EPSILONS),
    )
} | {f"drift/{sign}/{kind}": f"count/{sign}_{kind}" for sign in SIGNS for kind in KINDS}
WEIGHTS = _DRIFT_WEIGHTS | {
    "penalty/preserved_fraction": "count/tokens",
    "penalty/active_fraction": "count/preserved",
    "penalty/mean_decrease": "count/preserved",
    "ratio/mean": "count/tokens",
    "ratio/p01": "count/tokens",
    "clip/fraction": "count/tokens",
    "ratio/log_product": "count/sequences",
}
"""A mean -> the count that it is a mean over."""


@torch.no_grad()
def penalty_stats(
    penalty: Tensor, logprobs: Tensor, old_logprobs: Tensor, loss_mask: Tensor, *, preserved: Tensor
) -> dict[str, Tensor]:
    """What a likelihood-preserving penalty did in this batch.

    Args:
        penalty: float [..., T], what `llds_penalty` or `sapo_penalty` returned.
        logprobs, old_logprobs: float [..., T], as given to the penalty.
        loss_mask: bool [..., T].
        preserved: bool [..., 1] or [..., T], the preserved tokens of the penalty (`preserved_mask`).

    Returns:
        Scalars:
        * `penalty/preserved_fraction`: preserved tokens / tokens in the mask. Converts λ between the two normalisers.
        * `penalty/active_fraction`: share of preserved tokens on which the penalty is not 0. If it is 0 throughout a
          run, old and current log-probs never differ and the penalty has no effect.
        * `penalty/mean_decrease`: mean over preserved tokens of max(0, l_old − l), in nats, whatever the gate.
        * `count/tokens`, `count/preserved`: the counts behind them. A mean over nothing is 0.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit.
    """
    logprobs = check_logprobs(logprobs, loss_mask)
    preserved = loss_mask & check_flags("preserved", preserved, logprobs)
    active = check_paired("penalty", penalty, logprobs) != 0
    old_logprobs = check_paired("old_logprobs", old_logprobs, logprobs)
    decrease = torch.where(preserved, old_logprobs - logprobs, 0.0).relu()
    token_count, preserved_count = loss_mask.sum(), preserved.sum()
    return {
        "penalty/preserved_fraction": preserved_count / token_count.clamp(min=1),
        "penalty/active_fraction": (active & preserved).sum() / preserved_count.clamp(min=1),
        "penalty/mean_decrease": decrease.sum() / preserved_count.clamp(min=1),
        "count/tokens": token_count,
        "count/preserved": preserved_count,
    }


@torch.no_grad()
def ratio_stats(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    ratio: Literal["token", "action", "sequence"] = "token",
    action_ids: Tensor | None = None,
) -> dict[str, Tensor]:
    """How far the policy has moved from the old policy of `clipped_policy_loss` (same arguments).

    Returns:
        Scalars:
        * `ratio/mean`, `ratio/max`: importance ratio over tokens in the mask, log clamped to ±20.
        * `ratio/p01`: the ratio that 1 % of tokens fall below (the value at rank floor((n − 1) / 100)).
        * `ratio/log_product`: mean over sequences of Σ_k (l_k − l_old,k), in nats; unclamped. `drift_stats` has it
          apart for positive and negative rollouts.
        * `clip/fraction`: share of tokens whose gradient the clip stops: A > 0 and ratio above 1 + clip_high, or A < 0
          and ratio below 1 − clip_low.
        * `count/tokens`, `count/sequences`: the counts behind them. A mean over nothing is 0.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit; 1-D tokens.
    """
    logprobs = check_logprobs(logprobs, loss_mask)
    check_rows(logprobs, "ratio_stats")
    advantages = check_per_row("advantages", advantages, logprobs)
    token_log_ratio = importance_log_ratio(logprobs, old_logprobs, loss_mask, "token")
    log_ratio = token_log_ratio
    if ratio != "token":
        log_ratio = importance_log_ratio(logprobs, old_logprobs, loss_mask, ratio, action_ids)
    ratios = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    masked_ratios = torch.where(loss_mask, ratios, 0.0)
    token_count, sequence_count = loss_mask.sum(), loss_mask.any(-1).sum()
    too_high, too_low = ratios > 1 + clip_high, ratios < 1 - clip_low
    clipped = loss_mask & (((advantages > 0) & too_high) | ((advantages < 0) & too_low))
    return {
        "ratio/mean": masked_ratios.sum() / token_count.clamp(min=1),
        "ratio/max": masked_ratios.amax(),
        "ratio/p01": _low_percentile(ratios, loss_mask, token_count),
        "ratio/log_product": token_log_ratio.sum() / sequence_count.clamp(min=1),
        "clip/fraction": clipped.sum() / token_count.clamp(min=1),
        "count/tokens": token_count,
        "count/sequences": sequence_count,
    }


@torch.no_grad()
def drift_stats(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    query_mask: Tensor | None = None,
    answer_mask: Tensor | None = None,
) -> dict[str, Tensor]:
    """How far rollouts have moved from the old policy, apart by the sign of their advantage.

    An update is meant to make rollouts with A < 0 less likely, and not those with A > 0.

    Args:
        logprobs, old_logprobs: float [..., T], each row a rollout.
        advantages: float [..., 1] or [..., T]; the sign is that of the mean over the row's tokens in the mask.
        loss_mask: bool [..., T].
        query_mask, answer_mask: bool [..., T], True on queries and on the final answer; tokens in neither are thoughts.
            Without both there are no series by kind of token.

    Returns:
        Scalars, with `<sign>` for `positive` (A > 0) and `negative`:
        * `drift/<sign>`: mean over rollouts of the mean over tokens of l − l_old, in nats.
        * `drift/<sign>/<kind>`: mean over tokens of a kind, `thought`, `query` or `answer`, of l − l_old, in nats: what
          proposition 1 is about.
        * `ratio/log_product/<sign>`: mean over rollouts of ln ∏ r = Σ_k (l_k − l_old,k), in nats; unclamped.
        * `isdd/<sign>/below_<half|tenth|hundredth>`: share of rollouts with ∏ r < ε, definition 1's P(∏ r < ε).
        * `count/<sign>`, `count/<sign>_<kind>`: the counts behind them.

        A mean over nothing is 0.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit.

    Source: importance-sampling distribution drift (ISDD), arXiv 2603.10069, definition 1 and proposition 1.
    """
    logprobs = check_logprobs(logprobs, loss_mask)
    change = torch.where(loss_mask, logprobs - check_paired("old_logprobs", old_logprobs, logprobs), 0.0)
    advantages = check_per_row("advantages", advantages, logprobs)
    balance = torch.where(loss_mask, advantages.expand_as(logprobs), 0.0).sum(-1)
    product, length = change.sum(-1), loss_mask.sum(-1)
    masks = {}
    if query_mask is not None and answer_mask is not None:
        answer = loss_mask & check_flags("answer_mask", answer_mask, logprobs)
        query = loss_mask & check_flags("query_mask", query_mask, logprobs) & ~answer
        masks = {"thought": loss_mask & ~query & ~answer, "query": query, "answer": answer}
    stats: dict[str, Tensor] = {}
    for sign, rows in zip(SIGNS, (balance > 0, balance < 0), strict=True):
        count = rows.sum()
        of_rows = {
            f"drift/{sign}": product / length.clamp(min=1),
            f"ratio/log_product/{sign}": product,
            **{f"isdd/{sign}/below_{name}": (product < math.log(e)).to(product.dtype) for name, e in EPSILONS.items()},
        }
        stats |= {name: torch.where(rows, x, 0.0).sum() / count.clamp(min=1) for name, x in of_rows.items()}
        stats[f"count/{sign}"] = count
        for kind, mask in masks.items():
            mine = mask & rows[..., None]
            stats[f"drift/{sign}/{kind}"] = torch.where(mine, change, 0.0).sum() / mine.sum().clamp(min=1)
            stats[f"count/{sign}_{kind}"] = mine.sum()
    return stats


@torch.no_grad()
def merge_stats(stats: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Combine the statistics of several micro-batches, as if computed over one batch.

    Counts add up, `ratio/max` takes the maximum, means are weighted by their counts. The exception is `ratio/p01`,
    which becomes the token-weighted mean.

    Args:
        stats: what `penalty_stats`, `ratio_stats` or `drift_stats`, or the union of them, returned, one per
            micro-batch, same keys.

    Returns:
        The same keys, scalars.

    Raises:
        ValueError: nothing to merge, different keys, or a key that is not one of this module's.
    """
    if not stats or any(s.keys() != stats[0].keys() for s in stats):
        raise ValueError("merge_stats needs at least one dict of statistics, all with the same keys")
    merged: dict[str, Tensor] = {}
    for name in stats[0]:
        values = torch.stack([s[name] for s in stats])
        if name.startswith("count/"):
            merged[name] = values.sum()
        elif name == "ratio/max":
            merged[name] = values.amax()
        elif name in WEIGHTS:
            weights = torch.stack([s[WEIGHTS[name]] for s in stats])
            merged[name] = (values * weights).sum() / weights.sum().clamp(min=1)
        else:
            raise ValueError(f"merge_stats does not know how {name!r} adds up; merge it yourself")
    return merged


def logged_stats(merged: dict[str, Tensor]) -> dict[str, float]:
    """What to log of merged statistics: no counts, and none of `drift_stats` that is a mean over nothing.

    Args:
        merged: scalars, what `merge_stats` returned.

    Returns:
        Scalars as plain numbers, by name.

    Raises:
        KeyError: a series of `drift_stats` without its count.
    """
    return {
        name: float(value)
        for name, value in merged.items()
        if not name.startswith("count/") and (name not in _DRIFT_WEIGHTS or merged[_DRIFT_WEIGHTS[name]] > 0)
    }


def _low_percentile(ratios: Tensor, loss_mask: Tensor, token_count: Tensor) -> Tensor:
    """1st percentile inside the mask; NaN if a ratio there is NaN. Tokens outside sort to the end, so no shape depends
    on the mask."""
    inside = torch.where(loss_mask, ratios, torch.inf).flatten()
    rank = (token_count - 1).clamp(min=0) // 100
    value = torch.where(token_count > 0, inside.sort().values.gather(0, rank[None])[0], 0.0)
    return torch.where(inside.isnan().any(), torch.nan, value)  # a NaN sorts behind the tokens outside
