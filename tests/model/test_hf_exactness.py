"""The transformers policy: exact whatever the batch does, and reproducible whatever shares it."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch

from holdfast.model.sampler import hf
from holdfast.model.sampler.cache import SlotCache
from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.sampler.policy import Completion, Request, generate

from .conftest import request


def play(policy: Any, *, rows: int, groups: int = 1, turns: int = 3, seed: int = 0, most: int = 30) -> dict[str, Any]:
    """Episodes with ragged prompts shared by `groups` rows, ragged turns and observations, leaving at different turns.

    Returns id -> (final context, [(start, completion), …]).
    """
    rng = random.Random(seed)
    context: dict[str, list[int]] = {}
    prompt: list[int] = []
    for row in range(rows):
        prompt = [rng.randrange(2, 300) for _ in range(rng.randint(1, 40))] if row % groups == 0 else prompt
        context[str(row)] = list(prompt)
    spans: dict[str, list[tuple[int, Completion]]] = {id: [] for id in context}
    last_turn = {id: rng.randint(1, turns) for id in context}
    plan = {id: [(rng.randint(1, most), rng.randint(1, 90)) for _ in range(turns)] for id in context}

    def next_request(id: str) -> Request:
        return request(id, context[id], plan[id][len(spans[id])][0], seed=int(id))

    policy.submit([next_request(id) for id in context])
    while completions := policy.poll():
        for completion in completions:
            id = completion.id
            spans[id].append((len(context[id]), completion))
            context[id] += completion.token_ids
            if len(spans[id]) == last_turn[id]:
                policy.release([id])
                continue
            observation = random.Random(len(spans[id]) * 1000 + int(id))
            context[id] += [observation.randrange(2, 300) for _ in range(plan[id][len(spans[id]) - 1][1])]
            policy.submit([next_request(id)])
    assert all(len(spans[id]) == last_turn[id] for id in context)
    return {id: (context[id], spans[id]) for id in context}


def worst_gap(played: dict[str, Any], model: Any, reference: Any, temperature: float = 1.0) -> float:
    """Largest difference between the policy's log-probs and those of a plain forward pass over the whole episode."""
    worst = 0.0
    for context, spans in played.values():
        plain = reference(model, context, 1, temperature)
        for start, completion in spans:
            sampled = torch.tensor(completion.logprobs)
            worst = max(worst, (sampled - plain[start - 1 : start - 1 + len(sampled)]).abs().max().item())
    return worst


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_logprobs_are_those_of_a_forward_pass_without_cache(make_model, tokenizer, reference, monkeypatch, attention):
    moves, growth = [], []
    move, reserve = SlotCache.copy, SlotCache.reserve
    monkeypatch.setattr(SlotCache, "copy", lambda c, pairs, n: (moves.append(pairs), move(c, pairs, n))[1])

    def counting_reserve(cache: SlotCache, slots: int, capacity: int) -> None:
        before = (cache.slots, cache.capacity)
        reserve(cache, slots, capacity)
        growth.append((cache.slots, cache.capacity) != before)

    monkeypatch.setattr(SlotCache, "reserve", counting_reserve)
    monkeypatch.setattr(hf, "_PREFILL_TOKENS_CPU", 128)  # several prefill passes, some rows longer than one
    model = make_model(attention=attention)
    played = play(HFPolicy(model, tokenizer, temperature=0.8), rows=24, groups=3, turns=4)
    assert worst_gap(played, model, reference, temperature=0.8) < 1e-4
    assert len({len(spans) for _, spans in played.values()}) > 1, "rows must leave at different turns"
    shared = [pairs for pairs in moves if pairs and len({source for source, _ in pairs}) < len(pairs)]
    swaps = [pairs for pairs in moves if any((b, a) in pairs for a, b in pairs)]
    assert shared and swaps, "prompts must be copied to their group, and rows swapped"
    assert sum(growth) >= 3, "the cache must have grown while in use"


# Where tokens of differently composed batches are compared, weights are float64: in float32 the last bits of a logit
# depend on the batch, and every few ten thousand tokens a uniform falls between two sums that should be equal.


