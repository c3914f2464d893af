"""docs/reference/gallery.md: recorded runs, what `holdfast diagnose` prints about each, and a chart.

    python -m holdfast_research.pages.gallery

Every run is one of the recordings, so the page changes only with the
rules.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("svg")

from holdfast.diagnose.readers import read_log
from holdfast_research.pages.diagnose_figures import FIGURES, draw, style
from holdfast_research.paths import REPOSITORY
from holdfast_research.recordings.library import FOLDER, folder_of, read_manifest, unpack

PAGE = REPOSITORY / "docs" / "reference" / "gallery.md"


@dataclass(frozen=True, slots=True)
class Shown:
    """A run of the gallery."""

    title: str
    folder: Path
    name: str
    series: tuple[str, ...]
    """The series of the chart, below the reward."""
    stock: bool = False
    """Whether the observer's series are left out, as in a run that did not use it."""


PRACTICE = folder_of("practice")
RUNS = (
    Shown("The likelihood of correct rollouts decays, and the reward follows", FOLDER, "collapse-grpo-80-s3",
          ("displacement/correct", "likelihood/correct")),
    Shown("A reward function is hacked", PRACTICE, "uniform-interleaving",
          ("rewards/placed/mean", "rewards/style/mean"), stock=True),
    Shown("A healthy run with a noisy reward", PRACTICE, "noisy-doubling", ("entropy/mean",), stock=True),
)  # fmt: skip
"""In the order of the page."""


def section(shown: Shown, folder: Path) -> str:
    """The part of the page about one run; draws its chart. The log is unpacked into `folder`."""
    recording = next(row for row in read_manifest(shown.folder) if row.name == shown.name)
    log_file = unpack(recording, folder, shown.folder, stock=shown.stock)
    figure = FIGURES / f"gallery-{shown.name}.svg"
    draw(read_log(log_file), shown.series, figure)
    return f"""
## {shown.title}

![{shown.title}](../figures/{figure.name})

```
{printed(log_file)}
```
"""


def printed(log_file: Path) -> str:
    """What the command prints about a log."""
    command = [sys.executable, "-m", "holdfast", "diagnose", str(log_file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "80"})
    if done.returncode > 1:
        raise RuntimeError(done.stderr)
    return done.stdout.strip()


def main() -> None:
    """The command line."""
    style()
    introduction = PAGE.read_text(encoding="utf-8").partition("\n## ")[0]  # which is written by hand
    parts = [introduction]
    for shown in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            parts.append(section(shown, Path(folder)))
    PAGE.write_text("".join(parts), encoding="utf-8")
    print(f"Wrote {PAGE}")


if __name__ == "__main__":
    main()
