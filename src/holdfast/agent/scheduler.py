"""Many agents at once: calls of the model and of tools interleaved, without a barrier between turns.

An agent is a generator. It yields a `Request` and is sent a `Completion`, yields a `ToolCall` and is sent what the
tool returned, and returns its outcome. It knows no batch, no server and no other agent; the scheduler knows no tool and
nothing about the purpose of a call.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Hashable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from holdfast.base.errors import RolloutError
from holdfast.model.sampler.policy import Policy, Request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool. The reply is whatever the tool's queue returns, failures included."""

    tool: str
    argument: Hashable


Agent: TypeAlias = Generator[Request | ToolCall, Any, T]


class ToolQueue(Protocol):
    """A queue of calls. Equal arguments that are pending together are one call."""

    @property
    def pending(self) -> Collection[Future[Any]]:
        """Calls still computed elsewhere; empty for a tool that answers during `submit`."""
        ...

    def submit(self, arguments: Iterable[Any]) -> None:
        """Start a call for each argument that has none. Called repeatedly with everything that agents wait for."""
        ...

    def poll(self) -> list[tuple[Any, Any]]:
        """(argument, result) of the calls that finished since the last poll. Does not wait."""
        ...


def run_agents(agents: Mapping[str, Agent[T]], *, policy: Policy, tools: Mapping[str, ToolQueue]) -> list[T]:
    """Run every agent to its end; outcomes in the order of `agents`, whose keys are the ids of their requests.

    In each round the policy is polled once, the tools are given all calls that agents wait for, and finished calls
    resume their agents. The order of requests is fixed by the order of completions, then of tool results. An agent's id
    is released when it ends, all ids on any way out.

    Raises `RolloutError` when agents wait for replies that neither the policy nor a tool is working on.
    """
    outcomes: dict[str, T] = {}
    ended: list[str] = []
    requests: list[Request] = []
    decoding: set[str] = set()
    waiting: dict[str, dict[Hashable, list[str]]] = {name: {} for name in tools}

    def resume(id: str, reply: Any) -> None:
        try:
            call = agents[id].send(reply)
        except StopIteration as end:
            outcomes[id] = end.value
            ended.append(id)
            return
        if isinstance(call, Request):
            requests.append(call)
        elif call.tool in waiting:
            waiting[call.tool].setdefault(call.argument, []).append(id)
        else:
            known = ", ".join(tools) or "no tools"
            raise RolloutError(f"agent {id} calls the tool {call.tool!r}, but `tools` has {known}; add it there")

    try:
        for id in agents:
            resume(id, None)
        while len(outcomes) < len(agents):
            policy.release(ended)
            policy.submit(requests)
            decoding.update(request.id for request in requests)
            ended, requests = [], []
            completions = policy.poll() if decoding else []
            for completion in completions:
                decoding.remove(completion.id)
                resume(completion.id, completion)
            for name, tool in tools.items():
                tool.submit(waiting[name])
            finished = [(waiting[name].pop(arg), result) for name, tool in tools.items() for arg, result in tool.poll()]
            for ids, result in finished:
                for id in ids:
                    resume(id, result)
            if finished or completions:
                continue
            pending = [future for tool in tools.values() for future in tool.pending]
            if not pending:
                count, who = (len(decoding), "policy has") if decoding else (len(agents) - len(outcomes), "tools have")
                raise RolloutError(
                    f"the {who} nothing to do, but {count} requests are unanswered; `poll` must return each of "
                    "them once"
                )
            wait(pending, return_when=FIRST_COMPLETED)
    finally:
        policy.release(agents)
    return [outcomes[id] for id in agents]
