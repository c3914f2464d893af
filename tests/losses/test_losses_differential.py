"""Every loss against a double Python loop transcribed from the formulas, on ragged, padded batches.

The loops work on one token at a time, in Python floats, and return value and derivative. The tensors hold NaN or inf
wherever the mask is False, so the poison test is part of each comparison.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest
import torch

from holdfast.losses import (
    action_ids_from_mask,
    clipped_policy_loss,
    kl_loss,
    llds_penalty,
    nll_loss,
    penalty_stats,
    preserved_mask,
    ratio_stats,
    reduce_loss,
    sapo_penalty,
)

TOLERANCE = 1e-6
BATCHES = 120
CHUNKS = 6
POISON = (math.nan, math.inf, -math.inf)
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


@dataclass
class Sequence:
    """One response as Python lists."""

    mask: list[bool] = field(default_factory=list)
    action: list[int] = field(default_factory=list)
    answer: list[bool] = field(default_factory=list)
    l: list[float] = field(default_factory=list)  # noqa: E741
    old: list[float] = field(default_factory=list)
    ref: list[float] = field(default_factory=list)
    A: float = 0.0
    correct: bool = False

    def tokens(self):
        return [k for k, m in enumerate(self.mask) if m]


def random_sequence(rng: random.Random, advantage: float) -> Sequence:
    s = Sequence(A=advantage, correct=rng.random() < 0.5)
    turns = rng.randint(0, 4)
    pieces = [(False, 0, rng.randint(1, 3))]
    for k in range(1, turns + 1):
        pieces += [(True, k, rng.randint(1, 4)), (False, 0, rng.choice((0, 0, 1, 3)))]
    for inside, k, length in pieces:
        for _ in range(length):
            s.mask.append(inside)
            s.action.append(k)
            s.answer.append(inside and k == turns and rng.random() < 0.7)
            old = -rng.expovariate(1.0)
            s.old.append(old)
            s.l.append(old - rng.choice((0.0, rng.gauss(0, 0.1), rng.gauss(0, 1), rng.gauss(0, 15))))
            s.ref.append(old - rng.gauss(0, 1))
    return s


def random_batch(seed: int) -> list[Sequence]:
    rng = random.Random(seed)
    return [random_sequence(rng, rng.choice((0.0, rng.gauss(0, 1), rng.gauss(0, 1)))) for _ in range(rng.randint(1, 5))]


# ---------------------------------------------------------------------------------------------------------------------
# The formulas, one token at a time. Each returns {token: (value, d value / d l)} for the tokens in the mask.


def naive_clipped(s, low, high, dual, ratio, actions=None):
    out = {}
    tokens = s.tokens()
    for k in tokens:
        unit = {"token": [k], "sequence": tokens, "action": [j for j in tokens if actions and actions[j] == actions[k]]}
        x = sum(s.l[j] - s.old[j] for j in unit[ratio]) / len(unit[ratio])
        moving = -20 <= x <= 20
        r = math.exp(min(max(x, -20), 20))
        value, slope = -s.A * r, -s.A * r if moving else 0.0
        bounded = min(max(r, 1 - low), 1 + high)
        if -s.A * bounded > value:
            value, slope = -s.A * bounded, 0.0 if bounded != r else slope
        if dual is not None and s.A < 0 and value > -s.A * dual:
            value, slope = -s.A * dual, 0.0
        out[k] = (value, slope)
    return out


def naive_kl(s, estimator):
    out = {}
    for k in s.tokens():
        x = s.ref[k] - s.l[k]
        if estimator == "k2":
            out[k] = (x * x / 2, -x)
        elif x > 20:
            out[k] = (math.exp(20) - 20 - 1, 0.0)
        else:
            out[k] = (math.exp(x) - x - 1, 1 - math.exp(x))
    return out


def naive_nll(s):
    return {k: (-s.l[k], -1.0) if s.A > 0 else (0.0, 0.0) for k in s.tokens()}


def naive_preserved(s, rule):
    if rule == "correct":
        return s.A > 0 or (s.A == 0 and s.correct)
    return s.A > 0 if rule == "positive" else s.A >= 0


def naive_llds(s, gate, threshold, weight, rule, actions):
    """`actions`: the action number of each token (explicit ids, or runs of the mask)."""
    out = {}
    tokens = s.tokens()
    for k in tokens:
        voters = {"action": [j for j in tokens if actions[j] == actions[k]], "response": tokens, "token": [k]}[gate]
        drop = sum(s.old[j] - s.l[j] for j in voters) / len(voters)
        own = s.old[k] - s.l[k]
        if naive_preserved(s, rule) and drop > threshold and own > threshold:
            w = weight if s.answer[k] else 1.0
            out[k] = (w * own, -w)
        else:
            out[k] = (0.0, 0.0)
    return out


def naive_sapo(s, tau, rule):
    out = {}
    for k in s.tokens():
        log_r = s.l[k] - s.old[k]
        out[k] = (-log_r, -1.0) if naive_preserved(s, rule) and log_r < math.log(tau) else (0.0, 0.0)
    return out


def naive_runs(mask):
    """Number of the run of ones each token is in, 0 outside."""
    ids, run, before = [], 0, False
    for m in mask:
        run += m and not before
        ids.append(run if m else 0)
        before = m
    return ids


def naive_reduce(values, mode, denominator, max_tokens):
    """`values`: one {token: value} per sequence."""
    tokens = sum(len(v) for v in values)
    sequences = sum(len(v) > 0 for v in values)
    total = 0.0
    for v in values:
        for x in v.values():
            if mode == "seq-mean-token-mean":
                x = x / len(v)
            elif mode == "seq-mean-token-sum-norm":
                x = x / max_tokens
            total += x
    if mode == "token-sum":
        return total
    own = tokens if mode == "token-mean" else sequences
    return total / (denominator if denominator is not None else max(own, 1))


# ---------------------------------------------------------------------------------------------------------------------
# The same batch as padded tensors, [B, T].


class Tensors:
    """Those of a batch, poisoned outside the mask."""

    def __init__(self, batch: list[Sequence], rng: random.Random):
        self.batch = batch
        self.width = max(len(s.mask) for s in batch) + rng.randint(0, 2)
        self.mask = self.tensor([s.mask for s in batch], False, torch.bool)
        self.action_ids = self.tensor([s.action for s in batch], 0, torch.long)
        self.answer = self.tensor([s.answer for s in batch], False, torch.bool)
        self.l, self.old, self.ref = (self.floats([getattr(s, n) for s in batch], rng) for n in ("l", "old", "ref"))
        self.l.requires_grad_()
        self.A = torch.tensor([[s.A if any(s.mask) else math.nan] for s in batch], dtype=torch.float64)
        if rng.random() < 0.5:  # of tokens instead of rollouts
            self.A = self.floats([[s.A] * len(s.mask) for s in batch], rng)
        self.correct = torch.tensor([[s.correct] for s in batch])

    def tensor(self, rows, fill, dtype):
        return torch.tensor([row + [fill] * (self.width - len(row)) for row in rows], dtype=dtype)

    def floats(self, rows, rng):
        x = self.tensor(rows, 0.0, torch.float64)
        poison = torch.tensor([rng.choice(POISON) for _ in range(x.numel())], dtype=torch.float64).view(x.shape)
        return torch.where(self.mask, x, poison)

    def expect(self, naive):
        """naive: {token: (value, slope)} per sequence -> two tensors [B, T], 0 outside the mask."""
        values = [[n.get(k, (0.0, 0.0))[0] for k in range(len(s.mask))] for n, s in zip(naive, self.batch, strict=True)]
        slopes = [[n.get(k, (0.0, 0.0))[1] for k in range(len(s.mask))] for n, s in zip(naive, self.batch, strict=True)]
        return self.tensor(values, 0.0, torch.float64), self.tensor(slopes, 0.0, torch.float64)

    def check(self, loss, naive):
        value, slope = self.expect(naive)
        assert loss.shape == self.l.shape and loss.dtype == torch.float64
        assert (loss[~self.mask] == 0).all()
        torch.testing.assert_close(loss.detach(), value, rtol=TOLERANCE, atol=TOLERANCE)
        (grad,) = torch.autograd.grad(loss.sum(), self.l)
        assert (grad[~self.mask] == 0).all()
        torch.testing.assert_close(grad, slope, rtol=TOLERANCE, atol=TOLERANCE)


def seeds(chunk):
    return range(chunk, BATCHES, CHUNKS)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_losses_equal_the_loops(chunk):
    for seed in seeds(chunk):
        rng = random.Random(-1 - seed)
        batch = random_batch(seed)
        low, high, dual = rng.choice(((0.2, 0.2, None), (0.2, 0.28, 3.0), (3e-4, 4e-4, None), (0.0, 0.0, 1.5)))
        x = Tensors(batch, rng)
        common = (x.l, x.old, x.A, x.mask)
        explicit = rng.random() < 0.7
        for ratio in ("token", "action", "sequence"):
            loss = clipped_policy_loss(
                *common, clip_low=low, clip_high=high, dual_clip=dual, ratio=ratio,
                action_ids=x.action_ids if explicit else None,
            )  # fmt: skip
            actions = [s.action if explicit else naive_runs(s.mask) for s in batch]
            x.check(loss, [naive_clipped(s, low, high, dual, ratio, a) for s, a in zip(batch, actions, strict=True)])
        for estimator in ("k3", "k2"):
            x.check(kl_loss(x.l, x.ref, x.mask, estimator=estimator), [naive_kl(s, estimator) for s in batch])
        x.check(nll_loss(x.l, x.A, x.mask), [naive_nll(s) for s in batch])


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_penalties_equal_the_loops(chunk):
    for seed in seeds(chunk):
        rng = random.Random(-1 - seed)
        batch = random_batch(seed)
        threshold = rng.choice((0.0, 0.0, 0.05, 0.5))
        weight = rng.choice((1.0, 0.5, 0.0))
        tau = rng.choice((1.0, 0.8, 1.2))
        rule = rng.choice(("nonnegative", "positive", "correct"))
        explicit = rng.random() < 0.7
        x = Tensors(batch, rng)
        common = (x.l, x.old, x.A, x.mask)
        preserve = preserved_mask(x.A, x.mask, rule=rule, correct=x.correct)
        for gate in ("action", "response", "token"):
            loss = llds_penalty(
                *common, gate=gate, threshold=threshold, answer_mask=x.answer, answer_weight=weight,
                action_ids=x.action_ids if explicit else None, preserved=preserve,
            )  # fmt: skip
            x.check(loss, [
                naive_llds(s, gate, threshold, weight, rule, s.action if explicit else naive_runs(s.mask))
                for s in batch
            ])  # fmt: skip
        default = llds_penalty(*common, action_ids=x.action_ids)
        x.check(default, [naive_llds(s, "action", 0.0, 1.0, "nonnegative", s.action) for s in batch])
        loss = sapo_penalty(*common, tau=tau, preserved=preserve)
        x.check(loss, [naive_sapo(s, tau, rule) for s in batch])
        x.check(sapo_penalty(*common), [naive_sapo(s, 1.0, "positive") for s in batch])


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_reductions_and_runs_equal_the_loops(chunk):
    for seed in seeds(chunk):
        rng = random.Random(-1 - seed)
        batch = random_batch(seed)
        values = [{k: rng.gauss(0, 1) for k in s.tokens()} for s in batch]
        denominator, max_tokens = rng.choice((None, 17, 3.5)), rng.randint(1, 40)
        x = Tensors(batch, rng)
        rows = [[v.get(k, 0.0) for k in range(len(s.mask))] for v, s in zip(values, batch, strict=True)]
        per_token = x.floats(rows, rng)  # poisoned: what lies outside the mask is not read
        for mode in MODES:
            divisor = None if mode == "token-sum" else denominator
            norm = max_tokens if mode.endswith("norm") else None
            got = reduce_loss(per_token, x.mask, mode=mode, denominator=divisor, max_tokens=norm)
            assert got.item() == pytest.approx(naive_reduce(values, mode, divisor, max_tokens), abs=TOLERANCE)
        runs = x.tensor([naive_runs(s.mask) for s in batch], 0, torch.long)
        assert torch.equal(action_ids_from_mask(x.mask), runs)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_statistics_equal_the_loops(chunk):
    for seed in seeds(chunk):
        rng = random.Random(-1 - seed)
        batch = random_batch(seed)
        kept = [(s, k) for s in batch if s.A >= 0 for k in s.tokens()]
        every = [(s, k) for s in batch for k in s.tokens()]
        drops = [max(0.0, s.old[k] - s.l[k]) for s, k in kept]
        active = sum(
            v != 0 for s in batch for v, _ in naive_llds(s, "action", 0.0, 1.0, "nonnegative", s.action).values()
        )
        ratios = sorted(math.exp(min(max(s.l[k] - s.old[k], -20), 20)) for s, k in every)
        clipped = sum(
            (s.A > 0 and s.l[k] - s.old[k] > math.log(1.2)) or (s.A < 0 and s.l[k] - s.old[k] < math.log(0.8))
            for s, k in every
        )
        products = [sum(s.l[k] - s.old[k] for k in s.tokens()) for s in batch if s.tokens()]
        n = max(len(every), 1)
        expected = {
            "penalty/preserved_fraction": len(kept) / n,
            "penalty/active_fraction": active / max(len(kept), 1),
            "penalty/mean_decrease": sum(drops) / max(len(kept), 1),
            "ratio/mean": sum(ratios) / n,
            "ratio/max": max(ratios, default=0.0),
            "ratio/p01": ratios[(len(ratios) - 1) // 100] if ratios else 0.0,
            "ratio/log_product": sum(products) / max(len(products), 1),
            "clip/fraction": clipped / n,
            "count/tokens": len(every),
            "count/preserved": len(kept),
            "count/sequences": len(products),
        }
        x = Tensors(batch, rng)
        penalty = llds_penalty(x.l, x.old, x.A, x.mask, action_ids=x.action_ids)
        preserve = preserved_mask(x.A, x.mask)
        got = penalty_stats(penalty, x.l, x.old, x.mask, preserved=preserve)
        got |= ratio_stats(x.l, x.old, x.A, x.mask)
        assert got.keys() == expected.keys()
        for name, value in got.items():
            assert not value.requires_grad and value.dim() == 0
            assert value.item() == pytest.approx(expected[name], rel=TOLERANCE, abs=TOLERANCE), name
