"""The scheduler with agents that are written here: tools, order, and what is released on every way out."""

from __future__ import annotations

import ast
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import pytest

from holdfast.agent import searching
from holdfast.agent.scheduler import Agent, ToolCall, run_agents
from holdfast.agent.searching import SEARCH, RolloutStats, SearchQueue, search_with_retries
from holdfast.base import retries
from holdfast.base.errors import RetrievalError, RetrieverTimeout, RetrieverUnreachable, RolloutError
from holdfast.base.retries import Retries
from holdfast.model.sampler.policy import Completion, Request
from holdfast.retrieval.types import Document, Hit

from ..waiting import wait_for
from .conftest import Shelf

_OPERATORS: dict[type, Callable[[float, float], float]] = {ast.Add: operator.add, ast.Mult: operator.mul}


class Calculator:
    """A second tool: sums and products, computed as they are asked."""

    pending: tuple[Future[Any], ...] = ()

    def __init__(self) -> None:
        self.computed: list[str] = []
        self._done: dict[str, float] = {}

    def submit(self, arguments: Iterable[str]) -> None:
        for expression in arguments:
            if expression not in self._done:
                self.computed.append(expression)
                self._done[expression] = self._value(ast.parse(expression, mode="eval").body)

    def poll(self) -> list[tuple[str, float]]:
        done, self._done = self._done, {}
        return list(done.items())

    def _value(self, node: Any) -> float:
        if isinstance(node, ast.Constant):
            return float(node.value)  # type: ignore[arg-type]
        return _OPERATORS[type(node.op)](self._value(node.left), self._value(node.right))


class Echo:
    """A policy that returns the context; keeps what is submitted and released, in order."""

    def __init__(self, at_once: int = 1) -> None:
        self.at_once, self.queue, self.log = at_once, list[Request](), list[tuple[str, list[str]]]()

    def submit(self, requests: Sequence[Request]) -> None:
        self.queue += requests
        self.log.append(("submit", [request.id for request in requests]))

    def poll(self) -> list[Completion]:
        answered, self.queue = self.queue[: self.at_once], self.queue[self.at_once :]
        return [
            Completion(id=r.id, token_ids=tuple(r.token_ids), logprobs=None, stop_reason="eos", text=str(r.seed))
            for r in answered
        ]

    def release(self, ids: Iterable[str]) -> None:
        self.log.append(("release", list(ids)))

    def of(self, kind: str) -> list[list[str]]:
        return [ids for name, ids in self.log if name == kind and ids]


def say(id: str, *token_ids: int) -> Request:
    return Request(id=id, token_ids=token_ids or (1,), max_new_tokens=8, stop=(), seed=0)


def asks(*calls: Request | ToolCall) -> Agent[list[Any]]:
    """Makes these calls; its outcome is what they returned."""
    replies = []
    for call in calls:
        reply = yield call
        replies.append(reply.token_ids if isinstance(reply, Completion) else reply)
    return replies


def calculate(expression: str) -> ToolCall:
    return ToolCall("calculator", expression)


def test_a_calculator_is_a_second_tool() -> None:
    calculator, shelf = Calculator(), Shelf(broken={"broken": 1})
    agents = {
        "a": asks(say("a", 5), ToolCall(SEARCH, "lake"), calculate("2*3"), say("a", 6, 7)),
        "b": asks(calculate("2*3"), calculate("1+2*3"), ToolCall(SEARCH, "broken")),
        "c": asks(),
    }
    tools = {SEARCH: SearchQueue(shelf, 1, retries=Retries(0)), "calculator": calculator}
    a, b, c = run_agents(agents, policy=Echo(), tools=tools)
    assert a == [(5,), [Hit(Document("lake", "lake"), 1.0)], 6.0, (6, 7)]
    assert b[:2] == [6.0, 7.0] and isinstance(b[2], RetrievalError) and c == []
    assert sorted(calculator.computed) == ["1+2*3", "2*3", "2*3"], "asked anew, computed anew"
    assert shelf.queries == ["lake", "broken"]


def test_equal_calls_that_wait_together_are_one() -> None:
    calculator = Calculator()
    agents = {id: asks(say(id), calculate("1+1")) for id in "abc"}
    assert run_agents(agents, policy=Echo(at_once=2), tools={"calculator": calculator}) == [[(1,), 2.0]] * 3
    assert calculator.computed == ["1+1"] * 2, "a and b wait together, c comes a round later"


def test_requests_follow_completions_and_then_results() -> None:
    agents = {
        "a": asks(say("a"), calculate("1+1"), say("a")),
        "b": asks(say("b"), say("b")),
        "c": asks(say("c")),
        "d": asks(say("d"), calculate("1+1"), say("d")),
    }
    policy = Echo(at_once=4)
    run_agents(agents, policy=policy, tools={"calculator": Calculator()})
    assert policy.of("submit") == [["a", "b", "c", "d"], ["b", "a", "d"]]
    assert policy.of("release") == [["c"], ["a", "b", "c", "d"]], "when it ends, and all at the end"


def broken() -> Agent[Any]:
    yield say("a")
    raise KeyError("a bug")


class Forgetful(Calculator):
    def poll(self) -> list[tuple[str, float]]:
        return []


