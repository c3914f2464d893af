"""What the results of all probes share: JSON with all that repeats the probe, columns of text, and the figure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast.base.environment import versions
from holdfast.base.errors import MissingExtra
from holdfast.recipe import dump
from holdfast_research.probes.subject import Subject

# Colours of Okabe and Ito: colour-blind readers can distinguish them, on dark and light ground.
CORRECT, INCORRECT, ALL = "#0072B2", "#D55E00", "#555555"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "holdfast",  # equal numbers, equal bytes
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "legend.frameon": False,
}


class Result(Protocol):
    """What a probe measured."""

    def to_json(self) -> dict[str, object]:
        """As values that `json.dumps` takes."""

    def lines(self) -> list[str]:
        """A short table under a sentence."""

    def draw(self, figure: Any) -> None:
        """Plots in a figure of matplotlib, with axes of `panels`."""


def document(
    result: Result, subject: Subject, *, what: str, questions: int, seed: int, command: str
) -> dict[str, object]:
    """The result with everything that is needed to repeat the probe, for `json.dumps`."""
    return {
        "probe": what,
        "of": subject.name,
        "command": command,
        "questions": questions,
        "seed": seed,
        "optimizer_state": str(subject.optimizer_state) if subject.optimizer_state is not None else None,
        "versions": versions(),
        "device": subject.language_model.device.type,
        "config_hash": hashlib.sha256(dump(subject.config).encode()).hexdigest()[:16],
        "result": result.to_json(),
        "recipe": subject.config.model_dump(),
    }


def draw(result: Result, title: str, path: Path) -> None:
    """Write the figure of a result as SVG. Raises `MissingExtra` without matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "figures") from None
    with matplotlib.rc_context(_STYLE):
        figure = Figure(layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize="medium", fontweight="bold", wrap=True)
        result.draw(figure)
        figure.savefig(path, format="svg", metadata={"Date": None})


def panels(figure: Any, count: int = 1) -> list[Any]:
    """Axes for `count` plots below each other, on the same scales."""
    figure.set_size_inches(6.4, 0.6 + 3.2 * count)
    return list(figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)[:, 0])


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Text in columns: the first aligned left, the others right.

    >>> columns([["searches", "all"], ["1", "-0.25 (3)"]])
    ['searches        all', '1         -0.25 (3)']
    """
    count = max(map(len, rows))
    widths = [max(len(row[k]) for row in rows if len(row) > k) for k in range(count)]
    padded = (
        [
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        for row in rows
    )
    return ["  ".join(cells).rstrip() for cells in padded]


def percent(share: float) -> str:
    """In whole percent; a dash for NaN."""
    return "–" if math.isnan(share) else f"{100 * share:.0f} %"


def or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value
