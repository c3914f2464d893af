"""docs/reference/gallery.md: recorded runs, what `holdfast diagnose` prints about each, and a chart. What it prints
about the first stands in docs/guide/diagnose.md.

    python -m holdfast_research.pages.gallery

Every run is one of the recordings, so the page changes only with the
rules.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("svg")

from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.diagnose.readers import read_log
from holdfast_research.pages.diagnose_figures import FIGURES, draw, style
from holdfast_research.pages.filling import filled
from holdfast_research.paths import REPOSITORY
from holdfast_research.recordings.library import FOLDER, folder_of, read_manifest, unpack

PAGE = REPOSITORY / "docs" / "reference" / "gallery.md"
GUIDE = REPOSITORY / "docs" / "guide" / "diagnose.md"


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

    @property
    def figure(self) -> Path:
        """The chart."""
        return FIGURES / f"gallery-{self.name}.svg"


PRACTICE = folder_of("practice")
RUNS = (
    Shown("The likelihood of correct rollouts decays, and the reward follows", FOLDER, "collapse-grpo-80-s3",
          ("displacement/correct", "likelihood/correct")),
    Shown("A reward function is hacked", PRACTICE, "uniform-interleaving",
          ("rewards/placed/mean", "rewards/style/mean"), stock=True),
    Shown("A healthy run with a noisy reward", PRACTICE, "noisy-doubling", ("entropy/mean",), stock=True),
)  # fmt: skip
"""In the order of the page."""
GUIDES = (
    "[Diagnose](../guide/diagnose.md#how-to-read-the-answer) has what the command prints, and explains it line by line."
)


def section(shown: Shown) -> str:
    """The part of the page about one run."""
    return f"""
## {shown.title}

![{shown.title}](../figures/{shown.figure.name})

{GUIDES if shown is RUNS[0] else output(shown)}
"""


def output(shown: Shown) -> str:
    """What the command prints about a run, as a block of code."""
    with tempfile.TemporaryDirectory() as folder:
        done = CliRunner().invoke(app, ["diagnose", str(log_of(shown, Path(folder)))], env={"COLUMNS": "80"})
    if done.exit_code > 1:
        raise RuntimeError(done.output)
    return f"```\n{done.stdout.strip()}\n```"


def log_of(shown: Shown, folder: Path) -> Path:
    """The log of a run, unpacked into `folder`."""
    recording = next(row for row in read_manifest(shown.folder) if row.name == shown.name)
    return unpack(recording, folder, shown.folder, stock=shown.stock)


def pages() -> dict[Path, str]:
    """The pages as they should be: the gallery below its introduction, and what the guide shows of it."""
    introduction = PAGE.read_text(encoding="utf-8").partition("\n## ")[0]  # which is written by hand
    return {
        PAGE: "".join([introduction, *map(section, RUNS)]),
        GUIDE: filled(GUIDE.read_text(encoding="utf-8"), {"gallery": output(RUNS[0])}),
    }


def main() -> None:
    """The command line."""
    style()
    for shown in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            draw(read_log(log_of(shown, Path(folder))), shown.series, shown.figure)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(f"Wrote {path}")


if __name__ == "__main__":
    main()