class Mute(Echo):
    def poll(self) -> list[Completion]:
        return []


@pytest.mark.parametrize(
    ("agent", "policy", "error", "sentence"),
    [
        (broken, Echo(), KeyError, "a bug"),
        (
            lambda: asks(ToolCall("drill", 1)),
            Echo(),
            RolloutError,
            "agent a calls the tool 'drill', but `tools` has calculator",
        ),
        (lambda: asks(say("a")), Mute(), RolloutError, "the policy has nothing to do, but 1 requests are unanswered"),
        (lambda: asks(calculate("1")), Echo(), RolloutError, "the tools have nothing to do, but 1 requests"),
    ],
)
def test_all_ids_are_released_on_any_way_out(agent: Any, policy: Echo, error: type, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        run_agents({"a": agent()}, policy=policy, tools={"calculator": Forgetful()})
    assert policy.of("release") == [["a"]]


# ---- retries and de-duplication of searches


def hits_of(query: str) -> list[Hit]:
    return [Hit(Document(query, query), 1.0)]


def away(fails: dict[str, int], error: type[RetrievalError] = RetrievalError) -> Shelf:
    return Shelf(broken=fails, error=error, in_process=False)


def test_after_a_failure_queries_are_tried_one_by_one():
    pauses = []
    retriever = away({"bad": 99, "flaky": 1})
    results, stats = search_with_retries(retriever, ["good", "flaky", "bad"], 1, Retries(3, backoff=0.5), pauses.append)
    assert results[0] == hits_of("good") and results[1] == hits_of("flaky")
    assert isinstance(results[2], RetrievalError) and "no answer for bad" in str(results[2])
    assert retriever.calls == [["good", "flaky", "bad"], ["good"], ["flaky"], ["bad"], ["bad"], ["bad"]]
    assert len(pauses) == 3, "one pause a round whatever the number of queries"
    assert stats.calls == 6


def test_searches_wait_together_for_a_server_that_is_away(monkeypatch):
    pauses = []
    monkeypatch.setattr(searching.time, "sleep", pauses.append)
    monkeypatch.setattr(retries, "monotonic", lambda: sum(pauses))

    shelf = Shelf(broken={"a": 5, "b": 99, "c": 99}, error=RetrieverUnreachable)
    queue = SearchQueue(shelf, 1, retries=Retries(1, patience=60))
    queue.submit(["a"])
    assert queue.poll() == [("a", hits_of("a"))] and len(pauses) == 5
    pauses.clear()
    queue.submit(["b"])
    assert sum(pauses[1:]) == pytest.approx(60), "after the retry, and anew after an answer"
    before = len(pauses)
    queue.submit(["c"])
    assert len(pauses) == before, "given up at once"
    assert [type(result) for _, result in queue.poll()] == [RetrieverUnreachable] * 2


def test_a_query_under_way_is_not_sent_again():
    gate = threading.Event()

    class Gated(Shelf):
        def search(self, queries, k):
            assert gate.wait(5)
            return super().search(queries, k)

    retriever, stats = Gated(in_process=False), RolloutStats()
    queue = SearchQueue(retriever, 1, retries=Retries(0), stats=stats)
    queue.submit(["a", "b", "a"])
    queue.submit(["b", "c"])
    assert queue.pending and queue.poll() == []
    gate.set()
    found = []
    while queue.pending:
        wait(queue.pending, return_when=FIRST_COMPLETED)
        found += queue.poll()
    assert sorted(query for query, _ in found) == ["a", "b", "c"]
    assert sorted(retriever.calls) == [["a", "b"], ["c"]]
    queue.submit(["a"])
    wait(queue.pending)
    assert [query for query, _ in queue.poll()] == ["a"], "asked anew, searched anew"
    queue.close()


def test_where_nobody_answers_not_every_query_waits_for_its_own_timeout():
    queries = [f"q{i}" for i in range(100)]
    retriever = away(dict.fromkeys(queries, 999), RetrieverTimeout)
    results, _ = search_with_retries(retriever, queries, 1, Retries(2, backoff=0.0))
    assert len(results) == 100 and all(isinstance(result, RetrieverTimeout) for result in results)
    assert len(retriever.calls) == 1 + 2 * 8


def test_a_query_that_is_always_refused_does_not_end_the_patience_of_others():
    class Mixed(Shelf):
        def search(self, queries, k):
            self.calls.append(list(queries))
            raise RetrievalError("refused") if queries == ["bad"] else RetrieverUnreachable("away")

    retriever, pauses = Mixed(), []
    search_with_retries(
        retriever,
        ["bad", "good"],
        1,
        Retries(0, backoff=0.0, patience=60),
        lambda p: len(pauses) > 3 or pauses.append(p),
    )
    assert len(pauses) == 4


def test_closing_ends_the_pauses_of_a_search():
    retriever = away({"a": 999}, RetrieverUnreachable)
    queue = SearchQueue(retriever, 1, retries=Retries(3, backoff=60))
    queue.submit(["a"])
    (call,) = queue.pending
    wait_for(lambda: retriever.calls, minutes=1)
    queue.close()
    assert isinstance(call.result(timeout=30)[0][0], RetrieverUnreachable) and len(retriever.calls) == 1
