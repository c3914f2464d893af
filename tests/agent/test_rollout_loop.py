"""Rollouts with scripted policies and retrievers: what the model sees, budgets, failures, order."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from holdfast.agent.agent import Task, lose_searches, run_rollouts
from holdfast.agent.protocol import CLEAN
from holdfast.agent.searching import RolloutStats
from holdfast.agent.trajectory import Answer, Invalid, Search, Status
from holdfast.base.errors import RetrievalError
from holdfast.base.retries import Retries
from holdfast.model.sampler.hf import HFPolicy
from holdfast.retrieval.types import Document

from .conftest import Shelf

LAKE = Document("d1", '"Lake"\nThe lake of Orsa.')
SEARCH, SEARCH_TOWN = "<search> lake </search>\n\n", "<search> town </search>\n\n"
ANSWER = "so <answer> Orsa </answer>\n\n"


def lakes(**settings: Any) -> Shelf:
    """Finds the lake, whatever is asked."""
    return Shelf(lambda query: [LAKE], **settings)


@pytest.fixture
def run(tokenizer, scripted):
    """run({"a": ["turn", …]}) -> (trajectories, policy, stats)"""

    def run(script, *, retriever=None, policy=None, protocol=None, prompts=None, **settings):
        policy = policy or scripted(script)
        prompts = prompts or {}
        tasks = [
            Task(id=id, example_id=f"q/{id}", prompt=tuple(prompts.get(id, (40, 41, 42))), seed=7 * i)
            for i, id in enumerate(script)
        ]
        stats = RolloutStats()
        protocol = protocol or replace(CLEAN, topk=1)
        settings = {"retries": Retries(backoff=0.0), "protocol": protocol, "stats": stats} | settings
        done = run_rollouts(tasks, policy=policy, retriever=retriever or lakes(), tokenizer=tokenizer, **settings)
        return done, policy, stats

    return run


def test_concatenation_is_what_the_model_saw(run, tokenizer):
    script = {"a": [SEARCH, "hm", SEARCH_TOWN, ANSWER], "b": [ANSWER], "c": ["no", "no", "no", "no"]}
    trajectories, policy, _ = run(script, prompts={"b": (9, 8)})
    for id, trajectory in zip("abc", trajectories, strict=True):
        ids = trajectory.token_ids
        contexts = [tuple(request.token_ids) for request in policy.seen[id]]
        assert contexts[0] == trajectory.prompt
        end = len(trajectory.prompt)
        for turn, context in zip(trajectory.turns, contexts, strict=True):
            assert context == ids[:end]
            end += len(turn.tokens) + len(turn.observation)
        assert end == len(ids)
        for turn, text in zip(trajectory.turns, script[id], strict=True):
            assert turn.tokens == tuple(tokenizer(text)["input_ids"])
            assert len(turn.logprobs) == len(turn.tokens)


def test_an_episode_that_searches_and_answers(run, tokenizer):
    (trajectory,), policy, stats = run({"a": [SEARCH, ANSWER]})
    assert (trajectory.status, trajectory.answer, trajectory.searches) == (Status.OK, "Orsa", 1)
    assert trajectory.example_id == "q/a"
    assert (stats.searches, stats.calls) == (1, 1)
    search, answer = trajectory.turns
    assert search.action == Search("lake") and search.hits == ("d1",)
    assert search.observation_text == tokenizer.decode(search.observation)
    assert "<information>" in search.observation_text and "The lake of Orsa." in search.observation_text
    assert answer.action == Answer("Orsa") and answer.observation == () and answer.hits == ()
    assert policy.seen["a"][0].seed == policy.seen["a"][1].seed == 0
    assert policy.seen["a"][0].stop == ("</search>", "</answer>")
    assert policy.released.count("a") >= 1


def test_the_answer_span_covers_tags_and_overhang(run, tokenizer):
    (trajectory,), _, _ = run({"a": [ANSWER]})
    turn = trajectory.turns[0]
    start, end = turn.answer_span
    # The answer's first token is the one with "<" in it, its last the one that merges ">" with the newlines.
    assert tokenizer.decode(turn.tokens[start:end]).strip() == "<answer> Orsa </answer>"
    assert tokenizer.decode(turn.tokens[end - 1 : end]) == ">\n\n" and end == len(turn.tokens)
    assert sum(trajectory.answer_mask) == end - start
    assert [turn.answer_span for turn in run({"a": [SEARCH, "x", ANSWER]})[0][0].turns[:2]] == [None, None]


@pytest.mark.parametrize("last", [SEARCH, "hm"])
def test_the_last_turn_without_an_answer_is_truncated(run, last):
    retriever = lakes()
    (trajectory,), _, stats = run({"a": [SEARCH, last]}, protocol=replace(CLEAN, max_turns=2), retriever=retriever)
    assert trajectory.status is Status.TRUNCATED and trajectory.answer is None
    assert len(trajectory.turns) == 2 and trajectory.turns[1].observation == ()
    assert retriever.calls == [["lake"]] and stats.searches == 1, "nobody could read what the last search finds"


def test_tokens_per_turn_and_in_total_are_budgets(run, tokenizer):
    protocol = replace(CLEAN, topk=1, max_turn_tokens=9, max_total_tokens=20)
    (trajectory,), policy, _ = run({"a": ["hm " * 50]}, protocol=protocol, prompts={"a": range(40, 53)})
    assert policy.seen["a"][0].max_new_tokens == 7, "13 of 20 are taken by the prompt"
    assert trajectory.status is Status.TRUNCATED and len(trajectory.token_ids) == 20
    _, policy, _ = run({"a": [ANSWER]}, protocol=protocol)
    assert policy.seen["a"][0].max_new_tokens == 9


def test_a_search_that_uses_up_the_budget_is_not_sent(run, tokenizer):
    retriever, used = lakes(), 3 + len(tokenizer(SEARCH)["input_ids"])
    protocol = replace(CLEAN, max_total_tokens=used)
    (trajectory,), _, stats = run({"a": [SEARCH]}, protocol=protocol, retriever=retriever)
    assert trajectory.status is Status.TRUNCATED and trajectory.turns[0].action == Search("lake")
    assert retriever.calls == [] and stats.searches == 0


def test_feedback_that_leaves_no_room_ends_the_episode(run, tokenizer):
    used = 3 + len(tokenizer(SEARCH)["input_ids"])
    (whole,), _, _ = run({"a": [SEARCH, ANSWER]})
    feedback = len(whole.turns[0].observation)
    tight = replace(CLEAN, topk=1, max_total_tokens=used + feedback)
    (trajectory,), _, _ = run({"a": [SEARCH, ANSWER]}, protocol=tight)
    assert trajectory.status is Status.TRUNCATED and len(trajectory.turns) == 1
    assert trajectory.turns[0].observation == () and trajectory.turns[0].hits == ()
    (trajectory,), policy, _ = run(
        {"a": [SEARCH, ANSWER]}, protocol=replace(tight, max_total_tokens=used + feedback + 1)
    )
    assert len(trajectory.turns) == 2 and policy.seen["a"][1].max_new_tokens == 1, "one more token is enough to go on"


def test_a_prompt_that_fills_the_budget_is_an_error_not_a_wrong_answer(run):
    long, fine = run({"a": [], "b": [ANSWER]}, protocol=replace(CLEAN, max_total_tokens=60), prompts={"a": [5] * 60})[0]
    assert long.status is Status.ERROR and long.turns == ()
    assert long.error == "a prompt of 60 tokens fills protocol.max_total_tokens = 60"
    assert fine.status is Status.OK and fine.error is None


def test_a_cut_observation_is_marked(run):
    protocol = replace(CLEAN, topk=1, max_observation_tokens=30)
    (trajectory,), _, _ = run({"a": [SEARCH, ANSWER]}, protocol=protocol)
    assert trajectory.turns[0].observation_truncated
    assert not run({"a": [SEARCH, ANSWER]})[0][0].turns[0].observation_truncated


@pytest.mark.parametrize("in_process", [True, False])
def test_a_broken_search_ends_its_episode_alone(run, in_process):
    retriever = lakes(broken={"town": 99}, in_process=in_process)
    script = {"a": [SEARCH, ANSWER], "b": [SEARCH_TOWN, ANSWER], "c": [SEARCH_TOWN, ANSWER]}
    (a, b, c), policy, stats = run(script, retriever=retriever)
    assert a.status is Status.OK
    assert b.status is c.status is Status.RETRIEVAL_FAILED
    assert (a.error, b.error, c.error) == (None, "no answer for town", "no answer for town")
    assert b.turns[0].action == Search("town") and b.turns[0].observation == ()
    assert not any(b.loss_mask), "an outage must never look like a wrong answer"
    assert stats.failed_searches == 2
    assert set(policy.released) == {"a", "b", "c"}


def test_decoding_goes_on_while_a_search_is_out(run, scripted):
    # The search comes back only after the policy was polled three more times: with a barrier this would time out.
    script = {"a": [SEARCH, ANSWER], "b": ["x", "x", ANSWER], "c": [ANSWER]}
    policy, polled = scripted(script), threading.Event()
    poll = policy.poll

    def counting_poll():
        if policy.polls >= 4:
            polled.set()
        return poll()

    policy.poll = counting_poll

    class Slow(Shelf):
        def search(self, queries, k):
            if not polled.wait(timeout=60):
                raise RetrievalError("the policy stood still")
            return super().search(queries, k)

    slow = Slow(lambda query: [LAKE], in_process=False)
    (a, *_), _, _ = run(script, policy=policy, retriever=slow, retries=Retries(0))
    assert a.status is Status.OK and a.turns[0].hits == ("d1",)


def test_lost_searches_find_nothing_by_each_tasks_own_luck(run):
    script = {f"t{i}": [SEARCH, SEARCH, ANSWER] for i in range(60)}
    shelf = lakes()
    trajectories, _, stats = run(script, wrap=partial(lose_searches, probability=0.3), retriever=shelf)
    missed = [tuple(not turn.hits for turn in trajectory.turns[:2]) for trajectory in trajectories]
    assert len(set(missed)) == 4, "the two searches of an episode have their own luck"
    assert all(
        CLEAN.nothing_found in t.turns[0].observation_text for t, m in zip(trajectories, missed, strict=True) if m[0]
    )
    assert all(trajectory.status is Status.OK for trajectory in trajectories)
    assert stats.searches == 120 and stats.failed_searches == 0
    luck = [[random.Random(f"{7 * i}-{turn}").random() < 0.3 for turn in (1, 2)] for i in range(60)]
    assert [list(m) for m in missed] == luck, "by the seed of the task and the number of the turn"


def test_bugs_of_a_retriever_are_not_swallowed(run):
    class Buggy(Shelf):
        def search(self, queries, k):
            raise KeyError("a bug")

    for in_process in (True, False):
        with pytest.raises(KeyError):
            run({"a": [SEARCH, ANSWER]}, retriever=Buggy(in_process=in_process))


def test_task_ids_are_unique(tokenizer, scripted):
    task = Task(id="a", example_id="q", prompt=(5,), seed=0)
    with pytest.raises(ValueError, match="same id"):
        run_rollouts([task, task], policy=scripted({}), retriever=lakes(), protocol=CLEAN, tokenizer=tokenizer)


@pytest.mark.parametrize(("in_process", "max_rows"), [(True, 4), (False, 512)])
def test_with_a_model_every_logprob_is_exact(make_model, tokenizer, reference, in_process, max_rows):
    # A random model rarely closes a tag; with one-letter tags it searches, answers, and fails to, in all mixtures.
    letters = {"search_tags": ("s", "e"), "answer_tags": ("o", "a")}
    protocol = replace(CLEAN, **letters, max_turns=4, max_turn_tokens=40, max_total_tokens=260, topk=1)
    tasks = [
        Task(id=f"{q}/{g}", example_id=str(q), prompt=tuple(range(20, 30 + 3 * q)), seed=10 * q + g)
        for q in range(6)
        for g in range(3)
    ]
    model = make_model()
    with torch.no_grad():  # those letters often
        model.lm_head.weight[tokenizer.convert_tokens_to_ids(list("seoa"))] *= 1.7
    policy = HFPolicy(model, tokenizer, max_rows=max_rows)
    retriever = lakes(in_process=in_process)
    trajectories = run_rollouts(tasks, policy=policy, retriever=retriever, protocol=protocol, tokenizer=tokenizer)
    assert {trajectory.status for trajectory in trajectories} == {Status.OK, Status.TRUNCATED}
    assert {type(turn.action) for t in trajectories for turn in t.turns} == {Search, Answer, Invalid}
    assert not policy._rows, "all caches are dropped"
    for trajectory in trajectories:
        assert len(trajectory.token_ids) <= 260
        plain = reference(model, trajectory.token_ids, 1).tolist()
        for i, sampled in enumerate(trajectory.rollout_logprobs):
            if trajectory.loss_mask[i]:
                assert sampled == pytest.approx(plain[i - 1], abs=1e-4)
    if in_process:
        again = run_rollouts(tasks, policy=policy, retriever=retriever, protocol=protocol, tokenizer=tokenizer)
        assert again == trajectories, "bit for bit: a resumed run must not differ"
