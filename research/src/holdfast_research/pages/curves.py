"""An experiment of the study as a page of the documentation: research/docs/NAME.md and its figures.

    holdfast reproduce run death-spiral --jobs 2
    python -m holdfast_research.pages.curves runs/lab/death-spiral
    python -m holdfast_research.pages.curves --kept       # all pages, from the runs in the repository

The words and numbers are those of the experiment's page.md, which every `holdfast reproduce` writes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from holdfast.base.files import write_whole
from holdfast_research.figures import draw
from holdfast_research.pages.kept_runs import restore
from holdfast_research.paths import DOCS, KEPT_RUNS
from holdfast_research.plan import PLAN_FILE, finished, load_plan
from holdfast_research.results import markdown, results_of
from holdfast_research.values import Experiment, Figure, Runs

SHOWN = (
    *("reward/mean", "displacement/correct", "likelihood/correct", "entropy/mean"),
    *("advantage/token_mean", "advantage/tail_mean", "sampler/mask_mass", "rollout/searches", "ratio/log_product"),
    *("rollout/first_action_match_fraction", "likelihood/correct/action_1", "likelihood/correct/action_2"),
    *("displacement/fraction", "displacement/incorrect", "sampler/logprob_gap"),
    *("isdd/positive/below_half", "clip/fraction", "rollout/invalid_fraction"),
)
"""The others are in the experiment's own index.html."""


def runs_of(out: Path) -> tuple[Experiment, Runs]:
    """The experiment in a folder of `holdfast reproduce`, and its finished runs."""
    plan = load_plan(out)
    return plan.experiment, finished(plan.jobs(out))


def alone(svg: str) -> str:
    """A drawing made for a page, as a file of its own: on white, in black."""
    opened = svg.index(">") + 1
    paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return (svg[:opened] + paper + svg[opened:]).replace("currentColor", "#1a1a1a").replace("inherit", "sans-serif")


def figures(experiment: Experiment, runs: Runs) -> Iterator[tuple[Figure, str, str]]:
    """(figure, file name, drawing) of each figure that some run has."""
    for i, figure in enumerate(experiment.figures):
        if figure.metric in SHOWN and (svg := draw(figure, runs, key=f"f{i}")):
            yield figure, f"{experiment.name}-{i:02d}-{figure.metric.replace('/', '-')}.svg", alone(svg)


def write_page(out: Path) -> Path:
    """DOCS/NAME.md and its figures, from a folder that has the experiment's page.md."""
    experiment, runs = runs_of(out)
    for old in (DOCS / "figures").glob(f"{experiment.name}-[0-9]*.svg"):
        old.unlink()
    (DOCS / "figures").mkdir(parents=True, exist_ok=True)
    lines = ["", "## Curves", "", "Means of five steps. Thick: the mean over seeds; thin: every seed.", ""]
    for figure, name, svg in figures(experiment, runs):
        write_whole(DOCS / "figures" / name, svg)
        shown = f"{figure.title}: {', '.join(arm for arm in figure.arms if arm in runs)}"
        lines.append(f"![{shown}](figures/{name})")
    write_whole(DOCS / f"{experiment.name}.md", (out / "page.md").read_text() + "\n".join(lines) + "\n")
    return DOCS / f"{experiment.name}.md"


def write_kept_page(name: str) -> Path:
    """The same, from the runs in the repository."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        restore(name, out)
        plan, runs = load_plan(out), runs_of(out)[1]
        write_whole(out / "page.md", markdown(results_of(plan, runs, out)))
        return write_page(out)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="*", help="of `holdfast reproduce run`")
    parser.add_argument("--kept", action="store_true", help="every experiment whose runs are in the repository")
    options = parser.parse_args()
    for out in options.folder:
        print(write_page(out))
    for plan in sorted(KEPT_RUNS.glob(f"*/{PLAN_FILE}")) if options.kept else ():
        print(write_kept_page(plan.parent.name))


if __name__ == "__main__":
    main()
