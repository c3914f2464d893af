"""verl 0.8 and 0.9: a search agent as an agent loop, with holdfast's protocol, against any `/retrieve` server.

verl reads a YAML file, the value of `actor_rollout_ref.rollout.agent.agent_loop_config_path`:

    - name: holdfast_search
      _target_: holdfast.adapters.verl_agent.SearchAgentLoop
      retriever: http://127.0.0.1:8000/retrieve

and `actor_rollout_ref.rollout.agent.default_agent_loop=holdfast_search` selects it. Every other key is an argument of
`SearchAgentLoop`. Rollouts go through `agent/state.py`, as in `holdfast train`: token in, token out;
`response_mask` is 1 on what the model sampled and 0 on what came back. With tags a rollout is one assistant message
with observations inside it; with `preset: tools` it has a message for each call and each result.

Where a row has `reward_model.ground_truth`, holdfast computes the reward (by default exact match), so verl needs no
reward function. A rollout whose search failed is not a wrong answer: verl's current trainer gets nothing for it, and
compares its group without it. The older trainer needs a row: it gets one whose mask is all 0, but whose reward of 0
still counts in its group's mean.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from holdfast.agent.calling import begin
from holdfast.agent.metrics.rollouts import tool_series
from holdfast.agent.protocol import SearchProtocol, render_prompt
from holdfast.agent.rewards import EM, check_weights, score_trajectory
from holdfast.agent.state import RolloutState
from holdfast.agent.tools import PRESETS, ToolProtocol
from holdfast.agent.trajectory import Search, Status, Trajectory
from holdfast.base.errors import ConfigError, RetrievalError, nearest_name
from holdfast.base.retries import PATIENCE
from holdfast.model.sampler.policy import Completion
from holdfast.model.text.chat_template import ChatTemplate, plain_prompt
from holdfast.model.text.tokens import decode, encode, foreign, token_span
from holdfast.retrieval.client import AsyncHTTPRetriever

logger = logging.getLogger(__name__)

_clients: weakref.WeakKeyDictionary[Any, dict[Any, AsyncHTTPRetriever]] = weakref.WeakKeyDictionary()
"""Event loop -> settings -> client: verl makes a new agent loop for every rollout, connections outlive them."""
_failures = 0


class SearchAgentLoop(AgentLoopBase):
    """One rollout of a search agent.

    It does not use verl's decorator: verl imports this module at the first rollout, after reading the YAML file, and
    the decorator would then replace the file's entry with the bare class.

    Args:
        retriever: address of a `/retrieve` server.
        preset: `clean`, `search-r1`, `sapo`, `r1` or `tools`.
        tool_names: with `tools`, the tools of the model: `search`, `read`, and import paths of functions; None is
            `search` alone.
        tool_timeout: seconds that a call of a function may take.
        prompt: `data` takes the messages of the data set's prompt column; `protocol` writes the preset's prompt around
            the row's `question` (or `extra_info.question`).
        chat_template: `auto`, `none`, or a Jinja file; see `ChatTemplate`. Its variables are verl's
            `data.apply_chat_template_kwargs`.
        max_turns, max_turn_tokens, max_observation_tokens, topk: as in a recipe's `[protocol]`; None is the preset's.
            The rollout as a whole ends with verl's `response_length`.
        reward: weights of reward parts (`em`, `f1`, `format`, `retrieval`); None leaves scoring to verl.
        timeout, retries, patience: of a search, in seconds, attempts and seconds; see `holdfast.retrieval.client`.
        others: the arguments that verl passes to every agent loop.

    Raises:
        ConfigError: an argument that does not exist or cannot work, or a rollout engine that cannot stop at text.
    """

    def __init__(
        self,
        *host: Any,
        retriever: str | None = None,
        preset: str = "clean",
        tool_names: Sequence[str] | None = None,
        tool_timeout: float = 30.0,
        prompt: str = "data",
        chat_template: str = "auto",
        max_turns: int | None = None,
        max_turn_tokens: int | None = None,
        max_observation_tokens: int | None = None,
        topk: int | None = None,
        reward: Mapping[str, float] | None = EM,
        timeout: float = 30.0,
        retries: int = 2,
        patience: float = PATIENCE,
        **others: Any,
    ) -> None:
        _refuse_unknown(others)
        super().__init__(*host, **others)
        if preset not in PRESETS or prompt not in ("data", "protocol"):
            raise ConfigError(
                f"holdfast_search with preset={preset!r}, prompt={prompt!r}: presets are {', '.join(PRESETS)}; the "
                "prompt is 'data' or 'protocol'"
            )
        protocol = PRESETS[preset]
        if tool_names is not None:
            if not isinstance(protocol, ToolProtocol):
                raise ConfigError(
                    f"holdfast_search with tool_names={list(tool_names)}, preset={preset!r}: a protocol of tags has no "
                    "tools; set `preset: tools`, or leave tool_names out"
                )
            protocol = replace(protocol, tools=tuple(tool_names))
        if retriever is None and protocol.searches:
            raise ConfigError(
                "the agent loop holdfast_search needs the address of a retriever; add `retriever: "
                "http://HOST:PORT/retrieve` to its entry in the YAML file that agent_loop_config_path names"
            )
        self._functions = protocol.by_name if isinstance(protocol, ToolProtocol) else {}
        self._tool_timeout = tool_timeout
        variables = dict(self.apply_chat_template_kwargs)
        protocol = replace(protocol, template=ChatTemplate(chat_template, variables))
        protocol.check_template(self.tokenizer)
        backend = self.rollout_config.get("name")
        if protocol.stop and backend != "vllm" and self.rollout_config.get("skip_tokenizer_init", False):
            raise ConfigError(
                f"rollout.name = {backend!r} with rollout.skip_tokenizer_init = True: without a tokenizer, the "
                "server cannot stop a turn at </search>. Set actor_rollout_ref.rollout.skip_tokenizer_init=False"
            )
        limits: dict[str, Any] = {
            "max_turns": max_turns,
            "max_turn_tokens": max_turn_tokens,
            "max_observation_tokens": max_observation_tokens,
            "topk": topk,
        }
        self._protocol = replace(protocol, **{key: value for key, value in limits.items() if value is not None})
        self._from_data = prompt == "data"
        self._weights = None if reward is None else dict(reward)
        if self._weights is not None:
            check_weights(self._weights)
        self._retriever = (str(retriever), timeout, retries, patience)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """One rollout of `row`, the columns of the data set. `[]` for one that failed, where verl can do without it."""
        ids = self._prompt(row)
        total = len(ids) + self.rollout_config.response_length
        protocol = replace(self._protocol, max_total_tokens=total)
        state = RolloutState(ids, protocol, self.tokenizer)
        if len(ids) > self.rollout_config.prompt_length:  # verl would cut it from the left, and lose the question
            state.fail(f"a prompt of {len(ids)} tokens is longer than rollout.prompt_length")
        server = _Server(self, sampling_params, protocol, f"det-{int(row.get('priority', 0))}")
        seconds = 0.0
        while remaining := state.remaining_tokens():
            completion = await server.turn(state.context, remaining)
            if completion is None:
                state.fail("verl's server aborted a turn")
            elif (action := state.take_turn(completion)) is not None:
                started = time.perf_counter()
                if isinstance(action, Search):
                    state.take_hits(await self._search(action.query))
                else:
                    call = begin(self._functions[action.tool], action.arguments, self._tool_timeout)
                    state.take_result(await asyncio.wrap_future(call))
                seconds += time.perf_counter() - started
        trajectory = state.trajectory(f"{row.get('data_source', 'verl')}/{row.get('index', 0)}")
        if trajectory.status.is_failure:
            _count_failure(trajectory)
            if "session_id" in row:  # the current trainer, which keeps rollouts one by one
                return []
        golds = golden_answers(row.get("reward_model"))
        if golds and self._weights is not None:
            trajectory = score_trajectory(trajectory, golds, self._weights)
        metrics = AgentLoopMetrics(
            generate_sequences=server.seconds, tool_calls=seconds, num_preempted=server.preempted
        )
        scored = bool(golds) and self._weights is not None
        return to_output(
            trajectory,
            metrics,
            server.fields,
            with_logprobs=server.has_logprobs,
            scored=scored,
            functions=[name for name, tool in self._functions.items() if tool.function is not None],
            routed_experts=server.routed_experts,
        )

    def _prompt(self, row: Mapping[str, Any]) -> list[int]:
        """The prompt's ids. In messages of the data, only the tags of the protocol can be control tokens."""
        messages, schemas = [dict(message) for message in row["raw_prompt"]], self._protocol.schemas
        if not self._from_data:
            extra = row.get("extra_info") or {}
            question = row.get("question") or extra.get("question") or messages[-1]["content"]
            return render_prompt(str(question), self._protocol, self.tokenizer)
        marked = [foreign(message["content"], self._protocol.tags) for message in messages]
        template = self._protocol.template
        if template.text(self.tokenizer, schemas) is None:  # verl would fail without one; a base model reads plain text
            return plain_prompt("\n".join(marked), self.tokenizer)
        messages = [message | {"content": text} for message, text in zip(messages, marked, strict=True)]
        return encode(self.tokenizer, template.render(self.tokenizer, messages, schemas))

    async def _search(self, query: str) -> Any:
        address, timeout, retries, patience = self._retriever
        clients = _clients.setdefault(asyncio.get_running_loop(), {})
        if self._retriever not in clients:
            clients[self._retriever] = AsyncHTTPRetriever(address, timeout=timeout, retries=retries, patience=patience)
        try:
            return (await clients[self._retriever].search([query], self._protocol.topk))[0]
        except RetrievalError as error:
            return error


