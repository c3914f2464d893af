"""Sampling as pure functions: a counter-based uniform per token, and the inverse of the distribution's CDF.

A token's randomness is a function of (seed, position) and of nothing else, so a rollout is the same whatever else is
in its batch, in whatever order rows enter and leave, and after a resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.base.errors import ConfigError

_MASK64 = (1 << 64) - 1
_GAMMA, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(value: int) -> int:
    """The two's complement reading of 64 bits: torch has int64, whose products wrap, but no unsigned arithmetic."""
    return value - (1 << 64) if value >= 1 << 63 else value


def seed_key(seed: int) -> int:
    """64-bit key of a seed (splitmix64's finalizer), as a signed integer. Neighbouring seeds get unrelated keys.

    >>> hex(seed_key(0) & (1 << 64) - 1)  # the first output of splitmix64 started at 0
    '0xe220a8397b1dcdaf'
    """
    z = (seed + _GAMMA) & _MASK64
    z = (z ^ (z >> 30)) * _MIX1 & _MASK64
    z = (z ^ (z >> 27)) * _MIX2 & _MASK64
    return _signed(z ^ (z >> 31))


def counter_uniform(keys: Tensor, positions: Tensor) -> Tensor:
    """Uniforms in [0, 1): the `positions`-th output of splitmix64 started at `keys`, its upper 32 bits.

    Args:
        keys: int64, any shape, from `seed_key`.
        positions: int64, broadcast against `keys`; counts from 0.

    Returns:
        float64 of the broadcast shape, multiples of 2**-32.
    """
    z = keys + (positions + 1) * _signed(_GAMMA)
    # `>>` on int64 copies the sign bit in; the mask makes it the logical shift the generator is defined with.
    z = (z ^ ((z >> 30) & (_MASK64 >> 30))) * _signed(_MIX1)
    z = (z ^ ((z >> 27) & (_MASK64 >> 27))) * _signed(_MIX2)
    z = z ^ ((z >> 31) & (_MASK64 >> 31))
    return ((z >> 32) & 0xFFFFFFFF).double() * 2.0**-32


@dataclass(frozen=True, slots=True)
class SamplingMask:
    """The tokens that a truncated sampler could draw at each sampled token of a batch."""

    rows: tuple[Tensor, ...]
    """For each rollout int32 [n_i, k]: the drawable ids at each of its n_i sampled tokens, -1 on unused places."""

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, rows: Sequence[int]) -> SamplingMask:
        """The given rollouts, in the given order."""
        return type(self)(tuple(self.rows[row] for row in rows))

    def to(self, device: torch.device | str) -> SamplingMask:
        """The same mask on another device."""
        return type(self)(tuple(row.to(device) for row in self.rows))

    def logsumexp(self, logits: Tensor) -> Tensor:
        """float [N], of float [N, V] `logits` at the N sampled tokens, rollout by rollout: over drawable ids alone."""
        ids = torch.cat(self.rows)
        return logits.gather(-1, ids.clamp(min=0).long()).masked_fill(ids < 0, -torch.inf).logsumexp(-1)


class SamplerRatios(SamplingMask):
    """How much more likely a sampler with other weights was to draw each token than the old policy.

    `rows` are, for each rollout, float32 [n_i, V]: log q(v) − log p_old(v) at each of its n_i sampled tokens.
    """

    __slots__ = ()

    def logsumexp(self, logits: Tensor) -> Tensor:
        """float [N], of float [N, V] `logits` at the N sampled tokens, rollout by rollout: log Σ_v exp(logits)·q/p_old.
        Of log-probs log p it is the log of E_q[p / p_old]."""
        return (logits + torch.cat(self.rows)).logsumexp(-1)


class Sampled(NamedTuple):
    """One drawn token per row, all `[B]`."""

    tokens: Tensor
    logprobs: Tensor
    """float32, over the whole vocabulary, also under truncation."""
    mask_mass: Tensor | None
    """float32: probability inside the sampling mask; None when nothing was truncated."""


def _invert(cdf: Tensor, uniforms: Tensor) -> Tensor:
    """Index of the first entry of `cdf` `[B, V]` (unnormalised, ascending) above `uniforms * total`.

    `nextafter` keeps the target below the total after rounding, so an entry of zero mass is never returned.
    """
    total = cdf[:, -1:]
    target = torch.minimum(
        uniforms.to(cdf.dtype).unsqueeze(-1) * total, torch.nextafter(total, torch.zeros_like(total))
    )
    return torch.searchsorted(cdf, target, right=True).clamp_(max=cdf.shape[-1] - 1)


