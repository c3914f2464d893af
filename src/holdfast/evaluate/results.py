"""From rows to results: means with bootstrap intervals, per set and over sets, and whether two results differ.

Without torch: tables and comparisons need none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.base.environment import versions
from holdfast.base.errors import DataError
from holdfast.base.intervals import interval, resampled_means, resampled_scores
from holdfast.evaluate.folder import FAILED, FORMAT, ROWS, read_results, read_whole_rows
from holdfast.tasks.catalogue import GENERAL, MULTI_HOP
from holdfast.tasks.questions import Example

ONE_HOP, TWO_HOP = "world-1hop", "world-2hop"
"""The sets of the bundled world's questions."""
GENERAL_SETS = (*GENERAL, ONE_HOP)
MULTI_HOP_SETS = (*MULTI_HOP, TWO_HOP)
SCORES = ("em", "f1", "sub_em", "hit")
"""Each in [0, 1], with an interval. `hit` is about questions that searched."""
SEED = 0
_PROTOCOL = ("decoding", "samples", "searches", "topk", "scorer", "prompt")
"""Settings that change a score without changing the model."""
_Draws = dict[str, np.ndarray]


def set_of(example: Example) -> str:
    """The set that a question counts in: its source, or for the bundled world its number of hops."""
    if example.source == "world":
        return ONE_HOP if example.metadata.get("hops") == 1 else TWO_HOP
    return example.source


def results_of(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The content of results.json.

    A question's score is the mean over its samples. Failed answers are in no mean and are counted separately. `macro`
    is the mean over sets, as in the papers, `micro` the mean over questions. `general` and `multi_hop` are means over
    the sets of that kind. Intervals are 95 % percentile bootstraps over questions, within each set.
    """
    by_set: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_set.setdefault(row["set"], []).append(row)
    draws = {name: _draws(set_rows, seed) for seed, (name, set_rows) in enumerate(by_set.items())}
    sets = {name: _counts(set_rows) | _scored(set_rows, draws[name]) for name, set_rows in by_set.items()}
    results: dict[str, Any] = {"format": FORMAT, **settings, "sets": sets}
    kinds = {"macro": tuple(by_set), "general": GENERAL_SETS, "multi_hop": MULTI_HOP_SETS}
    for kind, members in kinds.items():
        named = [name for name in by_set if name in members]
        results[kind] = _weighted(named, sets, draws, weigh=lambda name, score: 1.0)
    # Weighted by the number of questions with the score: not every scored question searched, so not all have a hit.
    micro = _weighted(list(by_set), sets, draws, weigh=lambda name, score: len(question_means(by_set[name], score)))
    results["micro"] = _counts(rows) | micro
    results["made_by"] = versions()
    return results


def question_means(rows: Sequence[Mapping[str, Any]], score: str) -> dict[str, float]:
    """Question id -> the mean of a score over its samples; questions without one are absent."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.get(score) is not None:
            values.setdefault(row["id"].rpartition("#")[0], []).append(row[score])
    return {id: sum(scores) / len(scores) for id, scores in values.items()}


def _draws(rows: Sequence[Mapping[str, Any]], seed: int) -> _Draws:
    """Resampled means of one set, for each score that has a value."""
    draws = {}
    for number, score in enumerate(SCORES):
        values = list(question_means(rows, score).values())
        if values:
            draws[score] = resampled_scores(values, np.random.default_rng((SEED, seed, number)))
    return draws


def _scored(rows: Sequence[Mapping[str, Any]], draws: _Draws) -> dict[str, Any]:
    scores: dict[str, Any] = {}
    for score in draws:
        scores[score] = _mean(list(question_means(rows, score).values()))
        scores[f"{score}_interval"] = interval(draws[score])
    raw = question_means(rows, "em_raw")
    return scores | ({"em_raw": _mean(list(raw.values()))} if raw else {})


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


def _weighted(
    names: Sequence[str],
    sets: Mapping[str, Mapping[str, Any]],
    draws: Mapping[str, _Draws],
    *,
    weigh: Callable[[str, str], float],
) -> dict[str, Any]:
    """Means over sets, weighted by `weigh(set, score)`, of the scores that all sets have."""
    means: dict[str, Any] = {"sets": len(names)}
    for score in SCORES:
        if not names or any(score not in sets[name] for name in names):
            continue
        weights = np.array([weigh(name, score) for name in names], dtype=np.float64)
        weights /= weights.sum()
        means[score] = round(float(sum(w * sets[name][score] for w, name in zip(weights, names, strict=True))), 6)
        set_draws = sum(w * draws[name][score] for w, name in zip(weights, names, strict=True))
        means[f"{score}_interval"] = interval(np.asarray(set_draws))
    return means


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 6) if values else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """EM of B minus EM of A over the questions of a set, or over sets."""

    set: str
    questions: int
    a: float
    b: float
    difference: float
    low: float
    """Lower end of the 95 % interval, a bootstrap of the questions' differences."""
    high: float
    only_a: int | None = None
    """Questions that only A answers correctly. None over sets, and when a question has several samples."""
    only_b: int | None = None
    p: float | None = None
    """Exact two-sided McNemar: how often a fair coin splits the questions on which A and B differ as unevenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two results, compared per set and over sets."""

    name_a: str
    name_b: str
    rows: tuple[Difference, ...]
    """A row per set, then `mean of sets` and `all questions`."""
    notes: tuple[str, ...]
    """Other settings that differ."""


