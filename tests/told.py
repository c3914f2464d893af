"""A policy that says what it is told: real forward passes and log-probs, and no draw.

What a test needs of its rollouts, a search or a wrong answer, must not hang on what a model happened to draw. A model
that was taught in a fixture draws something else on a CPU that rounds differently.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.model.sampler.cache import Row
from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.sampler.policy import Request
from holdfast.model.sampler.sampling import Sampled
from holdfast.model.text.tokens import encode

Script = Callable[[str, int], str | list[int]]
"""(id of the rollout, number of its turn from 0) -> what is said in it, as text or as token ids."""


def says(script: Script) -> type[HFPolicy]:
    """A class of policies for `script`, in place of `holdfast.model.sampler.hf.HFPolicy`.

    Behind what is said comes the end-of-sequence token, unless a stop string or a limit ended the turn before. The mass
    of the sampling mask is that of the real draw; a token that is told may lie outside.
    """

    class Told(HFPolicy):
        def submit(self, requests: Sequence[Request]) -> None:
            super().submit(requests)
            for request in requests:
                said = script(request.id, self._turns[request.id])
                ids = encode(self.tokenizer, said) if isinstance(said, str) else said
                self._said[request.id] = [*ids, self.tokenizer.eos_token_id]
                self._turns[request.id] += 1

        def _begin(self) -> None:
            super()._begin()
            self._turns: Counter[str] = Counter()
            self._said: dict[str, list[int]] = {}

        def _sample(self, logits: Tensor, keys: Tensor, positions: Tensor) -> Sampled:
            drawn = super()._sample(logits, keys, positions)
            rows = {row.key: row for row in self._rows.values() if row.request is not None}
            tokens = drawn.tokens.clone()
            for i, key in enumerate(keys.tolist()):
                if key in rows:
                    tokens[i] = self._next(rows[key])
            logprobs = (logits.float() / self.temperature).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
            return drawn._replace(tokens=tokens, logprobs=logprobs)

        def _next(self, row: Row) -> int:
            assert row.request is not None
            return self._said[row.id][len(row.context) - len(row.request.token_ids)]

    return Told


def by_number(said: Sequence[Sequence[str]]) -> Script:
    """A script for rollouts of which the ids end with the number of the question and their own, `world/train/7#2`:
    those of a question say different things, and every question begins with another."""

    def script(id: str, turn: int) -> str:
        return said[sum(map(int, re.findall(r"\d+", id))) % len(said)][turn]

    return script


def sharp(model: Any, by: float = 3.0) -> Any:
    """A copy of a model of random weights whose logits are `by` times as large: few tokens are likely, as in one that
    has learned something."""
    result = copy.deepcopy(model)
    with torch.no_grad():
        result.model.norm.weight *= by
    return result
