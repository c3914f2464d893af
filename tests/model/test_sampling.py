"""Sampling: the generator against published outputs, the CDF against counts, truncation against a loop."""

from __future__ import annotations

import math

import pytest
import torch

from holdfast.model.sampler.sampling import (
    _ranked_by_branch,
    _ranked_by_key,
    counter_uniform,
    draw,
    sampling_mask_ids,
    seed_key,
    truncate,
)


def test_counter_is_splitmix64() -> None:
    # The first three outputs of splitmix64 started at state 0, as published with the algorithm's reference code.
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    uniforms = counter_uniform(torch.zeros(3, dtype=torch.int64), torch.arange(3))
    assert uniforms.tolist() == [(output >> 32) / 2**32 for output in outputs]


def test_uniforms_fill_the_interval_evenly() -> None:
    keys = torch.tensor([seed_key(seed) for seed in range(200)]).unsqueeze(1)
    uniforms = counter_uniform(keys, torch.arange(500)).flatten()
    counts = torch.histc(uniforms, bins=20, min=0, max=1)
    # 100000 draws in 20 bins: 5000 each, standard deviation sqrt(5000 * .95) = 69; five of them = 345.
    assert (counts - 5000).abs().max() < 345
    assert uniforms.min() >= 0 and uniforms.max() < 1


def test_inverse_cdf_hits_every_token_as_often_as_its_probability() -> None:
    # Uniforms on a grid of n: token i must be drawn n * p_i times, give or take one grid point at each end.
    n = 10_000
    logits = torch.tensor([1.0, -2.0, 0.3, 2.5, -6.0]).repeat(n, 1)
    grid = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    drawn = draw(logits, grid, temperature=0.7)
    counts = torch.bincount(drawn.tokens, minlength=5)
    expected = n * (logits[0] / 0.7).softmax(-1)
    assert (counts - expected).abs().max() <= 2
    wanted = (logits[0] / 0.7).log_softmax(-1)[drawn.tokens]
    torch.testing.assert_close(drawn.logprobs, wanted, atol=1e-5, rtol=0)
    assert drawn.mask_mass is None


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-32])
def test_impossible_tokens_are_never_drawn(uniform: float) -> None:
    logits = torch.full((1, 7), -torch.inf)
    logits[0, 3], logits[0, 5] = 4.0, 4.0
    drawn = draw(logits, torch.tensor([uniform], dtype=torch.float64))
    assert drawn.tokens.item() == (3 if uniform < 0.5 else 5)
    assert drawn.logprobs.item() == pytest.approx(math.log(0.5))


def kept_by_loop(logits: list[float], temperature: float, top_p: float, top_k: int) -> dict[int, float]:
    """Token id -> full-vocabulary probability of the kept set, straight from the definition."""
    weights = [math.exp(x / temperature) for x in logits]
    probability = [w / sum(weights) for w in weights]
    ranked = sorted(range(len(logits)), key=lambda i: (-probability[i], i))
    if top_k:
        ranked = ranked[:top_k]
    total, kept, mass = sum(probability[i] for i in ranked), {}, 0.0
    for i in ranked:
        if kept and mass >= top_p * total:
            break
        kept[i] = probability[i]
        mass += probability[i]
    return kept


@pytest.mark.parametrize(("top_p", "top_k"), [(0.9, 0), (1e-9, 0), (1.0, 3), (0.8, 4), (0.95, 50)])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_truncation_against_a_loop(top_p: float, top_k: int, temperature: float) -> None:
    n = 2000
    grid = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    for case in range(8):
        logits = torch.randn(11, generator=torch.Generator().manual_seed(case)) * 2
        kept = kept_by_loop(logits.double().tolist(), temperature, top_p, top_k)
        drawn = draw(logits.repeat(n, 1), grid, temperature=temperature, top_p=top_p, top_k=top_k)
        mass = sum(kept.values())
        assert drawn.mask_mass is not None
        torch.testing.assert_close(drawn.mask_mass, torch.full((n,), mass), atol=1e-5, rtol=0)
        counts = torch.bincount(drawn.tokens, minlength=11).tolist()
        for token in range(11):
            assert abs(counts[token] - n * kept.get(token, 0.0) / mass) <= 2
        # Log-probs stay those of the whole vocabulary: the mismatch with the sampler is what mask_mass measures.
        wanted = (logits / temperature).log_softmax(-1)[drawn.tokens]
        torch.testing.assert_close(drawn.logprobs, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("top_p", "top_k"), [(0.9, 0), (1e-9, 0), (1.0, 3), (0.8, 4), (0.95, 50)])
def test_the_sampling_mask_against_a_loop(top_p: float, top_k: int) -> None:
    logits = torch.randn(40, 11, generator=torch.Generator().manual_seed(0)) * 2
    wanted = [set(kept_by_loop(row.double().tolist(), 1.0, top_p, top_k)) for row in logits]
    ids = sampling_mask_ids(logits, logits.argmax(-1), top_p=top_p, top_k=top_k)
    assert [set(row.tolist()) - {-1} for row in ids] == wanted
    assert ids.shape == (40, max(map(len, wanted))), "no wider than the fullest row"


def test_the_token_drawn_is_kept_even_beyond_the_boundary() -> None:
    """The trainer's logits differ from the sampler's by rounding, and so may the last token that is kept."""
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    ids = sampling_mask_ids(logits, torch.tensor([2, 3]), top_p=1.0, top_k=2)
    assert ids.tolist() == [[0, 1, 2], [3, 2, -1]]


def test_half_precision_is_computed_in_float32() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    uniforms = torch.tensor([0.1, 0.4, 0.6, 0.9], dtype=torch.float64)
    a, b = draw(logits, uniforms), draw(logits.float(), uniforms)
    assert a.logprobs.dtype == torch.float32
    assert torch.equal(a.tokens, b.tokens) and torch.equal(a.logprobs, b.logprobs)


def test_the_most_likely_of_equals_are_those_with_the_lowest_ids():
    mass = torch.randn(40, 300, generator=torch.Generator().manual_seed(1)).exp()
    for values in (mass, mass.round(), torch.zeros(2, 300), mass * 1e-42):  # the last: below the smallest normal float
        ranked, ids = truncate(values, 1.0, 17)
        expected = values.sort(stable=True, dim=-1, descending=True)
        assert torch.equal(ranked, expected.values[:, :17]) and torch.equal(ids, expected.indices[:, :17])


def test_logits_that_are_not_numbers_give_log_probs_that_are_not():
    logits = torch.zeros(3, 20)
    logits[0], logits[1, 4] = torch.nan, torch.nan
    logprobs = draw(logits, torch.full((3,), 0.5), top_k=5).logprobs
    assert logprobs.isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("levels", [3, 10_000])
def test_both_ways_to_rank_return_the_same(levels: int) -> None:
    """With three levels every boundary is tied; with many, few are."""
    mass = torch.randint(0, levels, (40, 200), generator=torch.Generator().manual_seed(levels)).float() / levels
    for top_k in (1, 7, 199):
        for branch, key in zip(_ranked_by_branch(mass, top_k), _ranked_by_key(mass, top_k), strict=True):
            assert torch.equal(branch, key)