class _Server:
    """verl's token server for one rollout, and the facts it returns besides tokens."""

    def __init__(self, loop: SearchAgentLoop, params: Mapping[str, Any], protocol: SearchProtocol, fixed: str) -> None:
        self._loop, self._stop = loop, protocol.stop
        self._params = {**params, "stop": list(protocol.stop)}
        # One id for all turns keeps the rollout on one server, whose prefix cache then holds it.
        self._id = fixed if loop.rollout_config.get("full_determinism", False) else uuid4().hex
        self.fields: dict[str, Any] = {}
        self.seconds = 0.0
        self.preempted = -1
        self.has_logprobs = True
        self.routed_experts: Any = None
        """[L, layers, k]: the experts of all tokens so far, where verl replays the routing of a MoE model."""

    async def turn(self, context: Sequence[int], room: int) -> Completion | None:
        """The next turn; None if the server aborted it."""
        started = time.perf_counter()
        params = {**self._params, "max_tokens": room}  # a copy each time: servers take out what they have read
        output = await self._loop.server_manager.generate(
            request_id=self._id, prompt_ids=list(context), sampling_params=params
        )
        self.seconds += time.perf_counter() - started
        if output.num_preempted is not None:
            self.preempted = max(self.preempted, 0) + output.num_preempted
        # The first turn knows with which weights the rollout began, the last with which it ended.
        latest = output.extra_fields.get("max_global_steps")
        self.fields = {**output.extra_fields, **self.fields}
        if latest is not None:
            self.fields["max_global_steps"] = latest
        self.has_logprobs = self.has_logprobs and bool(output.log_probs)  # the asynchronous trainers have [] for none
        if output.routed_experts is not None:
            self.routed_experts = output.routed_experts
        if output.stop_reason == "aborted" or not output.token_ids:
            return None
        ids, logprobs = output.token_ids[:room], output.log_probs or None
        return to_completion(self._id, ids, logprobs, self._stop, self._loop.tokenizer, room=room)