def compare(a: Path, b: Path) -> Comparison:
    """The paired comparison of two folders of results.

    Raises `DataError` when one is missing or unfinished, when questions or golden answers differ, when a question of a
    pair failed, or when the scorers differ.
    """
    results_a, results_b = read_results(a), read_results(b)
    rows_a, rows_b = _rows(a), _rows(b)
    _refuse_unequal(a, b, rows_a, rows_b)
    if results_a["scorer"] != results_b["scorer"]:
        raise DataError(
            f"{a} was scored by the rule {results_a['scorer']!r}, {b} by {results_b['scorer']!r}; a difference would "
            "say nothing about the models. Evaluate one of them again with the other's --scorer"
        )
    means_a, means_b = question_means(rows_a, "em"), question_means(rows_b, "em")
    single = len(means_a) == len(rows_a) and len(means_b) == len(rows_b)
    by_set: dict[str, dict[str, None]] = {}  # ids in order, each once
    for row in rows_a:
        by_set.setdefault(row["set"], {})[row["id"].rpartition("#")[0]] = None
    differences, draws = [], {}
    for seed, (name, ids) in enumerate(by_set.items()):
        pairs = [(means_a[id], means_b[id]) for id in ids]
        draws[name] = resampled_means([y - x for x, y in pairs], np.random.default_rng(seed))
        differences.append(_difference(name, pairs, draws[name], single))
    if len(differences) > 1:
        sets = list(differences)
        differences.append(_difference_over("mean of sets", sets, draws, [1.0] * len(sets)))
        overall = _difference_over("all questions", sets, draws, [float(row.questions) for row in sets])
        pairs = [(means_a[id], means_b[id]) for ids in by_set.values() for id in ids]
        differences.append(_with_mcnemar(overall, pairs) if single else overall)
    return Comparison(
        name_a=f"{results_a['row']} ({a})",
        name_b=f"{results_b['row']} ({b})",
        rows=tuple(differences),
        notes=tuple(_differing(_asked(results_a), _asked(results_b))),
    )


