"""How often `holdfast diagnose --diff` sees a difference between two draws of the same run of the null model.

python -m holdfast_research.null_pairs
python -m holdfast_research.null_pairs --rows 100 --pairs 50
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator

from holdfast.diagnose.compare import Comparison, compare
from holdfast_research.null_model import COMPLETIONS, drawn, log_of

ROWS = (20, 50, 100, 300, 1000)
PAIRS = 200


def comparisons(rows: int, pairs: int) -> Iterator[Comparison]:
    """The comparisons of pairs of runs that differ in their noise alone, over all numbers of completions."""
    for seed in range(pairs):
        run = drawn(rows, COMPLETIONS[seed % len(COMPLETIONS)], seed)
        yield compare(log_of(run, 1), log_of(run, 2))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    args = parser.parse_args()
    print("| rows | pairs | without a difference | series that differ |\n|---|---|---|---|")
    for rows in args.rows:
        found = list(comparisons(rows, args.pairs))
        series = Counter(one.series for comparison in found for one in comparison.differences)
        same = sum(not comparison.differences for comparison in found)
        listed = ", ".join(f"{name} {count}" for name, count in series.most_common()) or "none"
        print(f"| {rows} | {len(found)} | {same / len(found):.3f} | {listed} |", flush=True)


if __name__ == "__main__":
    main()