def to_completion(
    name: str, ids: Sequence[int], logprobs: Sequence[float] | None, stop: Sequence[str], tokenizer: Any, *, room: int
) -> Completion:
    """Sampled ids as a turn, which ends with the token that completes the first of `stop`.

    An engine that stops at text may have sampled on before it noticed; those tokens are dropped. If it stopped by
    itself before `room` tokens, the last one ends the message: a model's configuration can have more such tokens than
    its tokenizer, such as Llama 3.1's <|eom_id|>. Without `logprobs` the turn has zeros.
    """
    ended = ids[-1] in set(tokenizer.all_special_ids)
    body = ids[:-1] if ended else ids
    text, turn_ids = decode(tokenizer, body), tuple(ids)
    closings = [(at, at + len(tag)) for tag in stop if (at := text.find(tag)) >= 0]
    if not closings and not ended and len(ids) < room:
        ended, text = True, decode(tokenizer, ids[:-1])
    reason = "eos" if ended else "length"
    if closings:
        last = token_span(body, (0, min(closings)[1]), tokenizer)[1]
        turn_ids, reason = tuple(ids[:last]), "stop"
        text = decode(tokenizer, turn_ids)
    values = (0.0,) * len(turn_ids) if logprobs is None else tuple(float(x) for x in logprobs[: len(turn_ids)])
    return Completion(id=name, token_ids=turn_ids, logprobs=values, stop_reason=reason, text=text)  # type: ignore[arg-type]


