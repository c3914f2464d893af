"""What a device samples, and the memory that it holds while it does."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from holdfast.model import hf
from holdfast.model.graphs import StepGraphs
from holdfast.model.hf import HFPolicy
from holdfast.model.policy import Completion, Request
from holdfast.model.sampling import counter_uniform, seed_key

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


def exact_logprobs(model: Any, context: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([context]), use_cache=False).logits[0].log_softmax(-1)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.9, "top_k": 20}, {"greedy": True}])
def test_log_probs_of_what_was_sampled(device, model, tokenizer, autocast, sampling) -> None:
    exact = copy.deepcopy(model).double()
    played = play(HFPolicy(model, tokenizer, device=device, autocast_dtype=autocast, **sampling))
    for context, spans in played.values():
        expected = exact_logprobs(exact, context)
        for start, done in spans:
            rows = expected[start - 1 : start - 1 + len(done.token_ids)]
            sampled = rows[torch.arange(len(rows)), torch.tensor(done.token_ids)]
            assert (sampled - torch.tensor(done.logprobs)).abs().max() < PRECISION[autocast]
            if "greedy" in sampling:
                assert (rows.amax(-1) - sampled).max() < 2 * PRECISION[autocast]


def test_graphs_change_nothing(device, model, tokenizer) -> None:
    """On the CPU a capture only notes what to call."""
    with_graphs, without = HFPolicy(model, tokenizer, device=device), HFPolicy(model, tokenizer, device=device)
    graphs = with_graphs._graphs = StepGraphs() if device.type == "cuda" else NotedGraphs()
    without._graphs = None
    captured = []
    with_graphs.on_token = lambda *_: captured.append(graphs.captured)
    expected, found = play(without, rows=20, turns=6), play(with_graphs, rows=20, turns=6)
    assert max(captured) >= 3
    for id, (context, spans) in expected.items():
        assert found[id][0] == context
        for (_, there), (_, here) in zip(found[id][1], spans, strict=True):
            assert there.logprobs == pytest.approx(here.logprobs, abs=1e-4)


def test_a_rollout_that_waits_keeps_its_keys(device, model, tokenizer) -> None:
    """Graphs round the slots up, here to 12 of 10 rollouts, and the last of these waits while the others decode."""
    contexts = {str(i): list(range(5 + i, 25 + i)) for i in range(10)}

    def second_turn(graphs: StepGraphs | None) -> Completion:
        policy = HFPolicy(model, tokenizer, device=device)
        policy._graphs = graphs
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

    expected = second_turn(None)
    found = second_turn(StepGraphs() if device.type == "cuda" else NotedGraphs())
    assert found.id == expected.id == "9" and found.token_ids == expected.token_ids
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


class NotedGraphs(StepGraphs):
    """A graph of these calls `decode` on the tensors of its capture, as a CUDA graph would."""

    def _capture(self, decode: Any, state: Any, length: int) -> Any:
        inputs = tuple(tensor.clone() for tensor in state)

        def replay(*values: torch.Tensor) -> Any:
            for kept, value in zip(inputs, values, strict=True):
                kept.copy_(value)
            return decode(*inputs, length)

        return replay


def test_a_model_that_waits_for_the_device_decodes_without_graphs(device, model, tokenizer) -> None:
    expected = play(HFPolicy(model, tokenizer, device=device))

    def wait(*_: Any) -> None:
        torch.zeros(1, device=device).item()

    waits = model.model.layers[0].register_forward_hook(wait)
    policy = HFPolicy(model, tokenizer, device=device)
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


def test_the_memory_of_the_cache_is_given_back(device, model, tokenizer) -> None:
    policy = HFPolicy(model, tokenizer, device=device, autocast_dtype=torch.bfloat16)
    play(policy)  # the first run loads kernels, whose workspaces stay
    gc.collect()
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    policy.submit([Request(id="a", token_ids=(2, 3, 4), max_new_tokens=8, stop=(), seed=0)])
    policy.poll()
    layer = policy._table.cache.layers[0]
    assert layer.keys.device.type == device.type and layer.keys.dtype == torch.bfloat16
    keys = weakref.ref(layer.keys)
    del layer
    policy.release(["a"])
    assert keys() is None
    assert (torch.cuda.memory_allocated(device) if device.type == "cuda" else 0) == before


def test_rows_that_do_not_fit_wait(device, model, tokenizer, monkeypatch) -> None:
    """A GPU with room for three rollouts makes the same rollouts, three at a time."""
    together = play(HFPolicy(model, tokenizer, device=device))
    tokens = 100
    row_bytes = 2 * 2 * 2 * 16 * 4 * tokens  # keys and values, two layers of two heads of 16 float32
    monkeypatch.setattr(hf, "free_memory", lambda device: 2 * 3 * row_bytes)
    policy = HFPolicy(model, tokenizer, device=device, max_tokens=tokens)
    held = []
    monkeypatch.setattr(policy, "on_token", lambda *_: held.append(policy._table.taken))
    apart = play(policy)
    assert max(held) == (3 if device.type == "cuda" else 6)
    assert {id: context for id, (context, _) in apart.items()} == {id: context for id, (context, _) in together.items()}
