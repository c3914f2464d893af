"""Which metrics of a step a person sees, and how: one list for the table and for the plain lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.cli.terminal import ABSENT


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    metric: str
    format: str
    width: int = 6
    """Characters; a value too long for them is shown with fewer decimals."""
    meaning: str = ""
    """For the legend, where the title does not say it."""

    def text(self, metrics: Mapping[str, float]) -> str:
        """The formatted value; a dash when the step has none.

        >>> [Column("right", "x", ".3f").text(m) for m in ({"x": -0.5}, {"x": -10.126}, {"x": -1e9}, {})]
        ['-0.500', '-10.13', '-1e+09', '–']
        """
        value = metrics.get(self.metric)
        if value is None:
            return ABSENT
        sign, _, rest = self.format.rpartition(".")
        texts = [format(value, f"{sign}.{decimals}{rest[1:]}") for decimals in range(int(rest[0]), -1, -1)]
        return next((text for text in texts if len(text) <= self.width), format(value, ".0e"))


STEP_WIDTH = 5
GAP = 2

_MAIN = (
    Column("reward", "reward/mean", ".3f"),
    Column("EM", "reward/em", ".3f"),
    Column("right", "likelihood/correct", ".3f", meaning="log-likelihood per token of correct episodes"),
    Column("wrong", "likelihood/incorrect", ".3f", meaning="of incorrect ones"),
    Column(
        "displ.", "displacement/correct", "+.4f", 7, "what the step's own update did to right; below 0 is displacement"
    ),
    Column("entropy", "entropy/mean", ".3f", 7),
    Column("search", "rollout/searches", ".2f"),
    Column("penalty", "penalty/active_fraction", ".1%", 7, "tokens it acts on"),
    Column("dev EM", "eval/em", ".3f"),
)
_MORE = (
    Column("greedy", "eval/em_greedy", ".3f", meaning="dev EM, greedy"),
    Column("length", "rollout/length", ".1f", meaning="tokens an episode"),
    Column("grad", "grad/norm", ".2f", meaning="norm of the gradient"),
    Column("clip", "clip/fraction", ".1%", meaning="tokens clipped"),
    Column("seconds", "time/step_s", ".1f", 7),
)
COLUMNS = _MAIN

# What a narrow terminal does without, the least important first.
_SPARED = ("search", "wrong", "EM", "penalty", "entropy", "right", "displ.")


def columns_for(width: int) -> tuple[Column, ...]:
    """The columns a table of `width` characters has room for: all the main ones at 80, more on wider terminals.

    >>> [column.title for column in columns_for(50)]
    ['reward', 'right', 'displ.', 'entropy', 'dev EM']
    """
    chosen: tuple[Column, ...] = _MAIN
    for title in _SPARED:
        if _width(chosen) > width:
            chosen = tuple(column for column in chosen if column.title != title)
    for column in _MORE if chosen == _MAIN else ():
        if _width((*chosen, column)) <= width:
            chosen = (*chosen, column)
    return chosen


def _width(columns: Sequence[Column]) -> int:
    return STEP_WIDTH + sum(GAP + column.width for column in columns)


def legend(columns: Sequence[Column]) -> str:
    """What the titles of some columns mean, in one line."""
    return " · ".join(f"{column.title}: {column.meaning}" for column in columns if column.meaning)
