"""CISPO, DPPO, OPSM, the filters, the sampler's weights and GAE against double Python loops; poison under the mask."""

from __future__ import annotations

import math
import random

import pytest
import torch

from holdfast.losses import (
    cispo_loss,
    clip_cov_mask,
    dppo_mask,
    effective_sample_size,
    gae_advantages,
    ipo_mask,
    off_policy_sequence_mask,
    sampler_weights,
    second_moment_cut,
    second_moments,
    value_loss,
)

from .test_losses_differential import CHUNKS, TOLERANCE, Tensors, naive_runs, random_batch, seeds


def naive_cispo(s, low, high):
    out = {}
    for k in s.tokens():
        r = math.exp(min(max(s.l[k] - s.old[k], -20), 20))
        w = -min(max(r, 1 - low), 1 + high) * s.A
        out[k] = (w * s.l[k], w)
    return out


def naive_dppo(s, low, high):
    def stays(k):
        rise = math.exp(s.l[k]) - math.exp(s.old[k])
        return not ((s.A > 0 and rise > high) or (s.A < 0 and -rise > low))

    return [m and stays(k) for k, m in enumerate(s.mask)]


def naive_ipo(s, eps):
    """`ref` plays the sampler."""
    return [m and abs(math.exp(s.l[k]) - math.exp(s.ref[k])) <= eps for k, m in enumerate(s.mask)]


def clip_cov(x):
    """`ref` plays the draws."""
    return clip_cov_mask(x.l, x.A, x.mask, x.ref, share=0.2, low=0.1, high=9.0)


def naive_clip_cov(batch):
    tokens = [(s.A, s.l[k], s.ref[k], i, k) for i, s in enumerate(batch) for k in s.tokens()]
    n = max(len(tokens), 1)
    mean_a, mean_l = sum(t[0] for t in tokens) / n, sum(t[1] for t in tokens) / n
    inside = [t for t in tokens if 0.1 < (t[0] - mean_a) * (t[1] - mean_l) < 9.0]
    dropped = {t[3:] for t in sorted(inside, key=lambda t: t[2])[: max(1, int(0.2 * n))]}
    return [[m and (i, k) not in dropped for k, m in enumerate(s.mask)] for i, s in enumerate(batch)]


def naive_off_policy(s, threshold):
    tokens = s.tokens()
    moved = sum(s.old[k] - s.l[k] for k in tokens) / len(tokens) if tokens else 0.0
    return [m and (s.A >= 0 or moved <= threshold) for m in s.mask]


def naive_weights(s, level, aggregate, keep, low, high, actions):
    """`ref` plays the sampler."""
    tokens, out = s.tokens(), [0.0] * len(s.mask)
    for k in tokens:
        unit = {"token": [k], "sequence": tokens, "action": [j for j in tokens if actions[j] == actions[k]]}[level]
        x = sum(s.old[j] - s.ref[j] for j in unit)
        if aggregate == "mean":
            x /= len(unit)
        w = math.exp(min(max(x, -20), 20))
        inside = low <= w <= high
        out[k] = {"truncate": min(max(w, low), high), "mask": w if inside else 0.0, "reject": float(inside)}[keep]
    return out


def naive_gae(s, rewards, gamma, lam):
    """Sums of discounted errors, each to its end: not the recursion."""
    tokens, advantages = s.tokens(), [0.0] * len(s.mask)
    for i, k in enumerate(tokens):
        for n, j in enumerate(tokens[i:]):
            after = s.old[tokens[i + n + 1]] if i + n + 1 < len(tokens) else 0.0
            advantages[k] += (gamma * lam) ** n * (rewards[j] + gamma * after - s.old[j])
    return advantages, [a + s.old[k] if s.mask[k] else 0.0 for k, a in enumerate(advantages)]


