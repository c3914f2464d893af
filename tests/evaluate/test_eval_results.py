"""Means, intervals and paired tests, against arithmetic done another way."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import DataError
from holdfast.base.intervals import interval, resampled_means
from holdfast.evaluate.results import compare, mcnemar, results_of


def row(id: str, name: str, em: float | None, **more: Any) -> dict[str, Any]:
    status = "error" if em is None else "ok"
    own = {"id": id, "set": name, "em": em, "f1": em, "sub_em": em, "hit": None, "status": status}
    return own | {"prediction": "x", "searches": 1, "calls": 2, "question": f"{id}?", "golden_answers": ["x"]} | more


ROWS = [
    row("a/t/0#0", "nq", 1.0, searches=3),
    row("a/t/0#1", "nq", 0.0, prediction=None, status="truncated"),
    row("a/t/1#0", "nq", 0.0, hit=1.0),
    row("a/t/1#1", "nq", 0.0, hit=0.0),
    row("b/t/0#0", "musique", 1.0),
    row("b/t/0#1", "musique", 1.0),
    row("b/t/1#0", "musique", None),
    row("b/t/1#1", "musique", None),
]


def test_means_of_samples_of_questions_of_sets() -> None:
    results = results_of(ROWS, {"method": "direct"})
    nq, musique = results["sets"]["nq"], results["sets"]["musique"]
    assert nq["em"] == 0.25  # (½ + 0) / 2
    assert musique["em"] == 1.0 and musique["questions"] == 2 and musique["scored"] == 1 and musique["failed"] == 2
    assert results["macro"]["em"] == 0.625
    assert results["micro"]["em"] == 0.5  # (½ + 0 + 1) / 3: a question that failed is in no mean
    assert (results["general"]["em"], results["multi_hop"]["em"]) == (0.25, 1.0)
    assert (nq["searches"], nq["unanswered"], nq["truncated"]) == (1.5, 0.25, 0.25)
    assert nq["hit"] == 0.5 and "hit" not in musique and "hit" not in results["macro"]


def test_a_mean_over_questions_weighs_each_score_by_the_questions_that_have_it() -> None:
    one = [row(f"a/t/{i}#0", "nq", 0.0, hit=1.0 if i == 0 else None) for i in range(10)]  # one question searched
    ten = [row(f"b/t/{i}#0", "musique", 1.0, hit=0.0) for i in range(10)]
    results = results_of(one + ten, {"method": "direct"})
    assert results["micro"]["hit"] == pytest.approx(1 / 11, abs=1e-6) and results["macro"]["hit"] == 0.5
    assert results["micro"]["em"] == 0.5


def test_resampling_distinct_values_is_resampling_questions() -> None:
    values = np.random.default_rng(3).choice([0.0, 0.5, 1.0, 0.25], size=60, p=[0.5, 0.2, 0.2, 0.1])
    ours = resampled_means(values.tolist(), np.random.default_rng(1), 40_000)
    rng = np.random.default_rng(2)
    plain = values[rng.integers(0, 60, (40_000, 60))].mean(1)
    assert ours.mean() == pytest.approx(values.mean(), abs=2e-3)
    assert ours.std() == pytest.approx(plain.std(), rel=0.02)
    assert interval(ours) == pytest.approx(interval(plain), abs=0.01)


def saved(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> Path:
    folder.mkdir()
    settings = {"row": folder.name, "scorer": "table", "decoding": "greedy", "samples": 1} | settings
    (folder / "results.json").write_text(json.dumps(results_of(rows, settings)))
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def answers(right: str, name: str = "nq") -> list[dict[str, Any]]:
    return [row(f"{name}/t/{i}#0", name, float(mark == "1")) for i, mark in enumerate(right)]


def test_the_paired_test(tmp_path: Path) -> None:
    here, there = ({"retrieval": {"corpus": at, "k1": 0.9}, "passages": "ab12"} for at in ("c.jsonl", "/data/c.jsonl"))
    a = saved(tmp_path / "a", answers("1100000000") + answers("1111", "musique"), **here)
    there["retrieval"]["k1"] = 1.2
    b = saved(tmp_path / "b", answers("1011111110") + answers("1110", "musique"), decoding="sampled", **there)
    found = compare(a, b)
    nq, musique, macro, micro = found.rows
    assert (nq.only_a, nq.only_b, nq.questions) == (1, 7, 10)
    assert nq.p == pytest.approx(2 * (1 + 8) / 2**8)
    assert nq.difference == pytest.approx(0.6) and nq.low < 0.6 < nq.high and nq.low > 0
    assert musique.p == 1.0 and musique.difference == -0.25
    assert macro.difference == pytest.approx((0.6 - 0.25) / 2) and macro.p is None
    assert micro.difference == pytest.approx(5 / 14) and (micro.only_a, micro.only_b) == (2, 7)
    assert found.notes == ("decoding differs: greedy and sampled", "retrieval.k1 differs: 0.9 and 1.2")
    assert all(one.difference == 0 and one.p == 1.0 for one in compare(a, a).rows if one.p is not None)


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (3, 3), (0, 5), (40, 70), (480, 530), (700, 760)])
def test_mcnemar_is_the_binomial(only_a: int, only_b: int) -> None:
    n, least = only_a + only_b, min(only_a, only_b)
    exact = 2 * sum(math.comb(n, i) for i in range(least + 1)) * 10**30 // 2**n / 10**30
    assert mcnemar(only_a, only_b) == pytest.approx(min(1.0, exact), rel=1e-9)


def test_unequal_files_are_refused(tmp_path: Path) -> None:
    a = saved(tmp_path / "a", answers("110"))
    longer = saved(tmp_path / "longer", answers("1101"))
    for pair in ((a, longer), (longer, a)):
        with pytest.raises(DataError, match=r"longer has 1 question\(s\) that .*a does not have, the first nq/t/3"):
            compare(*pair)
    other = answers("110")
    other[1]["golden_answers"] = ["y"]
    with pytest.raises(DataError, match="nq/t/1 differs in its golden answers"):
        compare(a, saved(tmp_path / "other", other))
    with pytest.raises(DataError, match=r"scored by the rule 'table'.*'official'"):
        compare(a, saved(tmp_path / "official", answers("110"), scorer="official"))
    failed = [*answers("11"), row("nq/t/2#0", "nq", None)]
    with pytest.raises(DataError, match=r"1 answer\(s\) of .*failed failed, the first nq/t/2#0"):
        compare(a, saved(tmp_path / "failed", failed))
    (a / "questions.jsonl").unlink()
    with pytest.raises(DataError, match=r"has no questions\.jsonl"):
        compare(a, longer)


def test_several_samples_are_compared_by_their_means(tmp_path: Path) -> None:
    def sampled(first: float) -> list[dict[str, Any]]:
        return [row(f"q/t/{i}#{k}", "nq", first if k else 0.0) for i in range(6) for k in range(2)]

    found = compare(saved(tmp_path / "a", sampled(0.0)), saved(tmp_path / "b", sampled(1.0)))
    (own,) = found.rows
    assert own.difference == 0.5 and own.p is None and own.only_a is None
    assert (own.low, own.high) == (0.5, 0.5)