def _asked(results: Mapping[str, Any]) -> dict[str, Any]:
    """How the questions were asked, by name of the setting. The same passages may lie in two places."""
    asked = {name: results.get(name) for name in _PROTOCOL}
    retrieval = results.get("retrieval") or {}
    asked |= {f"retrieval.{name}": value for name, value in retrieval.items()}
    if (passages := results.get("passages")) is not None:
        asked["retrieval.corpus"] = f"passages {passages}"
    return asked


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each setting that both have, and that differs."""
    for name in a:
        if name in b and a[name] != b[name]:
            yield f"{name} differs: {a[name]} and {b[name]}"


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided exact p: min(1, 2 · P(at most the smaller of n tosses of a fair coin)).

    >>> mcnemar(1, 8) == 2 * (1 + 9) / 2**9
    True
    """
    n, least = only_a + only_b, min(only_a, only_b)
    if n < 1000:
        return min(1.0, float(2 * sum(math.comb(n, i) for i in range(least + 1)) / 2**n))
    # 2**n no longer fits a float.
    logs = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in range(least + 1)]
    return min(1.0, 2 * math.fsum(math.exp(log - n * math.log(2)) for log in logs))


def _rows(path: Path) -> list[dict[str, Any]]:
    folder = path if path.is_dir() else path.parent
    rows = read_whole_rows(folder / ROWS)
    if not rows:
        raise DataError(f"{folder} has no {ROWS}, the file with the answers; run the evaluation again")
    return rows


def _refuse_unequal(a: Path, b: Path, rows_a: Sequence[Mapping[str, Any]], rows_b: Sequence[Mapping[str, Any]]) -> None:
    asked_a, asked_b = ({row["id"].rpartition("#")[0]: row for row in rows} for rows in (rows_a, rows_b))
    for ids, other_ids, path, other in ((asked_a, asked_b, a, b), (asked_b, asked_a, b, a)):
        if missing := [id for id in ids if id not in other_ids]:
            raise DataError(
                f"{path} has {len(missing)} question(s) that {other} does not have, the first {missing[0]}; only "
                "results on the same questions can be compared. Evaluate both with the same --data and --limit"
            )
    for id, row in asked_a.items():
        row_b = asked_b[id]
        for field in ("question", "golden_answers"):
            if row[field] != row_b[field]:
                raise DataError(
                    f"{id} differs in its {field.replace('_', ' ')} between {a} and {b}: the files are not the same. "
                    "Evaluate both with the same --data"
                )
    for path, rows in ((a, rows_a), (b, rows_b)):
        if failed := [row["id"] for row in rows if row["status"] in FAILED]:
            raise DataError(
                f"{len(failed)} answer(s) of {path} failed, the first {failed[0]}; run its evaluation again, "
                "which asks them again"
            )


def _difference(name: str, pairs: Sequence[tuple[float, float]], draws: np.ndarray, single: bool) -> Difference:
    a, b = (sum(scores) / len(pairs) for scores in zip(*pairs, strict=True))
    low, high = interval(draws)
    row = Difference(set=name, questions=len(pairs), a=a, b=b, difference=b - a, low=low, high=high)
    return _with_mcnemar(row, pairs) if single else row


def _with_mcnemar(row: Difference, pairs: Sequence[tuple[float, float]]) -> Difference:
    only_a, only_b = (sum(x > y for x, y in pairs), sum(y > x for x, y in pairs))
    return replace(row, only_a=only_a, only_b=only_b, p=mcnemar(only_a, only_b))


def _difference_over(
    name: str, rows: Sequence[Difference], draws: Mapping[str, np.ndarray], weights: Sequence[float]
) -> Difference:
    shares = [weight / sum(weights) for weight in weights]
    a = sum(share * row.a for share, row in zip(shares, rows, strict=True))
    b = sum(share * row.b for share, row in zip(shares, rows, strict=True))
    low, high = interval(np.asarray(sum(s * draws[row.set] for s, row in zip(shares, rows, strict=True))))
    questions = sum(row.questions for row in rows)
    return Difference(set=name, questions=questions, a=a, b=b, difference=b - a, low=low, high=high)
