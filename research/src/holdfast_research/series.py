"""What a finished run left behind, and the few numbers and moments that claims are about. No torch: files alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from holdfast.base.errors import DataError
from holdfast.base.run_folder import METRICS, RESULTS
from holdfast.diagnose.log.collapse import Curve, collapsed, curve_of, fell, plateau
from holdfast.diagnose.log.smoothed import WINDOW
from holdfast.diagnose.log.trailing import first
from holdfast.train.tracking import MetricsFile

RISE = 0.12
"""The least rise of the reward in a run that holds."""
SURGE = 0.3
"""Nats by which entropy rises above its lowest when it surges."""
HALF = math.log(0.5)
"""ln ∏ r of a rollout that became half as likely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeries:
    """One run: what it logged step by step, and its closing evaluation."""

    arm: str
    seed: int
    rows: tuple[Mapping[str, float], ...]
    """The steps that had a reward, in order."""
    results: Mapping[str, Any]
    """`before`, `after` (scores), `seconds`, …"""

    def series(self, metric: str) -> tuple[list[int], list[float]]:
        """Steps that logged the metric, and its values there."""
        rows = [row for row in self.rows if metric in row]
        return [int(row["step"]) for row in rows], [row[metric] for row in rows]

    def means(self, metric: str) -> tuple[list[int], list[float]]:
        """The mean of the last `WINDOW` values, at each step that has so many; of all values when there are fewer."""
        steps, values = self.series(metric)
        window = min(WINDOW, len(values))
        smooth = [mean(values[i : i + window]) for i in range(len(values) - window + 1)] if window else []
        return steps[window - 1 :], smooth

    @property
    def reward(self) -> Curve:
        """Mean reward by step."""
        steps, values = self.series("reward/mean")
        return curve_of(values, steps)

    @property
    def fell(self) -> bool:
        """Whether the reward fell at some time, whatever came after."""
        return fell(self.reward) is not None

    @property
    def collapsed(self) -> bool:
        """Whether it fell from a plateau."""
        return collapsed(self.reward) is not None


