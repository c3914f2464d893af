"""How long a report takes to open in a browser: until its first chart is drawn, and until it answers.

    python benchmarks/report_page.py
    python benchmarks/report_page.py --times 10 --json report_page.json

Two pages of made-up logs with every series that a report draws: one run of 10,000 steps, and twenty of them. Each is
opened several times from a file in headless Chromium, in a window of 1280 x 900. "First chart" and "ready" are
seconds from the start of loading, by the browser's own clock. "CPU" is what all processes of the browser used until
the page was ready: other jobs on the machine hardly change it. Shown are medians and ranges. Needs Chromium and Linux.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from browser import Browser, find_browser
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.report import ReportedRun, write_report
from holdfast.diagnose.report.charts import CHARTS
from measuring import table, write_json

FIRST = "performance.getEntriesByName('first chart')[0].startTime / 1000"
READY = "performance.getEntriesByName('ready')[0].startTime / 1000"


def long_run(steps: int, seed: int = 0) -> ReportedRun:
    """A made-up run with every series of the charts: slow drifts under noise."""
    rng = np.random.default_rng(seed)
    names = sorted({line.series for chart in CHARTS for row in chart.rows for line in row.lines})
    at = np.arange(steps)
    series = {
        name: Series(at, 0.5 + 0.002 * rng.standard_normal(steps).cumsum() + 0.1 * rng.standard_normal(steps))
        for name in names
    }
    settings = {"train": {"lr": 10.0 ** -(seed % 5)}, "run": {"seed": seed}}
    log = Log(format="holdfast", host="holdfast", name=f"run-{seed}", series=series, steps=at, settings=settings)
    return ReportedRun(log=log, diagnosis=diagnose(log))


def opened(browser: Browser, page: Path) -> dict[str, float]:
    """Seconds of one opening."""
    before = browser.cpu_seconds()
    browser.open(page)
    return {"first chart": browser.js(FIRST), "ready": browser.js(READY), "CPU": browser.cpu_seconds() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    program = find_browser()
    if program is None:
        sys.exit("no Chromium is installed")
    raw: dict[str, Any] = {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(program, Path(folder) / "profile")
        runs = [long_run(10_000, seed) for seed in range(20)]
        for label, shown in (("one run of 10,000 steps", runs[:1]), ("twenty of them", runs)):
            page = write_report(Path(folder) / "page.html", shown)
            measured = [opened(browser, page) for _ in range(options.times)]
            raw[label] = {"bytes": page.stat().st_size, "seconds": measured}
            cells = [f"{page.stat().st_size / 1e6:.1f}"]
            for name in measured[0]:
                values = [one[name] for one in measured]
                cells.append(f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
            rows.append((label, *cells))
        browser.close()
    print(table(["page", "MB", "first chart, s", "ready, s", "CPU, s"], rows))
    write_json(options.json, raw)


if __name__ == "__main__":
    main()