def close(x: Tensors, got, rows):
    expected = x.tensor(rows, 0.0, torch.float64)
    assert (got[~x.mask] == 0).all() and not got.requires_grad
    torch.testing.assert_close(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


def naive_m2po(batch, bound):
    """M2PO's algorithm 1 as it stands: drop the largest until the mean is at most the bound."""
    active = [
        (s.l[k] - s.old[k]) ** 2
        for s in batch
        for k in s.tokens()
        if (s.A > 0 and s.l[k] > s.old[k]) or (s.A < 0 and s.l[k] < s.old[k])
    ]
    kept = sorted(active)
    while kept and math.fsum(kept) / len(kept) > bound:
        kept.pop()
    return active, kept


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_m2po_drops_what_the_loop_drops(chunk):
    for seed in seeds(chunk):
        batch, rng = random_batch(seed), random.Random(-1 - seed)
        bound = rng.choice((0.04, 0.3, 1.0, 100.0))
        x = Tensors(batch, rng)
        moments = second_moments(x.l, x.old, x.A, x.mask)
        active, kept = naive_m2po(batch, bound)
        finite = moments[~moments.isnan()]
        cut = second_moment_cut(moments, bound)
        assert len(finite) == len(active) and int((finite < cut).sum()) == len(kept)
        assert (moments >= cut).any() == (len(kept) < len(active))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_losses_and_masks_equal_the_loops(chunk):
    for seed in seeds(chunk):
        rng = random.Random(-1 - seed)
        batch = random_batch(seed)
        low, high = rng.choice(((1.0, 4.0), (0.2, 0.2), (0.0, 0.0), (0.05, 0.3)))
        threshold = rng.choice((0.01, 0.5, 3.0))
        x = Tensors(batch, rng)
        common = (x.l, x.old, x.A, x.mask)
        loss = cispo_loss(*common, clip_low=low, clip_high=high)
        x.check(loss, [naive_cispo(s, low, high) for s in batch])
        bounds = {"low": min(low, 0.9), "high": min(high, 0.1)}
        mask = dppo_mask(*common, **bounds)
        assert torch.equal(mask, x.tensor([naive_dppo(s, **bounds) for s in batch], False, torch.bool))
        mask = ipo_mask(x.l, x.ref, x.mask, eps=bounds["high"] + 0.05)
        assert torch.equal(mask, x.tensor([naive_ipo(s, bounds["high"] + 0.05) for s in batch], False, torch.bool))
        assert torch.equal(clip_cov(x), x.tensor(naive_clip_cov(batch), False, torch.bool))
        mask = off_policy_sequence_mask(*common, threshold=threshold)
        assert torch.equal(mask, x.tensor([naive_off_policy(s, threshold) for s in batch], False, torch.bool))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_weights_and_values_equal_the_loops(chunk):
    for seed in seeds(chunk):
        rng = random.Random(-1 - seed)
        batch = random_batch(seed)
        level = rng.choice(("token", "action", "sequence"))
        aggregate = "product" if level == "token" else rng.choice(("product", "mean"))
        keep = rng.choice(("truncate", "mask", "reject"))
        low, high = rng.choice(((0.0, 2.0), (0.5, 5.0), (0.99, 1.01), (0.7, 1.4)))
        explicit = rng.random() < 0.7
        gamma, lam = rng.choice(((1.0, 1.0), (0.9, 0.8), (1.0, 0.0), (0.0, 1.0)))
        rewards = [[rng.gauss(0, 1) for _ in s.mask] for s in batch]
        clip = rng.choice((0.5, 0.1, None))
        x = Tensors(batch, rng)
        weights = sampler_weights(
            x.old, x.ref, x.mask, level=level, aggregate=aggregate, keep=keep, low=low, high=high,
            action_ids=x.action_ids if explicit else None,
        )  # fmt: skip
        actions = [s.action if explicit else naive_runs(s.mask) for s in batch]
        close(x, weights, [
            naive_weights(s, level, aggregate, keep, low, high, a) for s, a in zip(batch, actions, strict=True)
        ])  # fmt: skip
        ratios = [math.exp(min(max(s.old[k] - s.ref[k], -20), 20)) for s in batch for k in s.tokens()]
        if ratios:
            share = math.fsum(ratios) ** 2 / math.fsum(r * r for r in ratios) / len(ratios)
            assert float(effective_sample_size(x.old, x.ref, x.mask)) == pytest.approx(share, rel=TOLERANCE)
        got = gae_advantages(x.floats(rewards, rng), x.old, x.mask, gamma=gamma, lam=lam)
        want = [naive_gae(s, r, gamma, lam) for s, r in zip(batch, rewards, strict=True)]
        for k in range(2):
            close(x, got[k], [w[k] for w in want])
        naive = []
        for s in batch:
            terms = {}
            for k in s.tokens():
                error, slope = s.l[k] - s.ref[k], s.l[k] - s.ref[k]
                if clip is not None:
                    moved = min(max(s.l[k] - s.old[k], -clip), clip)
                    bounded = s.old[k] + moved - s.ref[k]
                    if bounded**2 > error**2:
                        error, slope = bounded, 0.0
                terms[k] = (error**2 / 2, slope)
            naive.append(terms)
        x.check(value_loss(x.l, x.old, x.ref, x.mask, clip=clip), naive)


HALF = torch.full((1, 3), -0.5, dtype=torch.bfloat16)
MASK = torch.ones(1, 3, dtype=torch.bool)


def test_half_precision_is_computed_in_float32():
    assert sampler_weights(HALF, HALF, MASK).dtype == torch.float32
    assert gae_advantages(HALF, HALF, MASK)[0].dtype == torch.float32
    assert value_loss(HALF, HALF, HALF, MASK).dtype == torch.float32
    assert sampler_weights(HALF.double(), HALF, MASK).dtype == torch.float64


def test_nothing_is_read_back_from_the_device():
    meta, mask = torch.empty(2, 4, device="meta"), torch.ones(2, 4, dtype=torch.bool, device="meta")
    for level in ("token", "action", "sequence"):
        assert sampler_weights(meta, meta, mask, level=level).shape == (2, 4)
    assert dppo_mask(meta, meta, meta, mask).shape == (2, 4)
    assert off_policy_sequence_mask(meta, meta, meta, mask, threshold=0.5).shape == (2, 4)
    assert gae_advantages(meta, meta, mask)[1].shape == value_loss(meta, meta, meta, mask).shape == (2, 4)
