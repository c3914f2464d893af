"""Frozen values for what an agent did: actions, turns, trajectories, groups. No torch.

A `Turn` stores only what that turn added. Everything flat (`token_ids`, `loss_mask`, …) is derived from the turns, so
"the concatenation is exactly what the model saw" holds by construction and is tested against the rollout loop. It is
computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Search:
    """The model searched."""

    query: str


@dataclass(frozen=True, slots=True)
class Read:
    """The model asked for a passage that a search had returned, whole."""

    passage: str
    """Its id."""


@dataclass(frozen=True, slots=True)
class Call:
    """The model called a tool of the user's own (`agent/calling.py`)."""

    tool: str
    """Its name."""
    arguments: str
    """A JSON object."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The model gave its final answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """The turn holds neither a call nor an answer."""

    reason: str


Action = Search | Read | Call | Answer | Invalid


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool of the user's own returned."""

    text: str
    """What the model reads, before it is cut to its budget."""
    failed: bool
    """True when the text says why there is no result."""
    seconds: float


class Status(StrEnum):
    """How a rollout ended. Only `OK` and `TRUNCATED` rollouts are trained on."""

    OK = "ok"
    TRUNCATED = "truncated"
    RETRIEVAL_FAILED = "retrieval_failed"
    ERROR = "error"

    @property
    def is_failure(self) -> bool:
        """True when the rollout says nothing about the policy: an outage must never look like a wrong answer."""
        return self in (Status.RETRIEVAL_FAILED, Status.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call and the observation that followed it."""

    tokens: tuple[int, ...] | None
    """Sampled token ids, the closing tag's overhang included. None when the server returned text only."""
    logprobs: tuple[float, ...] | None
    """log p(token) under logits / temperature over the whole vocabulary, one per sampled token."""
    action: Action
    observation: tuple[int, ...] = ()
    """Token ids of the observation; empty after the last turn."""
    text: str = ""
    """Decoded `tokens`."""
    observation_text: str = ""
    """Decoded `observation`; with tool calls, without what the chat template writes around it."""
    hits: tuple[str, ...] = ()
    """Document ids the search returned, best first, or the id that was read."""
    result: ToolResult | None = None
    """What a `Call` returned."""
    stop_reason: str = "stop"
    """`stop` (a closing tag), `eos` (a message's end), or `length`."""
    answer_span: tuple[int, int] | None = None
    """[start, end) into `tokens` of the answer, tags included; a token counts if any of its characters does."""
    query_span: tuple[int, int] | None = None
    """The same of the query of a search, or of another call."""
    mask_mass: tuple[float, ...] | None = None
    """Probability mass inside the sampling mask (the sampler's top-p / top-k set), per token. None when sampling was
    untruncated."""
    observation_truncated: bool = False
    """True when the observation was shortened to fit its budget."""

    def __len__(self) -> int:
        return len(self.tokens or ()) + len(self.observation)


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One rollout: a prompt, then turns. docs/reference/data-model.md follows one, from its question to a loss."""

    example_id: str
    """`source/split/index` of the question: unique over all data sets of a run."""
    prompt: tuple[int, ...]
    turns: tuple[Turn, ...]
    status: Status = Status.OK
    error: str | None = None
    """Why it failed, in words; None unless `status.is_failure`."""
    reward: float | None = None
    """None until scored; None and 0.0 are different events."""
    reward_parts: dict[str, float] = field(default_factory=dict)

    @property
    def answer(self) -> str | None:
        """Text of the final answer; None when the rollout gave none."""
        last = self.turns[-1].action if self.turns else None
        return last.text if isinstance(last, Answer) else None

    @property
    def searches(self) -> int:
        """Number of search actions, including those that failed."""
        return sum(isinstance(turn.action, Search) for turn in self.turns)

    @property
    def correct(self) -> bool:
        """Exact match 1 (not "advantage above 0")."""
        return self.reward_parts.get("em", 0.0) == 1.0

    @cached_property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt, then tokens and observation of each turn: what the model saw, token for token."""
        self._require_tokens()
        return self.prompt + tuple(i for turn in self.turns for i in (*(turn.tokens or ()), *turn.observation))

    @cached_property
    def loss_mask(self) -> tuple[bool, ...]:
        """True on tokens the model sampled. All False when the rollout failed for reasons other than the policy."""
        return tuple(a > 0 and not self.status.is_failure for a in self.action_ids)

    @cached_property
    def action_ids(self) -> tuple[int, ...]:
        """0 outside actions, k on the k-th action's tokens. Adjacent actions stay apart, which a mask cannot say."""
        self._require_tokens()
        ids = [0] * len(self.prompt)
        for k, turn in enumerate(self.turns, start=1):
            ids += [k] * len(turn.tokens or ()) + [0] * len(turn.observation)
        return tuple(ids)

    @cached_property
    def answer_mask(self) -> tuple[bool, ...]:
        """True on the tokens of the answer, tags included (`Turn.answer_span`)."""
        return self._mask_of([turn.answer_span for turn in self.turns])

    @cached_property
    def query_mask(self) -> tuple[bool, ...]:
        """True on the tokens of queries, tags included (`Turn.query_span`)."""
        return self._mask_of([turn.query_span for turn in self.turns])

    def _mask_of(self, spans: Sequence[tuple[int, int] | None]) -> tuple[bool, ...]:
        """True on the tokens of each turn's span."""
        self._require_tokens()
        mask = [False] * len(self.prompt)
        for turn, span in zip(self.turns, spans, strict=True):
            start, end = span or (0, 0)
            mask += [start <= i < end for i in range(len(turn.tokens or ()))] + [False] * len(turn.observation)
        return tuple(mask)

    @cached_property
    def rollout_logprobs(self) -> tuple[float, ...]:
        """The sampler's log-probs, 0.0 outside actions."""
        self._require_tokens()
        logprobs = [0.0] * len(self.prompt)
        for turn in self.turns:
            logprobs += [*(turn.logprobs or ()), *(0.0 for _ in turn.observation)]
        return tuple(logprobs)

    def _require_tokens(self) -> None:
        if any(turn.tokens is None or turn.logprobs is None for turn in self.turns):
            raise ValueError(
                f"trajectory of {self.example_id} has turns without token ids (a server that returns text only), so it "
                "cannot be trained on; use a policy that returns token ids and log-probs"
            )


@dataclass(frozen=True, slots=True)
class Group:
    """Trajectories of one question. `id` is unique per prompt, so questions of different data sets never merge."""

    id: str
    trajectories: tuple[Trajectory, ...]

    @property
    def mixed(self) -> bool:
        """True when rewards differ: the only groups from which a group-relative advantage learns."""
        return len({t.reward for t in self.trajectories if not t.status.is_failure}) > 1


def with_tokens(groups: Sequence[Group]) -> list[Trajectory]:
    """The trajectories that have sampled tokens to learn from, in order. Failed ones have none."""
    return [t for group in groups for t in group.trajectories if any(t.loss_mask)]
