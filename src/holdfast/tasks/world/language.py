"""Filler for the think text: a Markov chain over invented words, for thoughts of high entropy.

The quickstart has no filler. The collapse recipe needs it: displacement shows in a policy that writes many uncertain
tokens before its action.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from holdfast.tasks.world.facts import ATTRIBUTES, INTERCHANGEABLE, RELATIONS

_SUCCESSORS = 10
"""Words that may follow a word of filler."""
_ONSETS = ("b", "c", "d", "f", "g", "h", "j", "l", "m", "n", "p", "r", "s", "t", "v", "w")
_RIMES = ("a", "ak", "al", "an", "e", "el", "en", "er", "i", "il", "in", "o", "ol", "on", "or", "u", "um", "un")


@dataclass(frozen=True, slots=True)
class Filler:
    """Words and their successors. Each word is followed by one of its successors with weight 1/rank."""

    words: tuple[str, ...]
    successors: tuple[tuple[int, ...], ...]
    thought_length: tuple[int, int]
    ramble_length: tuple[int, int]
    jump: float = 0.03
    """Probability of an arbitrary next word."""

    def text(self, rng: random.Random, length: int) -> str:
        """`length` words of the chain, separated by blanks."""
        weights = [1 / rank for rank in range(1, len(self.successors[0]) + 1)]
        word = rng.randrange(len(self.words))
        text = []
        for _ in range(length):
            text.append(self.words[word])
            jump = rng.random() < self.jump
            word = rng.randrange(len(self.words)) if jump else rng.choices(self.successors[word], weights)[0]
        return " ".join(text)

    def thought(self, rng: random.Random) -> str:
        """A text of `thought_length` words."""
        return self.text(rng, rng.randint(*self.thought_length))

    def ramble(self, rng: random.Random) -> str:
        """A text of `ramble_length` words."""
        return self.text(rng, rng.randint(*self.ramble_length))


def build_filler(
    seed: int,
    *,
    words: int = 500,
    thought_length: tuple[int, int] = (4, 10),
    ramble_length: tuple[int, int] = (18, 30),
) -> Filler:
    """A chain over `words` invented words, deterministic from `seed`. The facts of the world use none of them.

    The settings bound `words`: each needs others that may follow it, and at most half of what two syllables can make is
    drawn, so that drawing distinct ones ends.
    """
    rng = random.Random(f"holdfast-filler-{seed}")
    taken = {word for group in (*RELATIONS, *ATTRIBUTES, *INTERCHANGEABLE) for word in group}
    vocabulary: dict[str, None] = {}
    while len(vocabulary) < words:
        word = "".join(rng.choice(_ONSETS) + rng.choice(_RIMES) for _ in range(2))
        if word not in taken:
            vocabulary[word] = None
    following = tuple(tuple(rng.sample(range(words), _SUCCESSORS)) for _ in range(words))
    return Filler(tuple(vocabulary), following, thought_length, ramble_length)
