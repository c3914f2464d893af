"""Whether two results differ: the same questions, pair by pair."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import DataError
from holdfast.evals.results import interval, question_means, resampled_means
from holdfast.evals.state import FAILED, ROWS, read_results, read_whole_rows

_PROTOCOL = ("decoding", "samples", "searches", "topk", "retrieval", "scorer", "prompt")
"""Settings that change a score without changing the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """EM of B minus EM of A over the questions of a set, or over sets."""

    set: str
    questions: int
    a: float
    b: float
    difference: float
    low: float
    """Of the 95 % interval: a bootstrap of the questions' differences."""
    high: float
    only_a: int | None
    """Questions that only A has right; None over sets, and when a question has several samples."""
    only_b: int | None
    p: float | None
    """Exact McNemar, two-sided: how often chance alone splits the questions on which they differ as unevenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    name_a: str
    name_b: str
    rows: tuple[Difference, ...]
    """A row per set, then `mean of sets` and `all questions`."""
    notes: tuple[str, ...]
    """What besides the models differs."""


def compare(a: Path, b: Path) -> Comparison:
    """The paired comparison of two folders of results.

    Raises `DataError` when one is missing or unfinished, when they are not about the same questions with the same
    golden answers, when failed answers leave a question without its pair, or when the scorers differ.
    """
    results_a, results_b = read_results(a), read_results(b)
    rows_a, rows_b = _rows(a), _rows(b)
    _refuse_unequal(a, b, rows_a, rows_b)
    if results_a["scorer"] != results_b["scorer"]:
        raise DataError(
            f"{a} was scored by the rule {results_a['scorer']!r}, {b} by {results_b['scorer']!r}: a difference would "
            "say nothing about the models. Evaluate one of them again with the other's --scorer"
        )
    means_a, means_b = question_means(rows_a, "em"), question_means(rows_b, "em")
    single = len(means_a) == len(rows_a) and len(means_b) == len(rows_b)
    by_set: dict[str, dict[str, None]] = {}  # ids in order, each once
    for row in rows_a:
        by_set.setdefault(row["set"], {})[row["id"].rpartition("#")[0]] = None
    found, draws = [], {}
    for seed, (name, ids) in enumerate(by_set.items()):
        pairs = [(means_a[id], means_b[id]) for id in ids]
        draws[name] = resampled_means([y - x for x, y in pairs], np.random.default_rng(seed))
        found.append(_difference(name, pairs, draws[name], single))
    if len(found) > 1:
        found += [_over("mean of sets", found, draws, [1.0] * len(found))]
        whole = _over("all questions", found[:-1], draws, [float(one.questions) for one in found[:-1]])
        pairs = [(means_a[id], means_b[id]) for ids in by_set.values() for id in ids]
        found.append(_with_mcnemar(whole, pairs) if single else whole)
    return Comparison(
        name_a=f"{results_a['row']} ({a})",
        name_b=f"{results_b['row']} ({b})",
        rows=tuple(found),
        notes=tuple(
            f"{name} differs: {results_a.get(name)} and {results_b.get(name)}"
            for name in _PROTOCOL
            if results_a.get(name) != results_b.get(name)
        ),
    )


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided exact p: min(1, 2 · P(at most the smaller of n tosses of a fair coin)).

    >>> mcnemar(1, 8) == 2 * (1 + 9) / 2**9
    True
    """
    n, least = only_a + only_b, min(only_a, only_b)
    if n < 1000:
        return min(1.0, 2 * sum(math.comb(n, i) for i in range(least + 1)) / 2**n)
    # 2**n no longer fits a float.
    logs = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in range(least + 1)]
    return min(1.0, 2 * math.fsum(math.exp(log - n * math.log(2)) for log in logs))


def _rows(path: Path) -> list[dict[str, Any]]:
    folder = path if path.is_dir() else path.parent
    rows = read_whole_rows(folder / ROWS)
    if not rows:
        raise DataError(f"{folder} has no {ROWS}, and pairs are made of its answers; evaluate again to renew it")
    return rows


def _refuse_unequal(a: Path, b: Path, rows_a: Sequence[Mapping[str, Any]], rows_b: Sequence[Mapping[str, Any]]) -> None:
    asked_a, asked_b = ({row["id"].rpartition("#")[0]: row for row in rows} for rows in (rows_a, rows_b))
    for here, there, one, other in ((asked_a, asked_b, a, b), (asked_b, asked_a, b, a)):
        if alone := [id for id in here if id not in there]:
            raise DataError(
                f"{one} has {len(alone)} question(s) that {other} has not, the first {alone[0]}; only results on the "
                "same questions can be paired. Evaluate both with the same --data and --limit"
            )
    for id, row in asked_a.items():
        twin = asked_b[id]
        for field in ("question", "golden_answers"):
            if row[field] != twin[field]:
                raise DataError(
                    f"{id} has another {field.replace('_', ' ')} in {b} than in {a}: the files are not the same. "
                    "Evaluate both with the same --data"
                )
    for path, rows in ((a, rows_a), (b, rows_b)):
        if failed := [row["id"] for row in rows if row["status"] in FAILED]:
            raise DataError(
                f"{len(failed)} answer(s) of {path} failed, the first {failed[0]}, so its questions are not all there; "
                "run its evaluation again, which asks them again"
            )


def _difference(name: str, pairs: Sequence[tuple[float, float]], draws: np.ndarray, single: bool) -> Difference:
    a, b = (sum(one) / len(pairs) for one in zip(*pairs, strict=True))
    low, high = interval(draws)
    row = Difference(
        set=name,
        questions=len(pairs),
        a=a,
        b=b,
        difference=b - a,
        low=low,
        high=high,
        only_a=None,
        only_b=None,
        p=None,
    )
    return _with_mcnemar(row, pairs) if single else row


def _with_mcnemar(row: Difference, pairs: Sequence[tuple[float, float]]) -> Difference:
    only_a, only_b = (sum(x > y for x, y in pairs), sum(y > x for x, y in pairs))
    return replace(row, only_a=only_a, only_b=only_b, p=mcnemar(only_a, only_b))


def _over(
    name: str, rows: Sequence[Difference], draws: Mapping[str, np.ndarray], weights: Sequence[float]
) -> Difference:
    shares = [weight / sum(weights) for weight in weights]
    a = sum(share * row.a for share, row in zip(shares, rows, strict=True))
    b = sum(share * row.b for share, row in zip(shares, rows, strict=True))
    low, high = interval(np.asarray(sum(s * draws[row.set] for s, row in zip(shares, rows, strict=True))))
    questions = sum(row.questions for row in rows)
    return Difference(
        set=name, questions=questions, a=a, b=b, difference=b - a, low=low, high=high, only_a=None, only_b=None, p=None
    )
