"""Which metrics of a step a person sees, and how: one list for the table and for the plain lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.cli.terminal import ABSENT


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    metric: str
    format: str
    min_width: int = 0
    """Narrowest terminal that shows it."""

    def text(self, metrics: Mapping[str, float]) -> str:
        """The formatted value; a dash when the step has none.

        >>> Column("EM", "reward/em", ".2f").text({"reward/em": 0.5}), Column("EM", "reward/em", ".2f").text({})
        ('0.50', '–')
        """
        value = metrics.get(self.metric)
        return ABSENT if value is None else format(value, self.format)


COLUMNS = (
    Column("reward", "reward/mean", ".3f"),
    Column("EM", "reward/em", ".3f"),
    Column("right", "likelihood/correct", ".3f"),
    Column("wrong", "likelihood/incorrect", ".3f"),
    Column("displ.", "displacement/correct", "+.4f"),
    Column("entropy", "entropy/mean", ".3f"),
    Column("search", "rollout/searches", ".2f"),
    Column("penalty", "penalty/active_fraction", ".1%"),
    Column("dev EM", "eval/em", ".3f"),
    Column("greedy", "eval/em_greedy", ".3f", min_width=100),
    Column("length", "rollout/length", ".1f", min_width=100),
    Column("grad", "grad/norm", ".2f", min_width=100),
    Column("step", "time/step_s", ".1f", min_width=110),
)

LEGEND = (
    "right, wrong: log-likelihood per token of correct and incorrect episodes · displ.: its change by the step's own "
    "update, correct episodes; below 0 is displacement · penalty: tokens it acts on"
)
