"""What a device samples, and the memory that it holds while it does."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from holdfast.model.sampler import flash, hf
from holdfast.model.sampler.graphs import StepGraphs
from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.sampler.policy import Completion, Request
from holdfast.model.sampler.sampling import counter_uniform, seed_key

PRECISION = {None: 1e-3, torch.bfloat16: 0.15}
"""Autocast -> largest difference from float64, in nats."""


def play(policy: HFPolicy, rows: int = 6, turns: int = 2) -> dict[str, tuple[list[int], list[tuple[int, Completion]]]]:
    """Ragged rollouts with feedback between their turns: id -> (context, [(start, completion), …])."""
    context = {str(i): list(range(2 + i, 20 + 2 * i)) for i in range(rows)}
    spans: dict[str, list[tuple[int, Completion]]] = {id: [] for id in context}

    def next_request(id: str) -> Request:
        new = 5 + (int(id) + 3 * len(spans[id])) % 7
        return Request(id=id, token_ids=tuple(context[id]), max_new_tokens=new, stop=(), seed=int(id))

    policy.submit([next_request(id) for id in context])
    while completions := policy.poll():
        for done in completions:
            spans[done.id].append((len(context[done.id]), done))
            context[done.id] += [*done.token_ids, *range(30, 37)]
            if len(spans[done.id]) < turns:
                policy.submit([next_request(done.id)])
            else:
                policy.release([done.id])
    return {id: (context[id], spans[id]) for id in context}


@torch.no_grad()
def exact(model: Any, played: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Of each turn that was played: all log-probs in float64, those of its tokens, and those that were reported."""
    model = copy.deepcopy(model).double().cpu()
    for context, spans in played.values():
        logprobs = model(torch.tensor([context]), use_cache=False).logits[0].log_softmax(-1)
        for start, done in spans:
            rows = logprobs[start - 1 : start - 1 + len(done.token_ids)]
            yield rows, rows[torch.arange(len(rows)), torch.tensor(done.token_ids)], torch.tensor(done.logprobs)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.9, "top_k": 20}, {"greedy": True}])
def test_log_probs_of_what_was_sampled(device, model, tokenizer, autocast, sampling) -> None:
    unchanged = copy.deepcopy(model)
    played = play(HFPolicy(model.to(device), tokenizer, autocast_dtype=autocast, **sampling))
    for rows, sampled, reported in exact(unchanged, played):
        assert (sampled - reported).abs().max() < PRECISION[autocast]
        if "greedy" in sampling:
            assert (rows.amax(-1) - sampled).max() < 2 * PRECISION[autocast]


@pytest.fixture
def in_slots(device, model, tokenizer, monkeypatch) -> Callable[..., HFPolicy]:
    """A policy with slots and graphs, and with `graphs=False` without these. On the CPU in float32, where a few lines
    stand in for FlashAttention and a capture only notes what to call."""
    if device.type == "cpu":
        monkeypatch.setattr(flash, "attend", attend)
        monkeypatch.setattr(hf, "serves", lambda *_: True)
        monkeypatch.setattr(hf, "StepGraphs", NotedGraphs)
        monkeypatch.setattr(hf, "whole_memory", lambda device: 2**30)

    def make(*, graphs: bool = True, **options: Any) -> HFPolicy:
        if device.type == "cuda":
            options.setdefault("autocast_dtype", torch.bfloat16)
        policy = HFPolicy(model.to(device), tokenizer, **options)
        assert policy._flash is not None
        if not graphs:
            monkeypatch.setattr(policy, "_graphs", Ungraphed())
            monkeypatch.setattr(policy, "_read_weights", lambda: None)
        return policy

    return make


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: Any, scale: float) -> torch.Tensor:
    out, ends = torch.empty_like(query), seen.ends.tolist()
    for start, used, a, b in zip(seen.starts.tolist(), seen.used.tolist(), ends, ends[1:], strict=False):
        k, v = (x[start : start + used].repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (keys, values))
        weights = torch.einsum("nhd,mhd->hnm", query[a:b], k) * scale
        ahead = torch.ones(b - a, used, dtype=torch.bool).triu(used - (b - a) + 1)
        out[a:b] = torch.einsum("hnm,mhd->nhd", weights.masked_fill(ahead, -torch.inf).softmax(-1), v)
    return out


class NotedGraphs(StepGraphs):
    """A graph of these calls the step on the state of its capture, as a CUDA graph would."""

    def _capture(self, advance: Any, state: torch.Tensor) -> Any:
        kept = state.clone()

        def replay(state: torch.Tensor) -> Any:
            if state is not kept:
                kept.copy_(state)
            return advance(kept), kept

        return replay


class Ungraphed(StepGraphs):
    """No step is captured."""

    def step(self, advance: Any, state: torch.Tensor, storage: Any) -> Any:
        return advance(state), state


def close(found: Any, expected: Any, gap: float) -> bool:
    """Whether the same tokens were sampled, with log-probs that differ by rounding."""
    for id, (context, spans) in expected.items():
        assert found[id][0] == context, id
        for (_, there), (_, here) in zip(found[id][1], spans, strict=True):
            assert there.logprobs == pytest.approx(here.logprobs, abs=gap)
    return True


