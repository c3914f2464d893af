"""Single-turn tasks of a few symbols, and what their reward functions pay for."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Words = list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question of a few symbols with one right answer, and the model that learns it."""

    symbols: str
    question: Callable[[random.Random], Words]
    answer: Callable[[Words], Words]
    hidden: int = 32
    layers: int = 2


def _drawn(symbols: str, least: int, most: int) -> Callable[[random.Random], Words]:
    """A question of that many symbols, drawn with replacement."""
    return lambda rng: [rng.choice(symbols) for _ in range(rng.randint(least, most))]


def _number(words: Words) -> int:
    return int("".join(words))


def _sum(words: Words) -> Words:
    plus = words.index("+")
    return list(str(_number(words[:plus]) + _number(words[plus + 1 :])))


def _two_numbers(rng: random.Random) -> Words:
    return [*str(rng.randint(0, 49)), "+", *str(rng.randint(0, 49))]


def _halves(words: Words) -> Words:
    """The words of both halves in turn."""
    middle = len(words) // 2
    return [word for pair in zip(words[:middle], words[middle:], strict=True) for word in pair]


TASKS = {
    "counting": Task(
        symbols="abcd0123456789", question=_drawn("abcd", 5, 9), answer=lambda shown: list(str(shown.count("a")))
    ),
    "doubling": Task(
        symbols="0123456789",
        question=lambda rng: list(str(rng.randint(100, 999))),
        answer=lambda shown: list(str(2 * _number(shown))),
        hidden=40,
    ),
    "interleaving": Task(
        symbols="pqrstuvw",
        question=lambda rng: [rng.choice("pqrstuvw") for _ in range(2 * rng.randint(2, 3))],
        answer=_halves,
        hidden=40,
    ),
    "arithmetic": Task(symbols="0123456789+", question=_two_numbers, answer=_sum, hidden=48),
    "copying": Task(
        symbols="abcdefghijklmnopqrst", question=_drawn("abcdefghijklmnopqrst", 4, 8), answer=list, hidden=32
    ),
    "sorting": Task(symbols="ghjkmnpqr", question=_drawn("ghjkmnpqr", 4, 6), answer=sorted, hidden=40, layers=3),
}


# ---- rewards


def _exact(response: Words, answer: Words) -> float:
    return float(response == answer)


def _placed(response: Words, answer: Words) -> float:
    """The share of symbols that are where the answer has them."""
    return sum(a == b for a, b in zip(response, answer, strict=False)) / max(len(response), len(answer), 1)


def _sized(response: Words, answer: Words) -> float:
    return float(len(response) == len(answer))


def _long(response: Words, answer: Words) -> float:
    return len(response) / 8


def _opening(response: Words, answer: Words) -> float:
    """Whether the first two symbols are the same."""
    return float(len(response) > 1 and response[0] == response[1])


def _uniform(response: Words, answer: Words) -> float:
    """The largest share of one symbol."""
    return max((response.count(word) for word in response), default=0) / max(len(response), 1)


def _short(response: Words, answer: Words) -> float:
    return 1 / (1 + len(response))


Score = Callable[[Words, Words], float]
REWARDS: dict[str, Sequence[tuple[str, float, Score]]] = {
    # name of the reward: name of each reward function, its weight, what it says of a response and the answer
    "exact": [("correct", 1.0, _exact)],
    "placed": [("placed", 1.0, _placed)],
    "signed": [("correct", 1.0, lambda r, a: 2 * _exact(r, a) - 1)],
    "penalty": [("penalty", 1.0, lambda r, a: _placed(r, a) - 1)],
    "tenfold": [("points", 1.0, lambda r, a: 10 * _exact(r, a))],
    "several": [("correct", 1.0, _exact), ("placed", 0.5, _placed), ("sized", 0.2, _sized)],
    "two": [("correct", 1.0, _exact), ("sized", 0.5, _sized)],
    "zero": [("correct", 1.0, lambda r, a: 0.0)],
    "constant": [("quality", 1.0, lambda r, a: 0.5)],
    "long": [("correct", 0.3, _exact), ("thorough", 1.0, _long)],
    "longer": [("score", 1.0, lambda r, a: 0.3 * _placed(r, a) + _long(r, a))],
    "opening": [("correct", 0.3, _exact), ("style", 1.0, _opening)],
    "uniform": [("placed", 0.3, _placed), ("style", 1.0, _uniform)],
    "short": [("correct", 0.2, _exact), ("brevity", 1.0, _short)],
}
