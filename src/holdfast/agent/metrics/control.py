"""Control tokens, which are the tags of a protocol and the end of the sequence: where they belong, and where a policy
puts them.

Outside every pair of tags only an opening tag belongs, inside a pair only a closing one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from holdfast.agent.protocol import ControlTags
from holdfast.agent.trajectory import Trajectory, Turn
from holdfast.model.sampler.sampling import SamplingMask
from holdfast.model.text.tokens import Tokenizer, char_lengths, decode, encode


class ControlTokens:
    """Which control tokens would be out of place at each sampled token.

    A tag is known by its first token. Where that can also begin a tag that belongs there, it does not count: in a
    query, `</answer>` is not told from `</search>`.

    Args:
        ends: ids that end a sequence.
    """

    def __init__(self, tags: ControlTags, tokenizer: Tokenizer, ends: Collection[int]) -> None:
        self._tokenizer = tokenizer
        pairs = tags.pairs
        self._opens = {opened for opened, _ in pairs}
        self._first = int(tags.begins_thinking)
        longest_first = sorted((tag for pair in pairs for tag in pair), key=len, reverse=True)
        self._tags = re.compile("|".join(map(re.escape, longest_first)))
        opening, closing, foreign = (
            {first for tag in kind for first in _first_tokens(tag, tokenizer)}
            for kind in (self._opens, {closed for _, closed in pairs}, tags.foreign)
        )
        outside, inside = (closing | foreign) - opening, ((opening | foreign) - closing) | {*ends}
        if not tags.ends_outside:
            outside |= {*ends}
        width = max(len(outside), len(inside), 1)
        self._misplaced = torch.tensor(
            [[*sorted(ids), *[-1] * (width - len(ids))] for ids in (outside, inside)], dtype=torch.int32
        )

    def misplaced(self, trajectories: Sequence[Trajectory]) -> SamplingMask:
        """The ids that are out of place at each sampled token of each rollout, as a mask over the vocabulary."""
        return SamplingMask(
            tuple(self._misplaced[[inside for turn in t.turns for inside in self._inside(turn)]] for t in trajectories)
        )

    def _inside(self, turn: Turn) -> list[int]:
        """1 for each sampled token that begins inside a pair of tags, else 0."""
        tokens = turn.tokens or ()
        ends, inside = [0], [self._first]
        for tag in self._tags.finditer(turn.text):
            ends.append(tag.end())
            inside.append(int(tag.group() in self._opens))
        if len(ends) == 1:
            return [self._first] * len(tokens)
        begins = [0, *accumulate(char_lengths(tokens, turn.text, self._tokenizer))][: len(tokens)]
        return [inside[bisect_right(ends, begin) - 1] for begin in begins]


def control_metrics(misplaced: Tensor, loss_mask: Tensor) -> dict[str, float]:
    """Mean and 99th percentile over sampled tokens of the probability of control tokens that are out of place.

    Args:
        misplaced: log-probability of all of them together, in nats, [B, T].
        loss_mask: bool [B, T].
    """
    values = misplaced[loss_mask].exp()
    if not len(values):
        return {}
    rank = -(-99 * len(values) // 100)  # the smallest value that 99 % of the tokens do not exceed
    return {
        "control/misplaced_mean": float(values.mean()),
        "control/misplaced_p99": float(values.kthvalue(rank).values),
    }


def _first_tokens(tag: str, tokenizer: Tokenizer) -> set[int]:
    """The ids with which a tag can begin, at the start of a line or after a space. A token of the space alone, which
    some tokenizers have, begins anything."""
    ids = (encode(tokenizer, text) for text in (tag, f" {tag}"))
    return {next(i for i in of_text if decode(tokenizer, [i]).strip()) for of_text in ids}
