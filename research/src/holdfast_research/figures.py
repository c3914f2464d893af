"""Curves as SVG: the mean of an arm's seeds thick, every seed thin, the arm's name at the end of its curve."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from html import escape
from statistics import mean
from typing import Any

from holdfast.base.errors import MissingExtra
from holdfast_research.series import RunSeries
from holdfast_research.values import Figure, Runs

# Four of Okabe and Ito's colours, distinct to any colour vision, and a violet. Each has contrast on a white page and on
# a dark one, and the dashes differ too. The first arm has the colour of the text.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a68c8")
_INK = "#010203"
"""A placeholder for the colour of the page's text until the SVG is written."""
_LINES = ("-", "--", "-.", ":")
_TOP = 0.94
"""Height of the highest label, as a fraction of the axes: the title above it may be as wide as the drawing."""
_WIDTH, _HEIGHT = 4.7, 3.1
"""Inches; narrow, so that letters keep their size on a phone."""


def draw(figure: Figure, runs: Runs, *, key: str) -> str | None:
    """The figure as an `<svg>` element; None when no run has the metric. `key` makes its ids unique on a page.

    Raises `MissingExtra` without matplotlib.
    """
    curves = [(arm, seeds) for arm in figure.arms if (seeds := _curves(figure.metric, runs.get(arm, ())))]
    if not curves:
        return None
    try:
        import matplotlib
        from matplotlib.figure import Figure as Drawing
    except ImportError:
        raise MissingExtra("matplotlib", "figures") from None
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": key, "font.size": 9, "font.family": "sans-serif"}
    with matplotlib.rc_context(style):
        drawing = Drawing(figsize=(_WIDTH, _HEIGHT))
        axes = drawing.subplots()
        for arm, seeds in curves:
            _draw_arm(axes, seeds, *_looks(figure, arm))
        _frame(axes, figure)
        _label(axes, figure, curves)
        file = io.StringIO()
        drawing.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(file.getvalue(), figure, [arm for arm, _ in curves], key)


def mean_curve(seeds: Sequence[tuple[list[int], list[float]]]) -> tuple[list[int], list[float]]:
    """The mean over seeds at each step that all of them have.

    >>> mean_curve([([1, 2, 3], [0.0, 1.0, 2.0]), ([1, 2], [1.0, 1.0])])
    ([1, 2], [0.5, 1.0])
    """
    tables = [dict(zip(steps, values, strict=True)) for steps, values in seeds]
    steps = sorted(set.intersection(*map(set, tables)))
    return steps, [mean(table[step] for table in tables) for step in steps]


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Positions in [0, 1] moved apart to be at least `gap` from one another, order kept, as little as a pass does.

    >>> spread([0.5, 0.5, 0.9], 0.1), spread([0.99, 0.98], 0.1)
    ([0.45, 0.55, 0.9], [1.0, 0.9])
    """
    order = sorted(range(len(positions)), key=positions.__getitem__)
    placed = [positions[i] for i in order]
    for _ in range(60):
        for low in range(len(placed) - 1):
            lack = gap - (placed[low + 1] - placed[low])
            if lack > 1e-9:
                placed[low] -= lack / 2
                placed[low + 1] += lack / 2
        placed = [min(max(position, 0.0), 1.0) for position in placed]
    moved = dict(zip(order, placed, strict=True))
    return [round(moved[i], 6) for i in range(len(positions))]


def _curves(metric: str, runs: Sequence[RunSeries]) -> list[tuple[list[int], list[float]]]:
    """Five-step means, as everything on the page."""
    return [curve for run in runs if (curve := run.means(metric))[0]]


def _draw_arm(axes: Any, seeds: Sequence[tuple[list[int], list[float]]], colour: str, line: str) -> None:
    for steps, values in seeds:
        axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.4)
    steps, values = mean_curve(seeds)
    # A run of so few steps that it has one mean would be an invisible line.
    axes.plot(steps, values, color=colour, linewidth=2, linestyle=line, marker="o" if len(steps) == 1 else None)


def _frame(axes: Any, figure: Figure) -> None:
    axes.set_title(figure.title, loc="left", fontsize=10, color=_INK)
    axes.set_xlabel("step", color=_INK)
    axes.tick_params(colors=_INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_INK)
    low, high = axes.get_ylim()
    if low < 0 < high:
        axes.axhline(0, color=_INK, linewidth=0.8, alpha=0.5)


def _label(axes: Any, figure: Figure, curves: Sequence[tuple[str, Any]]) -> None:
    """Each arm's name at the right, at the height where its curve ends."""
    ends = [mean_curve(seeds)[1][-1] if mean_curve(seeds)[0] else seeds[0][1][-1] for _, seeds in curves]
    low, high = axes.get_ylim()
    at = spread([(end - low) / (high - low) / _TOP for end in ends], 0.13 / _TOP)
    for (arm, _), height in zip(curves, (_TOP * share for share in at), strict=True):
        colour, line = _looks(figure, arm)
        place = {"transform": axes.transAxes, "clip_on": False}
        axes.plot([1.03, 1.1], [height, height], color=colour, linestyle=line, linewidth=2, **place)
        axes.text(1.13, height, textwrap.fill(arm, 18), color=_INK, fontsize=9, va="center", linespacing=0.95, **place)
    axes.set_ylim(low, high)
    axes.figure.subplots_adjust(left=0.13, right=0.65, top=0.9, bottom=0.16)


def _looks(figure: Figure, arm: str) -> tuple[str, str]:
    """Colour and dashes."""
    index = figure.arms.index(arm)
    return (COLOURS[(index - 1) % len(COLOURS)] if index else _INK), _LINES[index % len(_LINES)]


def _inline(svg: str, figure: Figure, arms: Sequence[str], key: str) -> str:
    """The element alone, in the page's own text colour and font, with a name for those who cannot see it."""
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r'(width|height)="[\d.]+pt"', "", svg, count=2)
    # Ids are unique within one SVG only.
    svg = re.sub(r'(id="|url\(#|href="#)', lambda match: f"{match[0]}{key}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'font-family: [^;"]*', "font-family: inherit", svg)
    name = escape(f"{figure.title}: {'; '.join(arms)}")
    return svg.replace(">", f' role="img" aria-label="{name}">', 1)