def to_output(
    trajectory: Trajectory,
    metrics: AgentLoopMetrics,
    fields: Mapping[str, Any],
    *,
    with_logprobs: bool,
    scored: bool,
    functions: Iterable[str] = (),
    routed_experts: Any = None,
) -> AgentLoopOutput:
    """A trajectory as verl's output. `extra_fields` holds the server's `fields`, and `action_ids` (one per response
    token), `answer_span` ([start, end) in the response, or None), `answer`, `searches`, `status`. `functions` are the
    names of the user's own tools, whose calls are counted."""
    start = len(trajectory.prompt)
    answer = [i for i, inside in enumerate(trajectory.answer_mask[start:]) if inside]
    extra: dict[str, Any] = {
        **fields,
        "action_ids": list(trajectory.action_ids[start:]),
        "answer_span": [answer[0], answer[-1] + 1] if answer else None,
        "answer": trajectory.answer,
        "searches": trajectory.searches,
        "status": str(trajectory.status),
        "turn_scores": [],
        "tool_rewards": [],
    }
    used = {key: float(sum(x)) for name in functions for key, x in tool_series(name, [trajectory]).items()}
    if scored:  # verl wants the same keys from every row, a failed one included
        extra["reward_extra_info"] = {
            **{part: trajectory.reward_parts.get(part, 0.0) for part in ("em", "f1")},
            "searches": float(trajectory.searches),
            "truncated": float(trajectory.status is Status.TRUNCATED),
            "failed": float(trajectory.status.is_failure),
            **used,
        }
    return AgentLoopOutput(
        prompt_ids=list(trajectory.prompt),
        response_ids=list(trajectory.token_ids[start:]),
        response_mask=[int(inside) for inside in trajectory.loss_mask[start:]],
        response_logprobs=list(trajectory.rollout_logprobs[start:]) if with_logprobs else None,
        routed_experts=None if routed_experts is None else routed_experts[: len(trajectory.token_ids)],
        reward_score=(trajectory.reward or 0.0) if scored else None,
        num_turns=1 + sum(1 + bool(turn.observation) for turn in trajectory.turns),
        metrics=metrics,
        extra_fields=extra,
    )


def golden_answers(reward_model: Any) -> list[str]:
    """The golden answers of a row's `reward_model` column: a text or a list, bare or under `target`. [] if none.

    >>> golden_answers({"style": "rule", "ground_truth": {"target": ["Rome", "Roma"]}})
    ['Rome', 'Roma']
    """
    truth = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    if isinstance(truth, Mapping):
        truth = truth.get("target")
    if truth is None:
        return []
    return [truth] if isinstance(truth, str) else [str(answer) for answer in truth]


def _refuse_unknown(others: Mapping[str, Any]) -> None:
    """A misspelt key of the YAML file would otherwise vanish in verl's own `**kwargs`."""
    hosts = set(inspect.signature(AgentLoopBase.__init__).parameters) | {"name", "tools"}
    ours = [n for n, p in inspect.signature(SearchAgentLoop.__init__).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for key in others:
        if key not in hosts:
            raise ConfigError(f"holdfast_search has no argument {key!r}; {nearest_name(key, ours)}")


def _count_failure(trajectory: Trajectory) -> None:
    """Warn at the 1st, 10th, 100th … failure of a process: an outage fails thousands."""
    global _failures
    _failures += 1
    if str(_failures).strip("0") == "1":
        logger.warning(
            "rollout of %s failed (number %d in this process) and is not trained on: %s",
            trajectory.example_id,
            _failures,
            trajectory.error,
        )
