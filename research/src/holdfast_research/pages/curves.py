"""An experiment of the laboratory as a page of the documentation: research/docs/NAME.md and its figures.

    holdfast reproduce run death-spiral --jobs 2
    python -m holdfast_research.pages.curves runs/lab/death-spiral

The words and numbers are those of the experiment's page.md, which every `holdfast reproduce` writes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from holdfast.cli.recipes import find as find_recipe
from holdfast.files import write_whole
from holdfast_research.experiments import find
from holdfast_research.figures import draw
from holdfast_research.paths import DOCS
from holdfast_research.plan import finished, load_plan, planned_runs
from holdfast_research.values import Experiment, Figure, Runs

SHOWN = (
    *("reward/mean", "displacement/correct", "likelihood/correct", "entropy/mean"),
    *("advantage/token_mean", "advantage/tail_mean", "sampler/mask_mass", "rollout/searches", "ratio/log_product"),
    *("rollout/first_action_match_fraction", "likelihood/correct/action_1", "likelihood/correct/action_2"),
    *("displacement/fraction", "displacement/incorrect"),
)
"""The others are in the experiment's own index.html."""


def runs_of(out: Path) -> tuple[Experiment, Runs]:
    """The experiment in a folder of `holdfast reproduce`, and its finished runs."""
    plan = load_plan(out)
    experiment = find(plan.experiment)
    return experiment, finished(planned_runs(plan, experiment, find_recipe(experiment.recipe), out))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+", help="of `holdfast reproduce`")
    for out in parser.parse_args().folder:
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
        print(f"{DOCS / experiment.name}.md")


if __name__ == "__main__":
    main()
