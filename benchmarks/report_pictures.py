"""The pictures of docs/reference/report.md, taken of the pages of runs.

    for seed in 11 12 13; do
      holdfast train flaky --run.seed $seed --train.steps 45 --run.name flaky-$seed --run.threads 1
    done
    python benchmarks/report_pictures.py runs/flaky-12 runs/flaky-11 runs/flaky-13

The first run has a page of its own: its head, and the rollouts that a finding leads to. All runs together have a
third picture. The runs take a quarter of an hour on two cores. Needs Chromium.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from browser import Browser, find_browser
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.readers import read_log
from holdfast.diagnose.report import reported, write_report

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
TO_ROLLOUTS = "document.querySelector('.findings a[href*=\"outcome=correct\"]').click()"
REST = "new Promise((then) => setTimeout(then, 500))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=FIGURES)
    options = parser.parse_args()
    program = find_browser()
    if program is None:
        sys.exit("no Chromium is installed")
    runs = []
    for path in options.runs:
        log = read_log(path)
        runs.append(reported(log, diagnose(log), path))
    pictures = {
        "report.png": (runs[:1], []),
        "report-episodes.png": (runs[:1], [TO_ROLLOUTS, REST]),
        "report-runs.png": (runs, []),
    }
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(program, Path(folder) / "profile")
        for name, (shown, actions) in pictures.items():
            browser.open(write_report(Path(folder) / "page.html", shown), width=1200)
            for action in actions:
                browser.js(action)
            (options.out / name).write_bytes(browser.picture())
            print(f"Wrote {options.out / name}")
        browser.close()


if __name__ == "__main__":
    main()
