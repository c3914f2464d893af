"""The interface between the rollout loop and a source of tokens.

`submit` queues, `poll` works until at least one request is finished. A blocking `generate(list) -> list` would make all
rollouts wait for the slowest turn; with this pair, a rollout whose turn has ended searches while the others decode.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

StopReason = Literal["stop", "eos", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for one turn.

    >>> request = Request(id="q7/0", token_ids=(5, 6, 7), max_new_tokens=16, stop=("</search>",), seed=3)
    >>> len(request.token_ids)
    3
    """

    id: str
    """Names the rollout. A later request with the same id continues it: only tokens not seen yet are computed."""
    token_ids: Sequence[int]
    """The whole context so far, at least one token: prompt, sampled tokens, observations."""
    max_new_tokens: int
    """At least 1."""
    stop: tuple[str, ...]
    """The turn ends with the token that completes one of these, none of them empty, in the *generated* text. That token
    is kept whole."""
    seed: int
    """The uniform behind a token depends on this and on the token's position in the context, and on nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What one request produced."""

    id: str
    token_ids: tuple[int, ...] | None
    """Sampled ids, the end-of-sequence or closing token included. None from a server that returns text only."""
    logprobs: tuple[float, ...] | None
    """log_softmax(logits / temperature) over the whole vocabulary at each sampled token, also under top-p / top-k."""
    stop_reason: StopReason
    text: str
    """Decoded ids, without the end-of-sequence token."""
    mask_mass: tuple[float, ...] | None = None
    """Probability mass of the sampling mask at each token; None when sampling was not truncated."""
    error: str | None = None
    """Why a server returned no turn; the rollout then ends as an error, not as a wrong answer."""


class Policy(Protocol):
    """A source of turns. What it caches per id changes the speed, never the result."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests. At most one per id may be pending."""
        ...

    def poll(self) -> list[Completion]:
        """Work until at least one request is finished; [] when nothing can be done until more is submitted or
        released."""
        ...

    def release(self, ids: Iterable[str]) -> None:
        """Drop the cache of these ids; unknown ones are ignored. Call it when a rollout ends or the weights change."""
        ...


def generate(policy: Policy, requests: Sequence[Request]) -> list[Completion]:
    """One turn each: submit, poll until all are finished, release; completions in request order."""
    policy.submit(requests)
    finished: dict[str, Completion] = {}
    while len(finished) < len(requests):
        finished.update((completion.id, completion) for completion in policy.poll())
    policy.release(finished)
    return [finished[request.id] for request in requests]


def rollout_seed(*parts: object) -> int:
    """A 63-bit seed that depends on its parts alone, in every process and version of Python."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
