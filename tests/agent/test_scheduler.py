"""The scheduler with agents that are written here: tools, order, and what is released on every way out."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.agent.scheduler import Agent, ModelCall, ModelUsage, ToolCall, run_agents
from holdfast.agent.searching import SEARCH, SearchQueue
from holdfast.base.errors import RetrievalError, RolloutError
from holdfast.model.policy import Completion, Request
from holdfast.retrieval.types import Document, Hit

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


class Threaded(Calculator):
    """The same, in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._threads, self._calls = ThreadPoolExecutor(1), dict[str, Future[float]]()

    @property
    def pending(self) -> list[Future[float]]:  # type: ignore[override]
        return list(self._calls.values())

    def submit(self, arguments: Iterable[str]) -> None:
        for expression in arguments:
            if expression not in self._calls:
                self.computed.append(expression)
                node = ast.parse(expression, mode="eval").body
                self._calls[expression] = self._threads.submit(self._value, node)

    def poll(self) -> list[tuple[str, float]]:
        done = [(expression, call.result()) for expression, call in self._calls.items() if call.done()]
        for expression, _ in done:
            del self._calls[expression]
        return done


class Shelf:
    in_process = True

    def __init__(self) -> None:
        self.queries: list[str] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.queries += queries
        if "broken" in queries:
            raise RetrievalError("the shelf is broken")
        return [[Hit(Document(query, query), 1.0)] * k for query in queries]


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


def say(*token_ids: int, seed: int = 0) -> ModelCall:
    return ModelCall(token_ids or (1,), 8, (), seed)


def asks(*calls: ModelCall | ToolCall) -> Agent[list[Any]]:
    """Makes these calls; its outcome is what they returned."""
    replies = []
    for call in calls:
        reply = yield call
        replies.append(reply.token_ids if isinstance(reply, Completion) else reply)
    return replies


def calculate(expression: str) -> ToolCall:
    return ToolCall("calculator", expression)


@pytest.mark.parametrize("make", [Calculator, Threaded])
def test_a_calculator_is_a_second_tool(make: Callable[[], Calculator]) -> None:
    calculator, shelf, usage = make(), Shelf(), ModelUsage()
    agents = {
        "a": asks(say(5), ToolCall(SEARCH, "lake"), calculate("2*3"), say(6, 7)),
        "b": asks(calculate("2*3"), calculate("1+2*3"), ToolCall(SEARCH, "broken")),
        "c": asks(),
    }
    tools = {SEARCH: SearchQueue(shelf, 1, retries=0), "calculator": calculator}
    a, b, c = run_agents(agents, policy=Echo(), tools=tools, usage=usage)
    assert a == [(5,), [Hit(Document("lake", "lake"), 1.0)], 6.0, (6, 7)]
    assert b[:2] == [6.0, 7.0] and isinstance(b[2], RetrievalError) and c == []
    assert sorted(calculator.computed) == ["1+2*3", "2*3", "2*3"], "asked anew, computed anew"
    assert shelf.queries == ["lake", "broken"]
    assert usage.tokens == 3 and usage.decode_seconds > 0


def test_equal_calls_that_wait_together_are_one() -> None:
    calculator = Calculator()
    agents = {id: asks(say(), calculate("1+1")) for id in "abc"}
    assert run_agents(agents, policy=Echo(at_once=2), tools={"calculator": calculator}) == [[(1,), 2.0]] * 3
    assert calculator.computed == ["1+1"] * 2, "a and b wait together, c comes a round later"


def test_requests_follow_completions_and_then_results() -> None:
    agents = {
        "a": asks(say(), calculate("1+1"), say()),
        "b": asks(say(), say()),
        "c": asks(say()),
        "d": asks(say(), calculate("1+1"), say()),
    }
    policy = Echo(at_once=4)
    run_agents(agents, policy=policy, tools={"calculator": Calculator()})
    assert policy.of("submit") == [["a", "b", "c", "d"], ["b", "a", "d"]]
    assert policy.of("release") == [["c"], ["a", "b", "c", "d"]], "when it ends, and all at the end"


def test_a_request_is_what_the_agent_asks_for() -> None:
    seen: list[Request] = []

    class Spy(Echo):
        def submit(self, requests: Sequence[Request]) -> None:
            seen.extend(requests)
            super().submit(requests)

    run_agents({"a": asks(ModelCall((3, 4), 9, ("</x>",), 7))}, policy=Spy(), tools={})
    assert seen == [Request(id="a", token_ids=(3, 4), max_new_tokens=9, stop=("</x>",), seed=7)]


def broken() -> Agent[Any]:
    yield say()
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
        (lambda: asks(say()), Mute(), RolloutError, "the policy has nothing to do, but 1 requests are unanswered"),
        (lambda: asks(calculate("1")), Echo(), RolloutError, "the tools have nothing to do, but 1 requests"),
    ],
)
def test_all_ids_are_released_on_any_way_out(agent: Any, policy: Echo, error: type, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        run_agents({"a": agent()}, policy=policy, tools={"calculator": Forgetful()})
    assert policy.of("release") == [["a"]]


def test_no_agents() -> None:
    assert run_agents({}, policy=Echo(), tools={}) == []
