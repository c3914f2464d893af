"""TRL's own loop of tools (`environment_factory`, TRL 1.16): the agent's tools, and rewards for what they did.

    factory = search_environment(retriever, tokenizer)
    functions, weights = environment_rewards({"em": 1.0})
    dataset = tool_dataset(questions, tokenizer)
    trainer = GRPOTrainer(model, functions, environment_factory=factory, train_dataset=dataset, ...)

TRL encodes every message as one text, so that what spells a control token of the tokenizer becomes one. Questions and
passages get a blank inside such a spelling.

TRL renders, samples and parses here, for the templates that it knows. `SearchRollouts(retriever, NATIVE)` does the same
with the rollout loop of `holdfast train`: any template with calls in JSON, a note after a call that cannot be read,
limits by the turn, and exact spans of actions and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.adapters.trl_search import dataset_of, reward_functions
from holdfast.agent.env import format_hits
from holdfast.agent.protocol import SearchProtocol, prompt_text
from holdfast.agent.rewards import EM
from holdfast.agent.tools import NATIVE, TOOLS, ToolProtocol, final_answer
from holdfast.agent.trajectory import Action, Answer, Invalid, Status, Trajectory, Turn
from holdfast.base.errors import RetrievalError
from holdfast.data.questions import Example
from holdfast.model.tokens import spelled_apart
from holdfast.retrieval.types import Hit, Retriever

__all__ = ["environment_rewards", "search_environment", "tool_dataset"]


def search_environment(retriever: Retriever, tokenizer: Any, protocol: ToolProtocol = NATIVE) -> Callable[[], Any]:
    """The `environment_factory` for the tools of `protocol`. Passages are not shortened: TRL's `max_completion_length`
    bounds a rollout."""

    class Searching:
        """The tools of one rollout. TRL offers every public method but `reset` to the model."""

        def __init__(self) -> None:
            self.reset()

        def reset(self, **_: Any) -> None:
            """Forget the last rollout."""
            self._found: dict[str, Hit] = {}
            self._seen: list[tuple[str, ...]] = []
            self._failure: str | None = None

        def search(self, query: str) -> str:
            """Search for passages. Returns the best ones.

            Args:
                query: What to look for.
            """
            _check_text("query", query)
            try:
                (hits,) = retriever.search([query], protocol.topk)
            except RetrievalError as error:
                self._failure = str(error)
                raise RetrievalError(spelled_apart(tokenizer, str(error))) from error
            self._found |= {hit.document.id: hit for hit in hits}
            return self._shown(hits)

        def _shown(self, hits: Sequence[Hit]) -> str:
            self._seen.append(tuple(hit.document.id for hit in hits))
            text = "".join(format_hits(hits, with_ids="read" in protocol.tools)).strip()
            return spelled_apart(tokenizer, text) or protocol.nothing_found

    class Reading(Searching):
        """With `read` too."""

        def read(self, id: str) -> str:
            """Read one passage that a search has returned, whole.

            Args:
                id: The id of the passage: what stands between Doc and the title.
            """
            _check_text("id", id)
            hit = self._found.get(id)
            return self._shown([] if hit is None else [hit])

    return Reading if "read" in protocol.tools else Searching


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
            hits = next(seen, ()) if not isinstance(turn.action, Invalid) else ()
            turns[next_result] = replace(turn, observation_text=str(message["content"]), hits=hits)
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
    """What a call did. TRL answers one that `environment` does not take with an error, and nothing was searched."""
    function = call.get("function", {})
    tool = TOOLS.get(str(function.get("name")))
    if tool is None or not hasattr(environment, tool.name):
        return Invalid(f"there is no tool {function.get('name')!r}")
    arguments = function.get("arguments")
    argument = arguments.get(tool.parameter) if isinstance(arguments, Mapping) and len(arguments) == 1 else None
    return (
        tool.action(argument) if isinstance(argument, str) else Invalid(f"{tool.name} takes one text, {tool.parameter}")
    )


def _check_text(name: str, value: Any) -> None:
    """TRL hands a model's argument on as it is, and shows the model what a tool raises."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text, not {value!r}")
