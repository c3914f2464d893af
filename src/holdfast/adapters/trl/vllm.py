"""TRL's own vLLM as a policy of the rollout loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from holdfast.base.errors import ConfigError
from holdfast.model.sampler.policy import Completion, Request, StopReason
from holdfast.model.text.tokens import decode


class VLLMPolicy:
    """A `Policy` on TRL's own vLLM, colocated or as a server, through the calls that TRL makes.

    A call answers all pending requests at once, so rollouts advance turn by turn: vLLM's offline interface is the
    barrier, not the rollout loop. With several processes and a server, every call is a collective of all of them, and
    one that has no requests takes part until all others have finished. The same holds for a colocated vLLM that sleeps:
    each call wakes it, and TRL then gathers the weights for it.

    Args:
        generation: the trainer's `vllm_generation`. Its sampling settings apply; length and stop texts are set here.
        accelerator: the trainer's.
        tokenizer: decodes sampled ids.
        end_ids: tokens that end a text.

    Raises:
        ConfigError: colocated over several processes, whose calls would have to be equal in number and size.
    """

    def __init__(self, generation: Any, accelerator: Any, tokenizer: Any, end_ids: Sequence[int]) -> None:
        if generation.mode == "colocate" and generation.tensor_parallel_size > 1:
            raise ConfigError(
                f"vllm_tensor_parallel_size={generation.tensor_parallel_size} with vllm_mode='colocate': rollouts of "
                "different processes end after different numbers of turns. Set it to 1, or use vllm_mode='server'"
            )
        self.generation, self.accelerator = generation, accelerator
        self.tokenizer, self.end_ids = tokenizer, frozenset(end_ids)
        collective = generation.mode == "server" or generation.enable_sleep_mode
        self.together = bool(collective) and accelerator.num_processes > 1
        self._waiting: list[Request] = []

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests for the next call."""
        self._waiting += requests

    def poll(self) -> list[Completion]:
        """One call for all that waits; [] when nothing does."""
        requests, self._waiting = self._waiting, []
        if not requests and not self.together:
            return []
        return self._call(requests, rows=self._most(len(requests)))

    def release(self, ids: Iterable[str]) -> None:
        """Nothing to do: vLLM manages its prefix cache."""

    def join(self) -> None:
        """Take part in the calls of the other processes until all have finished."""
        while self.together and (rows := self._most(0)):
            self._call([], rows=rows)

    def _most(self, rows: int) -> int:
        """The largest number of requests of any process: all make as many calls, to a server equally large ones."""
        if not self.together:
            return rows
        counts = self.accelerator.gather(torch.tensor([rows], device=self.accelerator.device))
        return int(counts.max())

    def _call(self, requests: list[Request], *, rows: int) -> list[Completion]:
        if not rows:
            return []
        filler = list(requests[0].token_ids) if requests else sorted(self.end_ids)[:1] or [0]
        generation = self.generation
        lacking = rows - len(requests) if generation.mode == "server" else int(not requests)
        prompts = [list(r.token_ids) for r in requests] + [filler] * lacking
        before = generation.max_completion_length, generation.generation_kwargs
        generation.max_completion_length = max((r.max_new_tokens for r in requests), default=1)
        stop = sorted({text for r in requests for text in r.stop})
        generation.generation_kwargs = before[1] | {"stop": stop, "include_stop_str_in_output": True}
        try:
            _, ids, logprobs, *_ = generation.generate(prompts=prompts, images=None, num_generations=1)
        finally:
            generation.max_completion_length, generation.generation_kwargs = before
        return [self._completion(r, *row) for r, *row in zip(requests, ids, logprobs, strict=False)]

    def _completion(self, request: Request, ids: list[int], logprobs: list[list[float | None]]) -> Completion:
        """A turn, cut to the tokens it asked for: all requests of a call share vLLM's limit."""
        ids, logprobs = ids[: request.max_new_tokens], logprobs[: request.max_new_tokens]
        ended = bool(ids) and ids[-1] in self.end_ids
        text = decode(self.tokenizer, ids[:-1] if ended else ids)
        reason: StopReason = "eos" if ended else "stop" if any(stop in text for stop in request.stop) else "length"
        return Completion(
            id=request.id,
            token_ids=tuple(ids),
            logprobs=tuple(float("nan") if top[0] is None else top[0] for top in logprobs),
            stop_reason=reason,
            text=text,
        )
