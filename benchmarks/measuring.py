"""What the benchmarks share: medians with intervals, peak memory, tables."""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Median, and the narrowest symmetric pair of order statistics that covers the true median with `level`.

    Needs no assumption but independence: the number of values below the true median is binomial(n, 1/2). With fewer
    than 6 values no pair covers 95 %, and the interval is their range.

    >>> median_interval(range(1, 21))
    (10.5, 6.0, 15.0)
    """
    ordered, n = sorted(map(float, values)), len(values)
    rank = 0  # the interval is [ordered[rank], ordered[n - 1 - rank]]
    outside = 2 / 2**n  # its probability to miss the median
    while rank + 1 < n - 2 - rank and outside + 2 * math.comb(n, rank + 1) / 2**n <= 1 - level:
        rank += 1
        outside += 2 * math.comb(n, rank) / 2**n
    return statistics.median(ordered), ordered[rank], ordered[n - 1 - rank]


def seconds_now() -> float:
    """A clock to take differences of: CPU seconds of this process when it is held to one thread by OMP_NUM_THREADS=1,
    which other jobs on the machine hardly disturb; else wall-clock seconds."""
    return time.process_time() if os.environ.get("OMP_NUM_THREADS") == "1" else time.perf_counter()


def peak_memory_mb() -> float:
    """The most resident memory this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def memory_mb() -> float:
    """Resident memory now; on systems without /proc the peak so far."""
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        return peak_memory_mb()
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows as text, columns aligned: the first to the left, the others to the right.

    >>> print(table(["arm", "s"], [["ours", "1.5"], ["other", "12.0"]]))
    arm       s
    ours    1.5
    other  12.0
    """
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join(
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    )


def write_json(path: str | None, values: dict[str, Any]) -> None:
    """The raw numbers, when a path was given."""
    if path is not None:
        Path(path).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
