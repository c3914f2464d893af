"""TRL's own loop of tools (`environment_factory`, TRL 1.16): the agent's tools, and rewards for what they did.

    factory = search_environment(retriever, tokenizer)
    functions, weights = environment_rewards({"em": 1.0})
    dataset = tool_dataset(questions, tokenizer)
    trainer = GRPOTrainer(model, functions, environment_factory=factory, train_dataset=dataset, ...)

TRL encodes every message as one text, so that what spells a control token of the tokenizer becomes one. Questions and
passages get a blank inside such a spelling.

TRL renders, samples and parses here, for the templates that it knows. `SearchRollouts(retriever, NATIVE)` does the same
with the rollout loop of `holdfast train`: any template with tools, a note after a call that cannot be read, limits by
the turn, and exact spans of actions and answers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_type_hints

from holdfast.adapters.trl_search import dataset_of, reward_functions
from holdfast.agent import mcp
from holdfast.agent.calling import begin
from holdfast.agent.observations import format_hits
from holdfast.agent.protocol import SearchProtocol, prompt_text
from holdfast.agent.rewards import EM
from holdfast.agent.tools import NATIVE, ToolProtocol, final_answer
from holdfast.agent.trajectory import Action, Answer, Call, Invalid, Read, Search, Status, ToolResult, Trajectory, Turn
from holdfast.base.errors import ConfigError, RetrievalError
from holdfast.model.tokens import spelled_apart
from holdfast.retrieval.types import Hit, Retriever
from holdfast.tasks.questions import Example

__all__ = ["environment_rewards", "search_environment", "tool_dataset"]


def search_environment(
    retriever: Retriever | None, tokenizer: Any, protocol: ToolProtocol = NATIVE
) -> Callable[[], Any]:
    """The `environment_factory` for the tools of `protocol`; without `search` it needs no retriever. Passages are not
    shortened: TRL's `max_completion_length` bounds a rollout.

    Raises `ConfigError` for functions that a model cannot be told of, or whose names TRL keeps for itself.
    """
    tools = protocol.by_name
    if hidden := [name for name in tools if name.startswith("_") or name in ("reset", "get_reward")]:
        raise ConfigError(f"TRL does not offer a tool of the name {hidden[0]!r} to the model; rename the function")

    if served := [name for name in protocol.tools if name.startswith(mcp.PREFIX)]:
        raise ConfigError(
            f"TRL's own loop describes Python functions to the model, not the tools of {served[0]!r}. Train with "
            "SearchRollouts(retriever, protocol), or name functions that ask the server"
        )

    class Environment:
        """The tools of one rollout. TRL offers every public method to the model but `reset` and `get_reward`, which it
        calls itself."""

        _tools = tools

        def __init__(self) -> None:
            self.reset()

        def reset(self, **_: Any) -> None:
            """Forget the last rollout."""
            self._found: dict[str, Hit] = {}
            self._seen: list[tuple[str, ...] | ToolResult] = []
            self._failure: str | None = None

        def _called(self, name: str, arguments: Mapping[str, Any]) -> str:
            action = tools[name].called(arguments)
            match action:
                case Search(query):
                    text = self._shown(self._searched(query))
                case Read(passage):
                    hit = self._found.get(passage)
                    text = self._shown([] if hit is None else [hit])
                case Call(_, written):
                    result = begin(tools[name], written, protocol.tool_timeout).result()
                    self._seen.append(result)
                    text = result.text
                case _:
                    raise TypeError(action.reason if isinstance(action, Invalid) else name)
            return spelled_apart(tokenizer, text)

        def _searched(self, query: str) -> Sequence[Hit]:
            assert retriever is not None, "search_environment needs a retriever for `search`"
            try:
                (hits,) = retriever.search([query], protocol.topk)
            except RetrievalError as error:
                self._failure = str(error)
                raise RetrievalError(spelled_apart(tokenizer, str(error))) from error
            self._found |= {hit.document.id: hit for hit in hits}
            return hits

        def _shown(self, hits: Sequence[Hit]) -> str:
            self._seen.append(tuple(hit.document.id for hit in hits))
            return "".join(format_hits(hits, with_ids="read" in tools)).strip() or protocol.nothing_found

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
        text: str = self._called(name, signature.bind(*given, **named).arguments)
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
            rollouts = [rollout_of(*row) for row in zip(completions, environments, strict=True)]
            return function(trajectory=rollouts, **more)

        reward.__name__ = function.__name__
        return reward

    functions, values = reward_functions(weights)
    return [of(function) for function in functions], values


def tool_dataset(examples: Sequence[Example], tokenizer: Any, protocol: SearchProtocol = NATIVE) -> Any:
    """A `datasets.Dataset` with `prompt` (a conversation), `golden_answers` and `example_id`."""

    def prompt(question: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": prompt_text(spelled_apart(tokenizer, question), protocol)}]

    return dataset_of(examples, prompt)


def rollout_of(messages: Sequence[Mapping[str, Any]], environment: Any) -> Trajectory:
    """The messages of a completion as a rollout without tokens, which is enough to score it. A message with several
    calls is a turn for each of them."""
    turns: list[Turn] = []
    seen = iter(environment._seen)
    next_result = 0  # the turn whose result comes next
    for message in messages:
        if message["role"] == "assistant":
            next_result = len(turns)
            text = str(message.get("content") or "")
            for i, action in enumerate(_actions(message, environment)):
                turns.append(Turn(tokens=None, logprobs=None, action=action, text="" if i else text))
        elif next_result < len(turns):
            turn = turns[next_result]
            came = next(seen, ()) if not isinstance(turn.action, Invalid) else ()
            of_kind = {"result": came} if isinstance(came, ToolResult) else {"hits": came}
            turns[next_result] = replace(turn, observation_text=str(message["content"]), **of_kind)
            next_result += 1
    answered = bool(turns) and isinstance(turns[-1].action, Answer)
    failure = environment._failure
    status = Status.RETRIEVAL_FAILED if failure else Status.OK if answered else Status.TRUNCATED
    return Trajectory(example_id="", prompt=(), turns=tuple(turns), status=status, error=failure)


def _actions(message: Mapping[str, Any], environment: Any) -> list[Action]:
    """An action for each call of a message; without calls, its answer."""
    calls = message.get("tool_calls")
    if calls:
        return [_called(call, environment) for call in calls]
    return [final_answer(str(message.get("content") or ""))[0]]


def _called(call: Mapping[str, Any], environment: Any) -> Action:
    """What a call did. TRL answers one that `environment` does not take with an error, and nothing was called."""
    function = call.get("function", {})
    tool = environment._tools.get(function.get("name"))
    if tool is None:
        return Invalid(f"there is no tool {function.get('name')!r}")
    action: Action = tool.called(function.get("arguments"))
    return action
