"""The pictures of docs/reference/report.md, taken of the pages of two runs.

    holdfast train collapse --train.steps 26 --run.name grpo
    holdfast train collapse --train.steps 26 --run.name llds-0.2 --loss.penalty.name llds --loss.penalty.coef 0.2
    python -m tools.report_pictures runs/grpo runs/llds-0.2

The first run has a page of its own: its head, and the rollouts that a finding leads to. Both have a third picture. The
runs take five minutes on two cores. Needs Chromium.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.browser import Browser, find_browser

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.readers import read_log
from holdfast.diagnose.report import reported, write_report

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
TO_ROLLOUTS = "document.querySelector('.findings a[href*=\"step=\"]').click()"
REST = "new Promise((then) => setTimeout(then, 500))"


def main() -> None:
    """Replace the three pictures."""
    program = find_browser()
    if program is None or len(sys.argv) != 3:
        sys.exit("no Chromium is installed" if program is None else __doc__)
    logs = [(read_log(path), path) for path in map(Path, sys.argv[1:])]
    runs = [reported(log, diagnose(log), path) for log, path in logs]
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
            (FIGURES / name).write_bytes(browser.picture())
        browser.close()


if __name__ == "__main__":
    main()