def test_slots_give_what_the_padded_cache_gives(device, model, tokenizer, in_slots) -> None:
    """In bfloat16 other kernels round otherwise, so there the log-probs of what was sampled are compared."""
    padded, policy = HFPolicy(model.to(device), tokenizer), in_slots()
    if device.type == "cpu":
        assert close(play(policy, rows=20, turns=6), play(padded, rows=20, turns=6), 1e-4)
        return
    for _, sampled, reported in exact(model, play(policy, rows=20, turns=6)):
        assert (sampled - reported).abs().max() < PRECISION[torch.bfloat16]


def test_graphs_change_nothing_and_outlive_an_update(device, model, in_slots) -> None:
    policy, without = in_slots(), in_slots(graphs=False)
    captured = []
    policy.on_token = lambda *_: captured.append(policy._graphs.captured)
    for _ in range(2):  # a size that was met once is captured the second time
        assert close(play(policy, rows=20, turns=6), play(without, rows=20, turns=6), 1e-4)
    graphs, sizes = policy._graphs, max(captured)
    assert sizes >= 3
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)).to(device))
    fresh = in_slots(graphs=False)
    assert close(play(policy, rows=20, turns=6), play(fresh, rows=20, turns=6), 1e-4)
    assert policy._graphs is graphs and max(captured) == sizes  # nothing was captured again


def test_weights_elsewhere_have_graphs_of_their_own(device, model, in_slots) -> None:
    policy = in_slots()
    first, graphs = play(policy, rows=9), policy._graphs
    here = [parameter.data for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.5
    assert close(play(policy, rows=9), play(in_slots(graphs=False), rows=9), 1e-4)
    assert policy._graphs is not graphs
    for parameter, data in zip(model.parameters(), here, strict=True):
        parameter.data = data
    assert close(play(policy, rows=9), first, 1e-4)


def test_a_rollout_that_waits_keeps_its_keys(device, in_slots) -> None:
    """Graphs round ten rollouts up to twelve, and the last of them waits while the others decode."""
    contexts = {str(i): list(range(5 + i, 25 + i)) for i in range(10)}

    def second_turn(graphs: bool) -> Completion:
        policy = in_slots(graphs=graphs)
        requests = [Request(id=i, token_ids=tuple(c), max_new_tokens=40, stop=(), seed=0) for i, c in contexts.items()]
        policy.submit([*requests[:-1], replace(requests[-1], max_new_tokens=2)])
        (first,) = policy.poll()
        others: list[Completion] = []
        while len(others) < 9:
            others += policy.poll()
        context = (*contexts[first.id], *first.token_ids, 31, 32, 33)
        policy.submit([Request(id=first.id, token_ids=context, max_new_tokens=5, stop=(), seed=0)])
        (second,) = policy.poll()
        return second

    expected, found = second_turn(False), second_turn(True)
    assert found.id == expected.id == "9" and found.token_ids == expected.token_ids
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_a_model_that_waits_for_the_device_decodes_without_graphs(device, model, in_slots) -> None:
    expected = play(in_slots())

    def wait(*_: Any) -> None:
        torch.zeros(1, device=device).item()

    waits = model.model.layers[0].register_forward_hook(wait)
    policy = in_slots()
    if device.type == "cuda":
        with pytest.warns(UserWarning, match="without CUDA graphs"):
            found = play(policy)
    else:
        found = play(policy)
    waits.remove()
    assert {id: context for id, (context, _) in found.items()} == {id: c for id, (c, _) in expected.items()}


def test_uniforms_are_the_same_numbers_everywhere(device) -> None:
    keys = torch.tensor([seed_key(seed) for seed in (0, 1, 2**40)], device=device)
    found = counter_uniform(keys, torch.arange(3, device=device)).tolist()
    mask = (1 << 64) - 1
    for key, position, uniform in zip(keys.tolist(), range(3), found, strict=True):
        z = (key + (position + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        assert uniform == ((z ^ (z >> 31)) >> 32) / 2**32


def test_the_memory_of_the_cache_is_given_back(device, model, tokenizer, monkeypatch) -> None:
    monkeypatch.setattr(hf, "_STAYS", 0.0)  # of a GPU what is a small part of it would stay
    policy = HFPolicy(model.to(device), tokenizer, autocast_dtype=torch.bfloat16)
    play(policy)  # the first run loads kernels, whose workspaces stay
    gc.collect()
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    policy.submit([Request(id="a", token_ids=(2, 3, 4), max_new_tokens=8, stop=(), seed=0)])
    policy.poll()
    cache = policy._table.cache
    stored = cache.keys if device.type == "cuda" else cache.layers[0].keys
    assert stored.device.type == device.type and stored.dtype == torch.bfloat16
    keys = weakref.ref(stored)
    del stored, cache
    policy.release(["a"])
    assert keys() is None
    assert (torch.cuda.memory_allocated(device) if device.type == "cuda" else 0) == before


def test_rows_that_do_not_fit_wait(device, model, tokenizer, monkeypatch) -> None:
    """A GPU with room for three rollouts makes the same rollouts, three at a time."""
    together = play(HFPolicy(model.to(device), tokenizer))
    tokens = 100
    row_bytes = 2 * 2 * 2 * 16 * 4 * tokens  # keys and values, two layers of two heads of 16 float32
    monkeypatch.setattr(hf, "free_memory", lambda device: 2 * 3 * row_bytes)
    policy = HFPolicy(model.to(device), tokenizer, max_tokens=tokens)
    held = []
    monkeypatch.setattr(policy, "on_token", lambda *_: held.append(policy._table.taken))
    apart = play(policy)
    assert max(held) == (3 if device.type == "cuda" else 6)
    assert {id: context for id, (context, _) in apart.items()} == {id: context for id, (context, _) in together.items()}
