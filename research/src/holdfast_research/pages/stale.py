"""What stale rollouts cost a pretrained model, and what a penalty gives back: a table of docs/reference/advice.md.

    python -m holdfast_research.pages.stale     # writes them into the page, from research/data/laboratory

Runs of one seed share their warm start and their test questions, so differences are taken by seed.
"""

from __future__ import annotations

import csv
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

from holdfast.base.files import write_whole
from holdfast_research.pages.filling import filled
from holdfast_research.paths import KEPT_RUNS, RESEARCH

PAGE = RESEARCH.parent / "docs" / "reference" / "advice.md"
T95 = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447}
"""97.5 % quantile of Student's t for so many differences."""
FRESH, OLD, LLDS, WEAK = "GRPO", "8 batches old", "8 batches old, LLDS action", "8 batches old, LLDS action, 0.2"
HALF = ", half the rate"
"""Ends the names of the arms of `real-old` at the recipe's own rate: it is at twice that rate otherwise."""

Arm = tuple[str, str]
"""(experiment, arm)."""
COMPARISONS: tuple[tuple[str, tuple[tuple[Arm, Arm], ...]], ...] = (
    ("one batch old, against fresh", ((("real-age", "1 batch old"), ("real-age", FRESH)),)),
    ("four batches old, against fresh", ((("real-age", "4 batches old"), ("real-age", FRESH)),)),
    (
        "eight batches old, against fresh",
        (
            (("real-age", OLD), ("real-age", FRESH)),
            (("real-old", OLD + HALF), ("real-old", FRESH + HALF)),
            (("old-policy", OLD), ("old-policy", FRESH)),
        ),
    ),
    (
        "eight batches old: LLDS at 1, against plain GRPO",
        ((("real-age", LLDS), ("real-age", OLD)), (("real-old", LLDS + HALF), ("real-old", OLD + HALF))),
    ),
    (
        "eight batches old: LLDS at 0.2, against plain GRPO",
        (
            (("real-age", WEAK), ("real-age", OLD)),
            (("real-old", WEAK + HALF), ("real-old", OLD + HALF)),
            (("old-policy", WEAK), ("old-policy", OLD)),
        ),
    ),
    ("fresh: LLDS at 0.2, against plain GRPO", ((("factbook", "LLDS action, 0.2"), ("factbook", FRESH)),)),
    ("fresh: LLDS at 1, against plain GRPO", ((("factbook", "LLDS action"), ("factbook", FRESH)),)),
)


def scores(column: str, kept: Path = KEPT_RUNS) -> dict[tuple[str, str, int], float]:
    """(experiment, arm, seed) -> test score of the runs that have one; `column` of runs.csv."""
    found = {}
    for experiment in ("real-age", "real-old", "factbook", "old-policy"):
        with (kept / experiment / "runs.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row[column]:
                    found[experiment, row["arm"], int(row["seed"])] = float(row[column])
    return found


def differences(pairs: tuple[tuple[Arm, Arm], ...], found: dict[tuple[str, str, int], float]) -> list[float]:
    """First arm minus second, of every seed that both have."""
    return [
        value - found[(*other, seed)]
        for one, other in pairs
        for (experiment, arm, seed), value in found.items()
        if (experiment, arm) == one and (*other, seed) in found
    ]


def interval(values: list[float]) -> str:
    """The mean in points, with its t95 interval.

    >>> interval([-0.1, -0.2, -0.3])
    '−20 (−45 to 5)'
    """
    centre, half = mean(values), T95[len(values)] * stdev(values) / sqrt(len(values))
    return "{} ({} to {})".format(*(f"{100 * v:.0f}".replace("-", "−") for v in (centre, centre - half, centre + half)))


def table() -> str:
    """The rows of the page."""
    columns = [scores(name) for name in ("em_after", "greedy_after")]
    rows = ["| difference of exact match, points (t95) | seeds | sampled | greedy |", "|---|---|---|---|"]
    for title, pairs in COMPARISONS:
        sampled, greedy = (differences(pairs, found) for found in columns)
        rows.append(f"| {title} | {len(sampled)} | {interval(sampled)} | {interval(greedy)} |")
    return "\n".join(rows)


def page(text: str) -> str:
    """The page with today's differences."""
    return filled(text, {"differences": table()})


def main() -> None:
    """Write them into the page."""
    write_whole(PAGE, page(PAGE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
