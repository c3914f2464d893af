"""The metrics of a step that the console shows: one list for the table and for the plain lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.cli.terminal import ABSENT


@dataclass(frozen=True, slots=True)
class Column:
    """A metric as a column of the table, or as `title value` in a plain line."""

    title: str
    metric: str
    format: str
    width: int = 6
    """Characters of a value; a longer one is shown with fewer decimals."""
    meaning: str = ""
    """For the legend; empty where the title says it."""

    def text(self, metrics: Mapping[str, float]) -> str:
        """The formatted value; a dash when the step has none.

        >>> [Column("lp", "x", ".3f").text(m) for m in ({"x": -0.5}, {"x": -10.126}, {"x": -1e9}, {})]
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
    Column("lp(correct)", "likelihood/correct", ".3f", meaning="log-prob per token of correct rollouts"),
    Column("lp(incorrect)", "likelihood/incorrect", ".3f", meaning="of incorrect ones"),
    Column("Δlp", "displacement/correct", "+.4f", 7, "change of lp(correct) by the step's update"),
    Column("entropy", "entropy/mean", ".3f", 7),
    Column("search", "rollout/searches", ".2f"),
    Column("penalty", "penalty/active_fraction", ".1%", 7, "tokens on which it acts"),
    Column("dev EM", "eval/em", ".3f"),
)
_MORE = (
    Column("greedy", "eval/em_greedy", ".3f", meaning="dev EM, greedy"),
    Column("length", "rollout/length", ".1f", meaning="tokens per rollout"),
    Column("grad", "grad/norm", ".2f", meaning="gradient norm"),
    Column("clip", "clip/fraction", ".1%", meaning="tokens clipped"),
    Column("seconds", "time/step_s", ".1f", 7),
)
COLUMNS = _MAIN

# The columns that a narrow terminal leaves out, the least important first.
_SPARED = ("lp(incorrect)", "search", "EM", "penalty", "entropy", "lp(correct)", "Δlp")


def columns_for(width: int) -> tuple[Column, ...]:
    """The columns that fit into a table of `width` characters: at 80 the main ones without lp(incorrect).

    >>> [column.title for column in columns_for(50)]
    ['reward', 'lp(correct)', 'Δlp', 'dev EM']
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
    return STEP_WIDTH + sum(GAP + max(column.width, len(column.title)) for column in columns)


def legend(columns: Sequence[Column]) -> str:
    """The meanings of the columns, in one line."""
    return " · ".join(f"{column.title}: {column.meaning}" for column in columns if column.meaning)
