"""From rows to results: means with bootstrap intervals, per set and over sets. Pure, and without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.evals.sets import GENERAL_SETS, MULTI_HOP_SETS
from holdfast.evals.state import FAILED
from holdfast.versions import versions

FORMAT = "holdfast-eval-1"
SCORES = ("em", "f1", "sub_em", "hit")
"""In [0, 1], each with an interval. `hit` counts questions that searched."""
RESAMPLES, SEED, LEVEL = 10_000, 0, 0.95


def results_of(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What results.json holds.

    A question's score is the mean over its samples; failed ones are left out of every mean and counted apart. `macro`
    is the mean over sets, as in the papers; `micro` the mean over questions; `general` and `multi_hop` are means over
    the sets of that kind. Intervals are 95 % percentile bootstraps over questions, within each set.
    """
    by_set: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_set.setdefault(row["set"], []).append(row)
    draws = {name: _draws(own, seed) for seed, (name, own) in enumerate(by_set.items())}
    sets = {name: _counts(own) | _scored(own, draws[name]) for name, own in by_set.items()}
    results: dict[str, Any] = {"format": FORMAT, **settings, "sets": sets}
    kinds = {"macro": tuple(by_set), "general": GENERAL_SETS, "multi_hop": MULTI_HOP_SETS}
    for kind, wanted in kinds.items():
        results[kind] = _over([name for name in by_set if name in wanted], sets, draws, weigh=lambda name, score: 1.0)
    results["micro"] = _counts(rows) | _over(
        # By how many questions have the score: not all that are scored have searched, so not all have a hit.
        *(list(by_set), sets, draws),
        weigh=lambda name, score: len(question_means(by_set[name], score)),
    )
    results["made_by"] = versions()
    return results


def question_means(rows: Sequence[Mapping[str, Any]], score: str) -> dict[str, float]:
    """Question id -> the mean of a score over its samples; questions without one are absent."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.get(score) is not None:
            values.setdefault(row["id"].rpartition("#")[0], []).append(row[score])
    return {id: sum(own) / len(own) for id, own in values.items()}


def resampled_means(values: Sequence[float], rng: np.random.Generator, count: int = RESAMPLES) -> np.ndarray:
    """Means of `count` resamples with replacement, `[count]`.

    Drawing how often each distinct value occurs is drawing the questions, and takes no array of questions × resamples.
    """
    distinct, occurs = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    drawn = rng.multinomial(len(values), occurs / len(values), size=count)
    return drawn @ distinct / len(values)


def interval(means: np.ndarray) -> list[float]:
    """[low, high] of `LEVEL`, rounded to what the resampling can tell."""
    tail = (1 - LEVEL) / 2
    return [round(float(x), 4) for x in np.quantile(means, (tail, 1 - tail))]


_Draws = dict[str, np.ndarray]


def _draws(rows: Sequence[Mapping[str, Any]], seed: int) -> _Draws:
    """Of each score with a value, the resampled means of one set."""
    found = {}
    for number, score in enumerate(SCORES):
        values = list(question_means(rows, score).values())
        if values:
            found[score] = resampled_means(values, np.random.default_rng((SEED, seed, number)))
    return found


def _scored(rows: Sequence[Mapping[str, Any]], draws: _Draws) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for score in draws:
        found[score] = _mean(list(question_means(rows, score).values()))
        found[f"{score}_interval"] = interval(draws[score])
    raw = question_means(rows, "em_raw")
    return found | ({"em_raw": _mean(list(raw.values()))} if raw else {})


def _counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    valid = [row for row in rows if row["status"] not in FAILED]
    return {
        "questions": len({row["id"].rpartition("#")[0] for row in rows}),
        "scored": len(question_means(rows, "em")),
        "answers": len(rows),
        "searches": _mean([float(row["searches"]) for row in valid]),
        "calls": _mean([float(row["calls"]) for row in valid]),
        "unanswered": _mean([float(row["prediction"] is None) for row in valid]),
        "truncated": _mean([float(row["status"] == "truncated") for row in valid]),
        "failed": len(rows) - len(valid),
    }


def _over(
    names: Sequence[str],
    sets: Mapping[str, Mapping[str, Any]],
    draws: Mapping[str, _Draws],
    *,
    weigh: Callable[[str, str], float],
) -> dict[str, Any]:
    """Means over sets, weighted by `weigh(set, score)`; of scores that all of them have."""
    found: dict[str, Any] = {"sets": len(names)}
    for score in SCORES:
        if not names or any(score not in sets[name] for name in names):
            continue
        weights = np.array([weigh(name, score) for name in names], dtype=np.float64)
        weights /= weights.sum()
        found[score] = round(float(sum(w * sets[name][score] for w, name in zip(weights, names, strict=True))), 6)
        means = sum(w * draws[name][score] for w, name in zip(weights, names, strict=True))
        found[f"{score}_interval"] = interval(np.asarray(means))
    return found


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 6) if values else 0.0
