"""docs/reference/gallery.md: recorded runs, what `holdfast diagnose` prints about each, and a chart.

    python -m holdfast_research.pages.gallery

Every run is one of the recordings, or made by hand (`holdfast_research.reported`), so the page changes only with the
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
from holdfast_research.reported import REPORTED, written

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
    Shown("One step is too large", PRACTICE, "giant-counting", ("entropy/mean", "rollout/length"), stock=True),
    Shown("A reward function is hacked", PRACTICE, "uniform-interleaving",
          ("rewards/placed/mean", "rewards/style/mean"), stock=True),
    Shown("A reward function broke", PRACTICE, "broken-counting", ("rollout/mixed_group_fraction",), stock=True),
    Shown("Rollouts are cut off", PRACTICE, "cut-doubling", ("rollout/truncated_fraction",), stock=True),
    Shown("The gradient does not reach the weights", PRACTICE, "cut-gradient-doubling", ("grad/norm",), stock=True),
    Shown("Observations are trained on", FOLDER, "rambler-leak-s1", ("loss/tokens", "rollout/length")),
    Shown("The retriever is down", FOLDER, "rambler-dead-s1", ("retrieval/error_fraction",)),
    Shown("A healthy run with a noisy reward", PRACTICE, "noisy-doubling", ("entropy/mean",), stock=True),
)  # fmt: skip
"""In the order of the page."""


@dataclass(frozen=True, slots=True)
class Made:
    """A log made by hand, of a failure that people report."""

    title: str
    case: str
    """A key of `REPORTED`."""
    host: str
    """A key of `HOSTS`."""
    series: tuple[str, ...]


MADE = (
    Made("The held-out score falls while the reward rises", "held-out score falls", "verl", ("eval/nq/score",)),
    Made("The agent stops calling its tool", "no calls", "trl", ("rollout/searches",)),
    Made("Tool calls fail", "calls fail", "trl", ("rollout/failed_call_fraction",)),
    Made("The learning rate is 0", "learning rate 0 later", "verl", ("lr",)),
    Made("The reward has not risen", "never learned", "prime-rl", ("entropy/mean",)),
    Made("The sampler does not get the new weights", "weights not synced", "prime-rl", ("sampler/mismatch_kl",)),
    Made("Rollouts are too old for the update", "stale rollouts", "prime-rl", ("rollout/staleness",)),
    Made("The format is lost again and again", "format spikes", "swift", ("rewards/format_reward/mean",)),
    Made("The policy is pulled back to its reference", "pulled back", "trl", ("kl/reference",)),
)
"""In the order of the page, after the recorded runs."""

_MADE = """
## Failures that people report

The logs from here on are made by hand, in the series names of TRL, verl, ms-swift or prime-rl
(`holdfast_research.reported`). They show what a finding looks like, and say nothing about how often it is right.
"""

_INTRODUCTION = """# Gallery

What `holdfast diagnose` prints about recorded runs: one for each of the most common faults, and a healthy one. The runs
are our own, of tiny models. The first is plain GRPO, which collapses by itself; the last is healthy. The others had a
fault added from outside. Runs of TRL are shown with the series of a stock log.

`holdfast diagnose LOG --html page.html` draws such charts for your own log, on a [page](report.md). This page is made
by `python -m holdfast_research.pages.gallery`, in a clone.
"""


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


def made_section(made: Made, folder: Path) -> str:
    """The part of the page about one log that is made by hand; draws its chart."""
    log_file = written(made.host, REPORTED[made.case].changes, folder)
    figure = FIGURES / f"gallery-{made.case.replace(' ', '-')}.svg"
    draw(read_log(log_file), made.series, figure)
    return f"""
### {made.title}

![{made.title}](../figures/{figure.name})

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
    parts = [_INTRODUCTION]
    for shown in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            parts.append(section(shown, Path(folder)))
    parts.append(_MADE)
    for made in MADE:
        with tempfile.TemporaryDirectory() as folder:
            parts.append(made_section(made, Path(folder)))
    PAGE.write_text("".join(parts), encoding="utf-8")
    print(f"Wrote {PAGE}")


if __name__ == "__main__":
    main()