def _most_likely_first(mass: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The `top_k` largest of each row of float32 `[B, V]` (0 = all), largest first, equals by id; and their ids."""
    vocabulary = mass.shape[-1]
    if not 0 < top_k < vocabulary:
        return mass.sort(stable=True, dim=-1, descending=True)
    # Two ways to the same ids: a GPU would have to wait for a branch, and a CPU is ten times slower with keys.
    return (_ranked_by_branch if mass.device.type == "cpu" else _ranked_by_key)(mass, top_k)


def _ranked_by_key(mass: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Without a branch on the data. `topk` leaves open which of equal values it returns, so the id is part of the
    value; the bits of floats that are not negative are ordered as the floats are."""
    vocabulary = mass.shape[-1]
    rank = torch.arange(vocabulary - 1, -1, -1, device=mass.device)
    best = (mass.view(torch.int32).long() << 32 | rank).topk(top_k, dim=-1).values
    ids = vocabulary - 1 - (best & 0xFFFFFFFF)
    return mass.gather(-1, ids), ids


def _ranked_by_branch(mass: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Looks at the boundary, and sorts out equal masses only where there are some."""
    values, ids = mass.topk(top_k + 1, dim=-1)
    tied = bool((values[:, -1] == values[:, -2]).any())
    ids = _first_by_id(mass, top_k) if tied else ids[:, :-1].sort(-1).values
    ranked, order = mass.gather(-1, ids).sort(stable=True, dim=-1, descending=True)
    return ranked, ids.gather(-1, order)


def _first_by_id(mass: Tensor, top_k: int) -> Tensor:
    """Ids of the `top_k` largest of each row, ascending; of equals on the boundary those with the lowest ids."""
    # NaN, which the caller refuses once it has the log-probs, equals nothing: every row must find its `top_k`.
    ordered = mass.nan_to_num(0.0)
    boundary = ordered.topk(top_k, sorted=False).values.amin(-1, keepdim=True)
    above, level = ordered > boundary, ordered == boundary
    selected = above | (level & (level.cumsum(-1) <= top_k - above.sum(-1, keepdim=True)))
    return selected.nonzero()[:, 1].view(-1, top_k)


def truncate(mass: Tensor, top_p: float, top_k: int) -> tuple[Tensor, Tensor]:
    """Top-k, then top-p, of `mass`, float32 `[B, V]`, none negative.

    Returns the masses, most likely first, 0 outside the mask; and their token ids.
    """
    ranked, order = _most_likely_first(mass, top_k)
    if top_p < 1.0:
        cdf = ranked.cumsum(-1)
        outside = cdf - ranked >= top_p * cdf[:, -1:]
        outside[:, 0] = False
        ranked = ranked.masked_fill(outside, 0.0)
    return ranked, order


def sampling_mask_ids(logits: Tensor, tokens: Tensor, *, top_p: float, top_k: int) -> Tensor:
    """The sampling mask: the ids that `draw` could have returned where it returned `tokens`.

    Args:
        logits: `[N, V]`, already divided by the temperature.
        tokens: `[N]`, what was drawn. They always belong, even where rounding puts one just beyond the boundary.

    Returns:
        int32 `[N, n]`, -1 where a row has fewer ids than the fullest one.
    """
    logits = logits.float()
    return drawable_ids(*truncate((logits - logits.amax(-1, keepdim=True)).exp_(), top_p, top_k), tokens)


def drawable_ids(ranked: Tensor, order: Tensor, tokens: Tensor) -> Tensor:
    """What `sampling_mask_ids` returns, of the masses and ids `[N, k]` that `truncate` returned."""
    ids = order.masked_fill(ranked == 0, -1)[:, : int((ranked > 0).sum(-1).max())] if len(order) else order[:, :0]
    beyond = ~(ids == tokens[:, None]).any(-1, keepdim=True)
    if bool(beyond.any()):
        ids = torch.cat([ids, torch.where(beyond, tokens[:, None], -1)], dim=-1)
    return ids.int()


def check_sampling(temperature: float, top_p: float, top_k: int) -> None:
    """Raise `ConfigError` for settings that a sampler cannot have."""
    if not temperature > 0:
        raise ConfigError(
            f"temperature = {temperature}: logits cannot be divided by it; for the most likely token use greedy"
        )
    if not 0 < top_p <= 1 or top_k < 0:
        raise ConfigError(
            f"top_p = {top_p}, top_k = {top_k}: top_p must be in (0, 1] and top_k must be 0 (all) or more"
        )


def draw(logits: Tensor, uniforms: Tensor, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> Sampled:
    """Draw one token per row by inverting the CDF at `uniforms`.

    Truncation leaves the `top_k` most likely tokens (0 = all), then, of those renormalised, the smallest
    most-likely-first set whose mass reaches `top_p`. Equal logits are ordered by token id. At least one token always
    remains.

    Args:
        logits: `[B, V]`, any float dtype; computed in float32.
        uniforms: `[B]` in [0, 1).
        temperature: > 0; divides the logits, before everything else.

    Returns:
        Tokens, their log-probs under the *untruncated* softmax(logits / temperature), and the mass of the mask.
    """
    scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
    peak = scaled.amax(-1, keepdim=True)
    mass = (scaled - peak).exp_()
    mask_mass = None
    if top_p >= 1.0 and top_k <= 0:
        cdf = mass.cumsum(-1)
        total = cdf[:, -1:]
        tokens = _invert(cdf, uniforms)
    else:
        total = mass.sum(-1, keepdim=True)
        ranked, order = truncate(mass, top_p, top_k)
        cdf = ranked.cumsum(-1)
        tokens = order.gather(-1, _invert(cdf, uniforms))
        mask_mass = (cdf[:, -1:] / total).squeeze(-1)
    logprobs = scaled.gather(-1, tokens) - peak - total.log()
    return Sampled(tokens.squeeze(-1), logprobs.squeeze(-1), mask_mass)


def pick_most_likely(logits: Tensor, *, temperature: float = 1.0) -> Sampled:
    """Greedy choice per row of `[B, V]`; its log-prob under softmax(logits / temperature)."""
    scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
    peak, tokens = scaled.max(-1)
    return Sampled(tokens, -(scaled - peak.unsqueeze(-1)).exp_().sum(-1).log_(), None)