def read_run(folder: Path, arm: str, seed: int) -> RunSeries:
    """A finished run's files. Raises `DataError` when it is not finished, or never had a reward."""
    path = folder / RESULTS
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({error}), so this run is not finished; continue it with `holdfast resume`"
        ) from None
    rows = tuple(row for row in MetricsFile(folder / METRICS).read() if "reward/mean" in row)
    if not rows:
        raise DataError(f"{folder} has no step with a reward: did every search fail? See its {METRICS}")
    return RunSeries(arm=arm, seed=seed, rows=rows, results=results)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run in numbers: its reward in means of `WINDOW` steps, and its evaluation before and after training. NaN for
    what was not logged.
    """

    first: float
    peak: float
    """The highest mean; in a run that fell, the highest before the fall, so that one that came back is not taken for
    one that never fell."""
    peak_step: int
    held: int
    """Steps within 20 % of the peak."""
    fell: bool
    collapsed: bool
    surged: bool
    """Entropy rose `SURGE` above its lowest."""
    lowest_after: float
    """After the peak."""
    last: float
    entropy_first: float
    entropy_last: float
    """Nats per token."""
    invalid_last: float
    """Share of turns that are neither a search nor an answer."""
    clipped_last: float
    """Share of tokens whose gradient the clip stops."""
    displacement: float
    """Mean over training, nats per token of correct rollouts."""
    em_before: float
    """NaN where the start was not evaluated, likewise `greedy_before`."""
    em_after: float
    greedy_before: float
    greedy_after: float
    seconds: float


def summarise(run: RunSeries) -> RunSummary:
    """The run in numbers."""
    steps, means = run.means("reward/mean")
    curve = run.reward
    fall = fell(curve)
    before_fall = [m for s, m in zip(steps, means, strict=True) if fall is None or s <= fall.step] or means[:1]
    peak = max(before_fall)
    at = means.index(peak)
    _, displacement = run.series("displacement/correct")
    _, entropy = run.series("entropy/mean")
    before, after = run.results["before"], run.results["after"]
    return RunSummary(
        first=means[0],
        peak=peak,
        peak_step=steps[at],
        held=plateau(curve),
        fell=fall is not None,
        collapsed=run.collapsed,
        surged=surge_step(run, "entropy/mean", SURGE) is not None,
        lowest_after=min(means[at:]),
        last=means[-1],
        entropy_first=entropy[0] if entropy else math.nan,
        entropy_last=_last(run, "entropy/mean"),
        invalid_last=_last(run, "rollout/invalid_fraction"),
        clipped_last=_last(run, "clip/fraction"),
        displacement=mean(displacement) if displacement else math.nan,
        em_before=before.get("em", math.nan),
        em_after=after.get("em", math.nan),
        greedy_before=before.get("em_greedy", math.nan),
        greedy_after=after.get("em_greedy", math.nan),
        seconds=run.results["seconds"],
    )


def _last(run: RunSeries, metric: str) -> float:
    """The last of `means`; NaN for what was not logged."""
    _, means = run.means(metric)
    return means[-1] if means else math.nan


def table(runs: Mapping[str, Mapping[int, RunSummary]]) -> str:
    """Markdown of summaries by arm and seed: a row each, then a line for every arm."""
    lines = [
        "| arm | seed | reward first → peak (step) → last (lowest after peak) | steps within 20 % of peak | entropy | "
        "displacement | test EM sampled | test EM greedy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm, seeds in runs.items():
        for seed, r in seeds.items():
            lines.append(
                f"| {arm} | {seed} | {r.first:.2f} → {r.peak:.2f} ({r.peak_step}) → {r.last:.2f} "
                f"({r.lowest_after:.2f}) | {r.held} | {r.entropy_first:.2f} → {r.entropy_last:.2f} | "
                f"{r.displacement:+.4f} | {r.em_before:.3f} → {r.em_after:.3f} | "
                f"{r.greedy_before:.3f} → {r.greedy_after:.3f} |"
            )
    lines.append("")
    for arm, seeds in runs.items():
        gains = [r.em_after - r.em_before for r in seeds.values()]
        greedy = [r.greedy_after - r.greedy_before for r in seeds.values()]
        lines.append(
            f"* {arm}: sampled EM {mean(gains):+.3f} (seeds {min(gains):+.3f} to {max(gains):+.3f}), greedy "
            f"{mean(greedy):+.3f} ({min(greedy):+.3f} to {max(greedy):+.3f}); collapsed on "
            f"{sum(r.collapsed for r in seeds.values())} of {len(seeds)} seeds"
        )
    return "\n".join(lines)


# ---- moments: a step, or None when it never comes


def drop_step(run: RunSeries) -> int | None:
    """When the reward first dropped: lost 20 % of its range."""
    row = first(run.reward.dropped)
    return None if row is None else int(run.reward.steps[row])


def below_step(run: RunSeries, metric: str, level: float) -> int | None:
    """The first step at which the metric's mean is below `level`."""
    return next((s for s, v in zip(*run.means(metric), strict=True) if v < level), None)


def rise_step(run: RunSeries, metric: str, level: float) -> int | None:
    """The first step at which the metric's mean is above `level`."""
    return next((s for s, v in zip(*run.means(metric), strict=True) if v > level), None)


def surge_step(run: RunSeries, metric: str, rise: float) -> int | None:
    """The first step at which the metric's mean exceeds its lowest so far by `rise`."""
    return _moved_step(run, metric, rise, sign=1)


def fall_step(run: RunSeries, metric: str, fall: float) -> int | None:
    """The first step at which the metric's mean is below its highest so far by `fall`."""
    return _moved_step(run, metric, fall, sign=-1)


def _moved_step(run: RunSeries, metric: str, by: float, sign: int) -> int | None:
    lowest = float("inf")
    for step, value in zip(*run.means(metric), strict=True):
        lowest = min(lowest, sign * value)
        if sign * value - lowest > by:
            return step
    return None


def decay_step(run: RunSeries, metric: str, until: int | None = None) -> int | None:
    """The step at which the metric's mean, over the steps up to `until`, was highest; None without the metric."""
    pairs = [(s, v) for s, v in zip(*run.means(metric), strict=True) if until is None or s <= until]
    return max(pairs, key=lambda pair: pair[1])[0] if pairs else None


def at_step(run: RunSeries, metric: str, step: int) -> float | None:
    """The metric's mean at the last step up to `step` that has one."""
    values = [v for s, v in zip(*run.means(metric), strict=True) if s <= step]
    return values[-1] if values else None


def between(run: RunSeries, metric: str, first: int, last: int) -> Sequence[float]:
    """The metric's values at steps first … last."""
    return [v for s, v in zip(*run.series(metric), strict=True) if first <= s <= last]
