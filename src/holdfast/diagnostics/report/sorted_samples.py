"""The chart of single rollouts, sorted by what an update did to them (as in arXiv 2512.04220, Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from holdfast.diagnostics.report.curves import share_of_samples
from holdfast.diagnostics.report.values import ReportedRun, SampleChanges

WINDOWS = 5
"""Stretches of a run, a curve each."""
_TAIL = 2.0
"""Percent of the samples at either end that may lie outside the plot, or a single token's fall would flatten it."""


def samples_chart(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """Changes of correct rollouts: a curve for each stretch of a run, or for the last stretch of each of several."""
    several = len(runs) > 1
    traces = []
    for i, run in enumerate(runs):
        windows = stretches(run.changes)
        for k, part in list(enumerate(windows, start=WINDOWS - len(windows) + 1))[-1 if several else 0 :]:
            found = share_of_samples([change for row in part for change in row.correct])
            if found["x"]:
                traces.append(
                    {
                        "run": i,
                        "series": "samples",
                        "label": f"steps {part[0].step:,} to {part[-1].step:,}",
                        "color": f"time-{k}",
                        "dash": "solid",
                        "points": False,
                        "raw": found | {"bad": []},
                    }
                )
    row = {"title": "change, nats per token", "log": False, "mark": 0.0, "traces": traces, "range": _range(traces)}
    last = "; the last fifth of each run." if several else ". Curves that sink below 0 as the run goes on are decay."
    return {
        "id": "samples",
        "title": "Displacement of single rollouts, sorted",
        "caption": "Correct rollouts, from the most displaced to the most strengthened" + last,
        "rows": [row] if traces else [],
        "pins": [],
        "x": "share",
    }


def stretches(changes: Sequence[SampleChanges]) -> list[Sequence[SampleChanges]]:
    """At most `WINDOWS` parts of equal length, in steps that were measured."""
    bounds = np.linspace(0, len(changes), min(WINDOWS, len(changes)) + 1).astype(int).tolist()
    return [changes[start:stop] for start, stop in pairwise(bounds)]


def _range(traces: Sequence[dict[str, Any]]) -> list[float] | None:
    """Of the y axis: all samples but the tails, and 0."""
    inner = [
        y
        for trace in traces
        for x, y in zip(trace["raw"]["x"], trace["raw"]["y"], strict=True)
        if _TAIL <= x <= 100 - _TAIL
    ]
    if not inner:
        return None
    low, high = min(0.0, *inner), max(0.0, *inner)
    return [low - 0.06 * (high - low), high + 0.06 * (high - low)] if high > low else None