@pytest.mark.parametrize("new", [27, 29])
def test_an_idle_row_at_the_end_of_its_slot_disturbs_nobody(make_model, tokenizer, reference, new):
    # Row 0 fills its slot of 128 positions but for one (27) or wholly (29: the last token is never fed) and stays idle
    # in front of eight rows that decode on for longer. What it computes meanwhile must not reach the slot behind it.
    model, endless = make_model(), copy.deepcopy(tokenizer)
    model.generation_config.eos_token_id = endless.eos_token = None
    policy = HFPolicy(model, endless)
    contexts = {str(i): list(range(20 + i, 30 + i)) for i in range(9)} | {"0": [*range(100, 200)]}
    policy.submit([request(id, ids, new if id == "0" else 60, seed=int(id)) for id, ids in contexts.items()])
    assert [done.id for done in policy.poll()] == ["0"]
    assert policy._table.cache.capacity == 128
    (*others,) = policy.poll()
    assert len(others) == 8
    for done in others:
        plain = reference(model, [*contexts[done.id], *done.token_ids], 10)
        torch.testing.assert_close(torch.tensor(done.logprobs), plain, atol=1e-4, rtol=0)


def test_few_rows_at_a_time_give_the_same_episodes(make_model, tokenizer):
    model = make_model().double()
    wide = play(HFPolicy(model, tokenizer), rows=12, groups=2)
    narrow = play(HFPolicy(model, tokenizer, max_rows=3), rows=12, groups=2)
    assert {id: ids for id, (ids, _) in wide.items()} == {id: ids for id, (ids, _) in narrow.items()}


def test_tokens_depend_on_seed_and_position_alone(make_model, tokenizer):
    model = make_model().double()
    prompt = list(range(40, 60))
    alone = generate(HFPolicy(model, tokenizer), [request("x", prompt, 20, seed=5)])[0]
    crowd = [request(str(i), range(30 + i, 60 + i), 5 + i, seed=i) for i in range(9)]
    crowded = generate(HFPolicy(model, tokenizer), [*crowd[:4], request("x", prompt, 20, seed=5), *crowd[4:]])[4]
    assert crowded.token_ids == alone.token_ids
    other = generate(HFPolicy(model, tokenizer), [request("x", prompt, 20, seed=6)])[0]
    assert other.token_ids != alone.token_ids
    # One turn of 20 tokens and two of 10 with nothing in between draw the same tokens: positions count the context.
    policy = HFPolicy(model, tokenizer)
    policy.submit([request("x", prompt, 10, seed=5)])
    first = policy.poll()[0].token_ids
    policy.submit([request("x", [*prompt, *first], 10, seed=5)])
    assert first + policy.poll()[0].token_ids == alone.token_ids


@pytest.mark.parametrize("settings", [{"top_p": 0.7}, {"top_p": 0.9, "top_k": 20}])
def test_truncated_sampling_reports_whole_logprobs_and_the_mass_kept(make_model, tokenizer, reference, settings):
    model = make_model()
    policy = HFPolicy(model, tokenizer, temperature=1.3, **settings)
    for done in generate(policy, [request(str(i), [4, 5, 6 + i], 10, seed=i) for i in range(4)]):
        context = [4, 5, 6 + int(done.id), *done.token_ids]
        plain = reference(model, context, 3, 1.3)
        torch.testing.assert_close(torch.tensor(done.logprobs), plain, atol=1e-4, rtol=0)
        for i, (token, mass) in enumerate(zip(done.token_ids, done.mask_mass, strict=True)):
            logits = model(torch.tensor([context[: 3 + i]])).logits[0, -1] / 1.3
            ranked = logits.softmax(-1).sort(descending=True)
            kept = ranked.values[: settings.get("top_k", 300)]
            before = (kept.cumsum(0) - kept) / kept.sum()
            kept = kept[before < settings.get("top_p", 2.0)]
            assert mass == pytest.approx(kept.sum().item(), abs=1e-4)
            assert token in ranked.indices[: len(kept)].tolist()


def test_tokens_are_streamed_in_order(make_model, tokenizer):
    heard: dict[str, list[int]] = {}
    policy = HFPolicy(make_model(), tokenizer, on_token=lambda id, token: heard.setdefault(id, []).append(token))
    for done in generate(policy, [request("a", [3, 4], 7, seed=1), request("b", [5], 3, seed=2)]):
        assert tuple(heard[done.id]) == done.token_ids


def test_training_mode_is_left_as_it_was(make_model, tokenizer, reference):
    model = make_model(attention_dropout=0.5)
    model.train()
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()  # in training mode transformers would drop the cache
    policy = HFPolicy(model, tokenizer)
    played = play(policy, rows=4)
    assert model.training and model.model.layers[0].training
    assert worst_gap(played, model.eval(), reference) < 1e-4
