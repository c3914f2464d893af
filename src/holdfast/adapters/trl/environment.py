"""TRL's own loop of tools (`environment_factory`, TRL 1.16): the agent's tools, and rewards for what they did.

    factory = search_environment(retriever, tokenizer)
    functions, weights = environment_rewards({"em": 1.0})
    dataset = tool_dataset(questions, tokenizer)
    trainer = GRPOTrainer(model, functions, environment_factory=factory, train_dataset=dataset, ...)

TRL renders, samples and parses here, for the templates that it knows. `SearchRollouts(retriever, NATIVE)` does the same
with the rollout loop of `holdfast train`: any template with tools, a note after a call that cannot be read, limits by
the turn, and exact spans of actions and answers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

from holdfast.adapters.tool_session import ToolSession, first_message, rollout_of
from holdfast.adapters.trl.search import check_agent, dataset_of, reward_functions
from holdfast.agent import mcp
from holdfast.agent.protocol import SearchProtocol
from holdfast.agent.rewards import EM
from holdfast.agent.tools import NATIVE, ToolProtocol
from holdfast.base.errors import ConfigError
from holdfast.retrieval.types import Hit, Retriever
from holdfast.tasks.questions import Example

__all__ = ["environment_rewards", "search_environment", "tool_dataset"]


def search_environment(
    retriever: Retriever | None, tokenizer: Any, protocol: ToolProtocol = NATIVE
) -> Callable[[], Any]:
    """The `environment_factory` for the tools of `protocol`; without `search` it needs no retriever. A result has at
    most `max_observation_tokens` of the protocol, a rollout TRL's `max_completion_length`.

    Raises `ConfigError` for `search` without a retriever, and for functions that a model cannot be told of, or whose
    names TRL keeps for itself.
    """
    check_agent(retriever, protocol, ToolProtocol, needs=("search",))
    if served := [name for name in protocol.tools if name.startswith(mcp.PREFIX)]:
        raise ConfigError(
            f"TRL's own loop describes Python functions to the model, not the tools of {served[0]!r}. Train with "
            "SearchRollouts(retriever, protocol), or name functions that ask the server"
        )
    tools = protocol.by_name
    if hidden := [name for name in tools if name.startswith("_") or name in ("reset", "get_reward")]:
        raise ConfigError(f"TRL does not offer a tool with the name {hidden[0]!r} to the model; rename the function")

    def search(query: str) -> Sequence[Hit]:
        assert retriever is not None  # `search` is offered
        (hits,) = retriever.search([query], protocol.topk)
        return hits

    class Environment:
        """The tools of one rollout. TRL offers every public method to the model but `reset` and `get_reward`, which it
        calls itself."""

        def __init__(self) -> None:
            self.reset()

        def reset(self, **_: Any) -> None:
            """Forget the last rollout."""
            self._session = ToolSession(protocol, search, tokenizer)

    for name, tool in tools.items():
        setattr(Environment, name, _method(name, tool.function or _DESCRIBED[name]))
    return Environment


def _search(query: str) -> str:
    """Search for passages. Returns the best ones.

    Args:
        query: What to look for.
    """
    return ""  # TRL calls the method that has this description


def _read(id: str) -> str:
    """Read one passage that a search has returned, whole.

    Args:
        id: The id of the passage: what stands between Doc and the title.
    """
    return ""  # TRL calls the method that has this description


_DESCRIBED: dict[str, Callable[..., Any]] = {"search": _search, "read": _read}
"""Functions whose signatures and docstrings TRL reads."""


def _method(name: str, function: Callable[..., Any]) -> Callable[..., str]:
    """A method that TRL describes to the model as it would the function."""

    signature = inspect.signature(function)

    def method(self: Any, *given: Any, **named: Any) -> str:
        text: str = self._session.call(name, signature.bind(*given, **named).arguments)
        return text

    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = signature.replace(parameters=[receiver, *signature.parameters.values()])  # type: ignore[attr-defined]
    method.__annotations__ = get_type_hints(function)
    method.__name__, method.__doc__ = name, function.__doc__
    return method


def environment_rewards(
    weights: Mapping[str, float] = EM,
) -> tuple[list[Callable[..., list[float | None]]], list[float]]:
    """`reward_functions` for rollouts of `search_environment`. A rollout whose search failed gets None."""

    def of(function: Callable[..., list[float | None]]) -> Callable[..., list[float | None]]:
        def reward(completions: Sequence[Any], environments: Sequence[Any], **more: Any) -> list[float | None]:
            rollouts = [rollout_of(row, e._session) for row, e in zip(completions, environments, strict=True)]
            return function(trajectory=rollouts, **more)

        reward.__name__ = function.__name__
        return reward

    functions, values = reward_functions(weights)
    return [of(function) for function in functions], values


def tool_dataset(examples: Sequence[Example], tokenizer: Any, protocol: SearchProtocol = NATIVE) -> Any:
    """A `datasets.Dataset` with `prompt` (a conversation), `golden_answers` and `example_id`."""
    return dataset_of(examples, lambda question: [first_message(question, protocol, tokenizer)])
