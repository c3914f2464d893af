"""The transformers policy: exact whatever the batch does, reproducible whatever shares it, and how turns end."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import pytest
import torch

from holdfast.errors import ConfigError, ModelError
from holdfast.rollout import hf
from holdfast.rollout.cache import SlotCache
from holdfast.rollout.hf import HFPolicy
from holdfast.rollout.policy import Completion, Request, generate


def request(id: str, ids: Any, new: int = 8, *, stop: tuple[str, ...] = (), seed: int = 0) -> Request:
    return Request(id=id, token_ids=tuple(ids), max_new_tokens=new, stop=stop, seed=seed)


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


def test_a_wrong_cache_would_be_noticed(make_model, tokenizer, reference, monkeypatch):
    # The twin of the test above: rows that see one position too few are off by far more than 1e-4.
    visible = SlotCache.visible
    model = make_model()
    policy = HFPolicy(model, tokenizer)
    monkeypatch.setattr(SlotCache, "visible", staticmethod(lambda p, n: visible((p - 1).clamp(min=0), n)))
    assert worst_gap(play(policy, rows=3), model, reference) > 0.01


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


def test_samples_of_one_prompt_differ_by_seed(make_model, tokenizer):
    completions = generate(
        HFPolicy(make_model(), tokenizer), [request(str(i), [7, 8, 9], 12, seed=i) for i in range(6)]
    )
    assert len({completion.token_ids for completion in completions}) == 6


def test_rows_do_not_wait_for_the_slowest(make_model, tokenizer):
    model, order = make_model(), []
    policy = HFPolicy(model, tokenizer)
    policy.submit([request("slow", [5, 6], 120)] + [request(str(i), [5, 6, 7], 6, seed=i) for i in range(4)])
    turns: dict[str, int] = {}
    while completions := policy.poll():
        for completion in completions:
            order.append(completion.id)
            turns[completion.id] = turns.get(completion.id, 0) + 1
            if completion.id != "slow" and turns[completion.id] < 3:
                policy.submit([request(completion.id, [*range(5, 50), 8 * turns[completion.id]], 6)])
    assert order[-1] == "slow" and len(order) == 1 + 4 * 3


def test_a_lone_request_waits_a_bounded_number_of_steps(make_model, tokenizer, monkeypatch):
    policy = HFPolicy(make_model(), tokenizer)
    policy.submit([request(str(i), [5 + i], 1 if i == 0 else 90) for i in range(20)])
    (first,) = policy.poll()
    policy.submit([request(first.id, [9, 9], 1)])
    steps = []
    step = HFPolicy._step
    monkeypatch.setattr(HFPolicy, "_step", lambda self, finished: (steps.append(1), step(self, finished))[1])
    while first.id not in {completion.id for completion in policy.poll()}:
        pass
    assert len(steps) == 16, "1 of 19 is fewer than an eighth, so it waits out its patience"


def test_greedy_takes_the_most_likely(make_model, tokenizer, reference):
    model = make_model()
    (done,) = generate(HFPolicy(model, tokenizer, greedy=True), [request("g", [4, 5, 6], 10)])
    context = [4, 5, 6]
    for token in done.token_ids:
        assert token == model(torch.tensor([context])).logits[0, -1].argmax().item()
        context.append(token)
    torch.testing.assert_close(torch.tensor(done.logprobs), reference(model, context, 3), atol=1e-4, rtol=0)


@pytest.mark.parametrize("settings", [{"top_p": 0.7}, {"top_k": 5}, {"top_p": 0.9, "top_k": 20}])
def test_truncated_sampling_reports_whole_logprobs_and_the_mass_kept(make_model, tokenizer, reference, settings):
    model = make_model()
    policy = HFPolicy(model, tokenizer, temperature=1.3, **settings)
    for done in generate(policy, [request(str(i), [4, 5, 6 + i], 10, seed=i) for i in range(4)]):
        context = [4, 5, 6 + int(done.id), *done.token_ids]
        plain = reference(model, context, 3, 1.3)
        torch.testing.assert_close(torch.tensor(done.logprobs), plain, atol=1e-4, rtol=0)
        for i, (token, mass) in enumerate(zip(done.token_ids, done.kept_mass, strict=True)):
            logits = model(torch.tensor([context[: 3 + i]])).logits[0, -1] / 1.3
            ranked = logits.softmax(-1).sort(descending=True)
            kept = ranked.values[: settings.get("top_k", 300)]
            before = (kept.cumsum(0) - kept) / kept.sum()
            kept = kept[before < settings.get("top_p", 2.0)]
            assert mass == pytest.approx(kept.sum().item(), abs=1e-4)
            assert token in ranked.indices[: len(kept)].tolist()


def ids_of(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text)["input_ids"]


def chain_of(tokens: list[int]) -> dict[int, int]:
    assert len(set(tokens[:-1])) == len(tokens) - 1, "a chain cannot pass the same token twice"
    return dict(itertools.pairwise(tokens))


def follow(make_chain, tokenizer, script: list[int], *, prompt: int = 1, new: int = 50, stop=("</e>",)) -> Completion:
    """What a model that recites `script` after its first `prompt` tokens produces."""
    policy = HFPolicy(make_chain(chain_of(script)), tokenizer, greedy=True)
    return generate(policy, [request("s", script[:prompt], new, stop=stop)])[0]


def test_a_stop_string_may_span_tokens(make_chain, tokenizer):
    script = [*ids_of(tokenizer, "q"), *ids_of(tokenizer, "</e"), *ids_of(tokenizer, ">"), *ids_of(tokenizer, " w")]
    assert len(script) == 6, "q, </, e, >, and two for what must not be reached"
    done = follow(make_chain, tokenizer, script)
    assert (done.text, done.stop_reason) == ("</e>", "stop")
    assert list(done.token_ids) == script[1:4]


def test_the_closing_token_is_kept_whole(make_chain, tokenizer):
    closing = ids_of(tokenizer, " </search>\n\n")
    assert tokenizer.decode(closing[-1:]) == ">\n\n"
    done = follow(make_chain, tokenizer, [*ids_of(tokenizer, "q"), *closing, 5], stop=("</search>", "</answer>"))
    assert (done.text, done.stop_reason) == (" </search>\n\n", "stop")
    assert list(done.token_ids) == closing


def test_the_last_character_alone_does_not_stop(make_chain, tokenizer):
    done = follow(make_chain, tokenizer, ids_of(tokenizer, "q>Z"), new=2)
    assert (done.text, done.stop_reason) == (">Z", "length")


def test_a_stop_string_in_the_prompt_does_not_count(make_chain, tokenizer):
    script = [*ids_of(tokenizer, "</e"), *ids_of(tokenizer, ">"), *ids_of(tokenizer, "Z>")]
    # The prompt ends in the middle of the tag: "</e", and the model writes ">" first.
    done = follow(make_chain, tokenizer, [*script[:-1]], prompt=2, new=2)
    assert (done.text, done.stop_reason) == (">Z", "length")
    done = follow(make_chain, tokenizer, [*script[:-1]], prompt=3, new=1)
    assert (done.text, done.stop_reason) == ("Z", "length"), "nor when the whole tag lies there"


def test_end_of_sequence_ends_the_turn_and_is_kept(make_chain, tokenizer):
    end = tokenizer.eos_token_id
    done = follow(make_chain, tokenizer, [*ids_of(tokenizer, "qZ"), end])
    assert (done.text, done.stop_reason) == ("Z", "eos")
    assert done.token_ids[-1] == end and len(done.logprobs) == 2


def test_end_ids_of_the_generation_config_count_too(make_chain, tokenizer):
    model = make_chain(chain_of([10, 11, 12, 13]))
    model.generation_config.eos_token_id = [12, 299]
    model.generation_config.top_k = 1
    model.generation_config.temperature = 9.0
    done = generate(HFPolicy(model, tokenizer, greedy=True), [request("x", [10], 9)])[0]
    assert (done.token_ids, done.stop_reason) == ((11, 12), "eos")
    assert done.kept_mass is None, "its sampling settings do not"


def test_a_turn_stops_at_its_last_allowed_token_when_it_completes_the_tag(make_chain, tokenizer):
    script = [*ids_of(tokenizer, "q"), *ids_of(tokenizer, "</e"), *ids_of(tokenizer, ">")]
    assert follow(make_chain, tokenizer, script, new=3).stop_reason == "stop"
    assert follow(make_chain, tokenizer, script, new=2).stop_reason == "length"


def test_stop_strings_are_each_requests_own(make_chain, tokenizer):
    script = ids_of(tokenizer, "qabc>")
    model = make_chain(chain_of(script))
    a, b = generate(
        HFPolicy(model, tokenizer, greedy=True),
        [request("a", script[:1], 4, stop=("b",)), request("b", script[:1], 4, stop=("c>",))],
    )
    assert (a.text, b.text) == ("ab", "abc>")


def test_released_rows_start_over_and_others_go_on(make_model, tokenizer):
    model = make_model().double()
    wanted = generate(HFPolicy(model, tokenizer), [request("keep", [4, 5, 6], 30, seed=1)])[0]
    policy = HFPolicy(model, tokenizer)
    policy.submit(
        [
            request("keep", [4, 5, 6], 30, seed=1),
            request("drop", [4, 5, 6], 40),
            request("short", [9], 2),
            request("q", [3]),
        ]
    )
    policy.poll()
    policy.release(["drop", "never heard of"])
    completions = []
    while more := policy.poll():
        completions += more
    assert {completion.id for completion in completions} == {"keep", "q"}
    assert next(c for c in completions if c.id == "keep").token_ids == wanted.token_ids


def test_a_changed_history_is_recomputed(make_model, tokenizer, reference):
    model = make_model()
    policy = HFPolicy(model, tokenizer)
    policy.submit([request("x", range(20, 60), 10)])
    first = policy.poll()[0]
    changed = [*range(20, 45), 7, *range(46, 60), *first.token_ids[:3]]
    policy.submit([request("x", changed, 10)])
    done = policy.poll()[0]
    plain = reference(model, [*changed, *done.token_ids], len(changed))
    torch.testing.assert_close(torch.tensor(done.logprobs), plain, atol=1e-4, rtol=0)


def test_the_same_context_again(make_model, tokenizer):
    policy = HFPolicy(make_model().double(), tokenizer)
    policy.submit([request("x", [5, 6, 7], 4)])
    first = policy.poll()[0]
    policy.submit([request("x", [5, 6, 7], 4)])
    assert policy.poll()[0].token_ids == first.token_ids


def test_caches_of_ended_episodes_do_not_leak_into_the_next(make_model, tokenizer, reference):
    model = make_model()
    policy = HFPolicy(model, tokenizer)
    play(policy, rows=6, seed=1)
    assert worst_gap(play(policy, rows=6, seed=2), model, reference) < 1e-4
    with torch.no_grad():
        model.lm_head.weight.mul_(0.5)
        model.model.layers[0].mlp.down_proj.weight.mul_(2)
    assert worst_gap(play(policy, rows=6, seed=2), model, reference) < 1e-4, "nor do keys of the old weights"


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


def test_bfloat16_autocast(make_model, tokenizer):
    model = make_model(initializer_range=0.1)
    policy = HFPolicy(model, tokenizer, autocast_dtype=torch.bfloat16)
    played = play(policy, rows=6)
    assert policy._table.cache.layers[0].keys.dtype == torch.bfloat16
    for context, spans in played.values():
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(torch.tensor([context])).logits[0].float()
        for start, done in spans:
            rows = torch.arange(start, start + len(done.token_ids))
            plain = logits.log_softmax(-1)[rows - 1, torch.tensor(done.token_ids)]
            # bfloat16 keeps 8 bits: a few thousandths of the logits' size (about 2), not the 1e-4 of float32.
            assert (plain - torch.tensor(done.logprobs)).abs().max() < 0.05


def test_vocabulary_is_projected_for_one_position_a_row(make_model, tokenizer):
    model = make_model()
    shapes = []
    policy = HFPolicy(model, tokenizer)
    model.lm_head.register_forward_pre_hook(lambda module, inputs: shapes.append(inputs[0].shape[:2]))
    generate(policy, [request("a", range(10, 60), 3), request("b", range(10, 40), 3, seed=1)])
    assert shapes == [(2, 1)] * 3


def test_a_prompt_shared_by_a_group_is_computed_once(make_model, tokenizer):
    model = make_model()
    rows = []
    policy = HFPolicy(model, tokenizer)
    model.model.embed_tokens.register_forward_pre_hook(lambda module, inputs: rows.append(tuple(inputs[0].shape)))
    generate(policy, [request(str(i), range(10, 40), 2, seed=i) for i in range(5)])
    assert rows == [(1, 30), (5, 1)]


def test_only_unseen_tokens_are_computed(make_model, tokenizer):
    model = make_model()
    fed = []
    policy = HFPolicy(model, tokenizer)
    model.model.embed_tokens.register_forward_pre_hook(lambda module, inputs: fed.append(inputs[0].tolist()))
    policy.submit([request("x", [10, 11, 12], 2)])
    first = policy.poll()[0].token_ids
    policy.submit([request("x", [10, 11, 12, *first, 20, 21], 1)])
    policy.poll()
    # The last sampled token was never fed: it goes in with the observation.
    assert fed == [[[10, 11, 12]], [[first[0]]], [[first[1], 20, 21]]]


def test_more_episodes_than_slots_wait_without_error(make_model, tokenizer):
    policy = HFPolicy(make_model(), tokenizer, max_rows=1)
    policy.submit([request("a", [5], 2), request("b", [6], 2)])
    assert [done.id for done in policy.poll()] == ["a"]
    assert policy.poll() == [], "a may still continue, so b cannot start"
    policy.release(["a"])
    assert [done.id for done in policy.poll()] == ["b"]
    assert policy.poll() == []


def test_one_request_per_id(make_model, tokenizer):
    policy = HFPolicy(make_model(), tokenizer)
    policy.submit([request("a", [5], 2)])
    with pytest.raises(ValueError, match="a is under way"):
        policy.submit([request("a", [5], 2)])


def test_requests_beyond_the_models_positions_are_refused(make_model, tokenizer):
    policy = HFPolicy(make_model(max_position_embeddings=16), tokenizer)
    assert len(generate(policy, [request("a", range(10, 20), 7)])[0].token_ids) == 7, "the 17th token is never fed"
    with pytest.raises(ModelError, match=r"may reach 17 tokens.*max_position_embeddings is 16"):
        policy.submit([request("b", range(10, 20), 8)])


def test_weights_that_diverged(make_model, tokenizer):
    model = make_model()
    policy = HFPolicy(model, tokenizer)
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(ModelError, match="not finite"):
        generate(policy, [request("a", [5], 2)])


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}])
def test_sampling_settings_out_of_range(make_model, tokenizer, settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        HFPolicy(make_model(), tokenizer, **settings)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"token_ids": ()}, "empty context"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"stop": ("",)}, "empty stop"),
    ],
)
def test_requests_that_cannot_work(settings, match):
    with pytest.raises(ValueError, match=match):
        Request(**({"id": "x", "token_ids": (1,), "max_new_tokens": 1, "stop": (), "seed": 0} | settings))
