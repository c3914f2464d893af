"""The slots of the transformers policy: who waits for one, what is kept between turns, and nothing fed twice."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.agent.agent import Task, run_rollouts
from holdfast.agent.tools import PRESETS
from holdfast.base.errors import ConfigError
from holdfast.model import support
from holdfast.model.sampler import hf
from holdfast.model.sampler.cache import SlotCache
from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.sampler.policy import generate

from .conftest import request

# ---- who waits


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


def test_more_episodes_than_slots_wait_without_error(make_model, tokenizer):
    policy = HFPolicy(make_model(), tokenizer, max_rows=1)
    policy.submit([request("a", [5], 2), request("b", [6], 2), request("c", [7], 2)])
    assert [done.id for done in policy.poll()] == ["a"]
    assert policy.poll() == [], "a may still continue, so b cannot start"
    policy.release(["a", "b"])
    assert [done.id for done in policy.poll()] == ["c"], "nor is one computed that was released while it waited"
    assert policy.poll() == []


# ---- what is kept


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


@pytest.mark.parametrize("error", [KeyboardInterrupt(), torch.OutOfMemoryError("CUDA out of memory")])
def test_what_breaks_off_a_prefill_is_what_is_raised(make_model, tokenizer, monkeypatch, error):
    model = make_model()
    policy = HFPolicy(model, tokenizer)

    def broken(*_, **__):
        raise error

    silent: Any = SimpleNamespace(in_process=True)
    tasks = [Task(id=str(i), example_id=str(i), prompt=(5, 6, 7 + i), seed=i) for i in range(3)]
    with monkeypatch.context() as patch, pytest.raises(type(error)) as caught:
        patch.setattr(hf, "planned_forward", broken)
        run_rollouts(tasks, policy=policy, retriever=silent, protocol=PRESETS["clean"], tokenizer=tokenizer)
    assert caught.value is error
    requests = [request(str(i), [5, 6, 7 + i], seed=i) for i in range(3)]
    assert generate(policy, requests) == generate(HFPolicy(model, tokenizer), requests)


# ---- what is computed


def test_vocabulary_is_projected_for_one_position_a_row(make_model, tokenizer):
    model = make_model()
    shapes = []
    policy = HFPolicy(model, tokenizer)
    model.lm_head.register_forward_pre_hook(lambda module, inputs: shapes.append(inputs[0].shape[:2]))
    generate(policy, [request("a", range(10, 60), 3), request("b", range(10, 40), 3, seed=1)])
    assert shapes == [(2, 1)] * 3


@pytest.mark.parametrize(("hidden", "computed"), [(256, 2), (32, 3)])
def test_a_later_turn_shared_by_rows_is_computed_once_unless_the_model_is_tiny(
    make_model, tokenizer, reference, hidden, computed
):
    model = make_model(hidden_size=hidden)
    fed = []
    policy = HFPolicy(model, tokenizer, greedy=True)
    model.model.embed_tokens.register_forward_pre_hook(lambda module, inputs: fed.append(tuple(inputs[0].shape)))
    context = {id: list(range(10, 40)) for id in "abc"}
    first = {done.id: done for done in generate(policy, [request(id, ids, 4) for id, ids in context.items()])}
    assert len({done.token_ids for done in first.values()}) == 1
    assert fed[0] == (1, 30), "a prompt is always shared"
    context = {id: ids + list(first[id].token_ids) for id, ids in context.items()}
    policy.submit([request(id, ids, 4) for id, ids in context.items()])
    while policy.poll():
        pass
    fed.clear()
    context = {id: [*policy._rows[id].context, *([50] * 9 if id != "c" else [60] * 9)] for id in context}
    policy.submit([request(id, ids, 1) for id, ids in context.items()])
    done = [one for _ in range(3) for one in policy.poll()]
    assert fed == [(computed, 10)]
    for one in done:
        expected = reference(model, [*context[one.id], *one.token_ids], len(context[one.id]))
        assert one.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("hidden", "head", "prefills"),
    [(256, 40, [(1, 40), (3, 3)]), (256, 20, [(3, 23)]), (32, 40, [(3, 43)])],
    ids=["once", "too short to pay", "a tiny model"],
)
def test_what_all_prompts_begin_with_is_computed_once(make_model, tokenizer, reference, hidden, head, prefills):
    model = make_model(hidden_size=hidden)
    fed = []
    policy = HFPolicy(model, tokenizer)
    model.model.embed_tokens.register_forward_pre_hook(lambda module, inputs: fed.append(tuple(inputs[0].shape)))
    prompts = {"a": [50, 51, 52], "b": [60], "c": [70, 71]}
    contexts = {id: [*range(10, 10 + head), *ids] for id, ids in prompts.items()}
    done = generate(policy, [request(id, ids, 2, seed=len(ids)) for id, ids in contexts.items()])
    assert fed == [*prefills, (3, 1)]
    for one in done:
        expected = reference(model, [*contexts[one.id], *one.token_ids], len(contexts[one.id]))
        assert one.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


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


# ---- a policy that is kept


def test_a_kept_policy_samples_as_a_fresh_one_after_the_weights_have_changed(make_model, tokenizer):
    model = make_model()
    kept = HFPolicy(model, tokenizer)
    requests = [request(str(i), [5, 6, 7 + i % 2], 20, seed=i) for i in range(5)]
    before = generate(kept, requests)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    after = generate(kept, requests)
    assert after == generate(HFPolicy(model, tokenizer), requests) != before


def test_policies_of_one_model_share_what_was_made_of_it_and_no_episodes(make_model, tokenizer, monkeypatch):
    checked = []
    monkeypatch.setattr(hf, "check_exact", lambda *args: checked.append(args))
    policy = HFPolicy(make_model(), tokenizer, top_k=3, max_tokens=50)
    requests = [request(str(i), [5, 6, 7], 12, seed=i) for i in range(3)]
    policy.submit(requests)
    greedy = policy.with_sampling(temperature=2.0, greedy=True)
    assert (greedy.temperature, greedy.top_p, greedy.top_k, greedy.greedy) == (2.0, 1.0, 0, True)
    assert (policy.temperature, policy.top_k, policy.greedy) == (1.0, 3, False)
    assert greedy._stops is policy._stops and len(checked) == 1
    (one, two, three) = generate(greedy, requests)
    assert one.token_ids == two.token_ids == three.token_ids
    policy.release([r.id for r in requests])
    assert generate(policy, requests) == generate(HFPolicy(policy.model, tokenizer, top_k=3), requests)
    with pytest.raises(ConfigError, match="temperature = 0"):
        policy.with_sampling(temperature=0.0)


def test_the_last_release_gives_the_cache_back(make_model, tokenizer):
    policy = HFPolicy(make_model(), tokenizer)

    def holds() -> bool:
        return any(layer.is_initialized for layer in policy._table.cache.layers)

    policy.submit([request("a", [5, 6], 3), request("b", [5, 6], 3)])
    while not policy.poll():
        pass
    policy.release(["a"])
    assert holds(), "the other one may go on"
    policy.release(["b"])
    assert not holds()


def test_a_cpu_has_room_for_as_many_rows_as_a_fixed_cache(make_model, tokenizer, monkeypatch):
    """An evaluation of hundreds of questions would else fill the memory. A tiny model has room for all."""
    policy = HFPolicy(make_model(), tokenizer, max_tokens=64)
    policy.submit([request("first", [5, 6])])
    assert policy.max_rows == 512
    policy.release(["first"])
    per_row = 2 * 2 * 2 * 8 * 4 * 64  # keys and values, layers, heads, dimensions, bytes, tokens
    monkeypatch.setattr(hf, "CACHE_CPU", 5 * per_row)
    policy.submit([request(str(i), [5, 6], 3) for i in range(12)])
    assert policy.max_rows == 5
    done = []
    while completions := policy.poll():
        done += completions
        policy.release([completion.id for completion in completions])
    assert len(done) == 12


@pytest.mark.parametrize("growing", [False, True])
def test_without_a_promised_length_the_cache_is_bounded_by_the_longest_request(
    make_model, tokenizer, monkeypatch, growing
):
    """Conversations grow, as those of ircot do. Samples are the same as with room for all."""

    def converse(policy: HFPolicy) -> tuple[dict, int]:
        ids, done, most = [str(i) for i in range(12)], {}, 0
        turns = dict.fromkeys(ids, 0)
        ask = lambda id: request(id, [5, 6, int(id) + 7] * (1 + 30 * turns[id] * growing), 3, seed=int(id))  # noqa: E731
        policy.submit([ask(id) for id in ids])
        while completions := policy.poll():
            layers = [layer for layer in policy._cache.layers if layer.is_initialized]
            most = max(most, sum(layer.keys.nbytes + layer.values.nbytes for layer in layers))
            for c in completions:
                done[c.id, turns[c.id]] = list(c.token_ids), list(c.logprobs)
                turns[c.id] += 1
            policy.submit([ask(c.id) for c in completions if turns[c.id] < 3])
            policy.release([c.id for c in completions if turns[c.id] == 3])
        return done, most

    free, _ = converse(HFPolicy(make_model(), tokenizer))
    budget = 4 * 186 * (2 * 2 * 2 * 8 * 4)  # four rows of the longest request: layers, heads, dimensions, bytes
    monkeypatch.setattr(hf, "CACHE_CPU", budget)
    policy = HFPolicy(make_model(), tokenizer)
    bounded, most = converse(policy)
    assert len(free) == 36 and {turn: ids for turn, (ids, _) in bounded.items()} == {t: i for t, (i, _) in free.items()}
    for turn, (_, logprobs) in bounded.items():
        assert logprobs == pytest.approx(free[turn][1], abs=1e-4)
    assert 0 < most <= budget


def test_a_gpus_room_is_measured_for_each_batch_of_episodes(make_model, tokenizer, monkeypatch):
    """What trains between two batches takes memory, and gives it back."""
    policy = HFPolicy(make_model(), tokenizer, max_rows=100, max_tokens=64)
    policy.device = torch.device("cuda")
    for fit, rows in ((7, 7), (3, 3), (500, 100)):
        monkeypatch.setattr(hf, "free_memory", lambda device: 0)
        monkeypatch.setattr(hf, "rows_that_fit", lambda *args, fit=fit: fit)
        policy.submit([request("first", [5, 6])])
        assert policy.max_rows == rows and policy._table.cache.limits == (rows, 64)
        monkeypatch.setattr(hf, "rows_that_fit", lambda *args: pytest.fail("episodes are under way"))
        policy.submit([request("second", [5, 6])])
        policy.release(["first", "second"])


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_a_cache_is_passed_by_the_name_that_this_transformers_has(make_model, tokenizer, monkeypatch, name):
    """transformers 5.24 has renamed the argument, and warns of the former name."""
    model, seen = make_model(), set()
    forward = type(model).forward

    def former(self, *args, past_key_values=None, **kwargs):
        seen.add(past_key_values is not None)
        return forward(self, *args, **{here: past_key_values}, **kwargs)

    def latter(self, *args, cache=None, **kwargs):
        seen.add(cache is not None)
        return forward(self, *args, **{here: cache}, **kwargs)

    here = support._cache_argument(forward)
    monkeypatch.setattr(type(model), "forward", {"past_key_values": former, "cache": latter}[name])
    policy = HFPolicy(model, tokenizer)
    policy.submit([request("a", [5, 6], 2)])
    assert [done.id for done in policy.poll()] == ["a"]
    assert True in seen


# ---- the tensor side of the cache


CPU = torch.device("cpu")


def test_a_dead_cache_does_not_wait_for_the_garbage_collector() -> None:
    """Which comes seldom; until then the update would do without that memory."""
    cache = SlotCache(2, CPU, slots=3, capacity=4)
    cache.plan_step(torch.tensor([0]), length=1)
    cache.update(torch.ones(1, 2, 1, 3), torch.ones(1, 2, 1, 3), 0)
    held = weakref.ref(cache.layers[0].keys)
    gc.disable()
    try:
        del cache
        assert held() is None
    finally:
        gc.enable()
