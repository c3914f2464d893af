"""Statistics of a batch, for the log: detached tensors, no host sync. Read the numbers once, at log time.

Each function returns means together with the counts they are means over, so `merge_stats` can put the micro-batches of
a step together exactly. Names are the metrics' own (docs/metrics.md); `count/*` are the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from holdfast.losses._tensors import (
    MAX_LOG_RATIO,
    check_flags,
    check_ids,
    check_layout,
    check_logprobs,
    check_paired,
    check_per_row,
    count_sequences,
)
from holdfast.losses.surrogate import importance_log_ratio

_WEIGHTS = {
    "penalty/preserved_fraction": "count/tokens",
    "penalty/active_fraction": "count/preserved",
    "penalty/mean_decrease": "count/preserved",
    "ratio/mean": "count/tokens",
    "ratio/p01": "count/tokens",
    "clip/fraction": "count/tokens",
    "ratio/log_product": "count/sequences",
}


@torch.no_grad()
def penalty_stats(
    penalty: Tensor, logprobs: Tensor, old_logprobs: Tensor, loss_mask: Tensor, *, preserve: Tensor
) -> dict[str, Tensor]:
    """What a likelihood-preserving penalty did in this batch. Works for LLDS and SAPO alike.

    Args:
        penalty: float [..., T], what `llds_penalty` or `sapo_penalty` returned.
        logprobs, old_logprobs: float [..., T], as given to the penalty.
        loss_mask: bool [..., T].
        preserve: bool [..., 1] or [..., T], the preserving set the penalty used (`preserving_mask`).

    Returns:
        Scalars:
        * `penalty/preserved_fraction`: preserved tokens / tokens in the mask. Converts λ between the two normalisers.
        * `penalty/active_fraction`: share of preserved tokens on which the penalty is not 0. Zero throughout a run
          means that old and current log-probs never differ: the penalty is inert.
        * `penalty/mean_decrease`: mean over preserved tokens of max(0, l_old − l), in nats, whatever the gate does.
        * `count/tokens`, `count/preserved`: the counts behind them. A mean over nothing is 0.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit.
    """
    lp = check_logprobs(logprobs, loss_mask)
    kept = loss_mask & check_flags("preserve", preserve, lp)
    pull = check_paired("penalty", penalty, lp) != 0
    drop = torch.where(kept, check_paired("old_logprobs", old_logprobs, lp) - lp, 0.0).relu()
    tokens, preserved = loss_mask.sum(), kept.sum()
    return {
        "penalty/preserved_fraction": preserved / tokens.clamp(min=1),
        "penalty/active_fraction": (pull & kept).sum() / preserved.clamp(min=1),
        "penalty/mean_decrease": drop.sum() / preserved.clamp(min=1),
        "count/tokens": tokens,
        "count/preserved": preserved,
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
    ratio: Literal["token", "sequence"] = "token",
    sequence_ids: Tensor | None = None,
) -> dict[str, Tensor]:
    """How far the policy has moved from the one that is old in `clipped_policy_loss` (same arguments).

    Returns:
        Scalars:
        * `ratio/mean`, `ratio/max`: importance ratio over tokens in the mask, log clamped to ±20.
        * `ratio/p01`: the ratio that 1 % of tokens fall below (the value at rank floor((n − 1) / 100)).
        * `ratio/log_product`: mean over sequences of Σ_k (l_k − l_old,k), in nats; unclamped. SAPO's ISDD is this
          falling far below 0 for many sequences (arXiv 2603.10069, definition 1).
        * `clip/fraction`: share of tokens whose gradient the clip stops: A > 0 and ratio above 1 + clip_high, or A < 0
          and ratio below 1 − clip_low.
        * `count/tokens`, `count/sequences`: the counts behind them. A mean over nothing is 0.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit; 1-D tokens without `sequence_ids`.
    """
    lp = check_logprobs(logprobs, loss_mask)
    check_ids("sequence_ids", sequence_ids, lp)
    check_layout(lp, sequence_ids, "ratio_stats")
    a = check_per_row("advantages", advantages, lp, sequence_ids)
    own = importance_log_ratio(lp, old_logprobs, loss_mask, "token", sequence_ids)
    log_r = own if ratio == "token" else importance_log_ratio(lp, old_logprobs, loss_mask, ratio, sequence_ids)
    r = log_r.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    inside = torch.where(loss_mask, r, 0.0)
    tokens, sequences = loss_mask.sum(), count_sequences(loss_mask, sequence_ids)
    clipped = loss_mask & (((a > 0) & (r > 1 + clip_high)) | ((a < 0) & (r < 1 - clip_low)))
    return {
        "ratio/mean": inside.sum() / tokens.clamp(min=1),
        "ratio/max": inside.amax(),
        "ratio/p01": _low_percentile(r, loss_mask, tokens),
        "ratio/log_product": own.sum() / sequences.clamp(min=1),
        "clip/fraction": clipped.sum() / tokens.clamp(min=1),
        "count/tokens": tokens,
        "count/sequences": sequences,
    }


@torch.no_grad()
def merge_stats(stats: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Put the statistics of several micro-batches together: as if they had been taken over one batch.

    Counts add up, `ratio/max` takes the maximum, means are weighted by their counts. The exception is `ratio/p01`, for
    which the token-weighted mean stands in.

    Args:
        stats: what `penalty_stats`, `ratio_stats`, or the union of both returned, one per micro-batch, same keys.

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
        elif name in _WEIGHTS:
            weights = torch.stack([s[_WEIGHTS[name]] for s in stats])
            merged[name] = (values * weights).sum() / weights.sum().clamp(min=1)
        else:
            raise ValueError(f"merge_stats does not know how {name!r} adds up; merge it yourself")
    return merged


def _low_percentile(r: Tensor, loss_mask: Tensor, tokens: Tensor) -> Tensor:
    """1st percentile inside the mask. Tokens outside sort to the end, so no shape depends on the mask."""
    ordered = torch.where(loss_mask, r, torch.inf).flatten().sort().values
    rank = (tokens - 1).clamp(min=0) // 100
    return torch.where(tokens > 0, ordered.gather(0, rank[None])[0], 0.0)
