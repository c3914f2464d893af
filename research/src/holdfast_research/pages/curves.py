"""An experiment of the study as a page of the documentation: research/docs/NAME.md, its figures, and its runs as CSV.

    holdfast reproduce run death-spiral --jobs 2
    python -m holdfast_research.pages.curves runs/lab/death-spiral
    python -m holdfast_research.pages.curves --kept       # all pages, from the runs in the repository

The page has what the experiment found. Everything else is in the index.html that `holdfast reproduce` writes, what the
papers claim is in claims.md, and words and columns are explained once, in research/docs/README.md.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.base.files import write_whole
from holdfast_research import results as r
from holdfast_research.figures import draw
from holdfast_research.pages.filling import filled
from holdfast_research.pages.kept_runs import restore
from holdfast_research.paths import DOCS, KEPT_RUNS
from holdfast_research.plan import PLAN_FILE, finished, load_plan
from holdfast_research.values import CONTROL, Experiment, Figure, Runs

SHOWN = (
    *("reward/mean", "displacement/correct", "entropy/mean", "sampler/mask_mass", "sampler/logprob_gap"),
    *("rollout/searches", "rollout/first_action_match_fraction", "displacement/fraction"),
    *("likelihood/correct/action_1", "likelihood/correct/action_2"),
)
"""The others are in the experiment's own index.html."""
COLUMNS = ("arm", "fell", "reward at its peak → last", "entropy, last", "test EM", "greedy")
CLAIMS = ("control, or prediction", "test", "verdict")
SMALL = (
    *("anchor", "coefficient", "first-action", "masking", "per-sample", "preserving", "second-search"),
    "steps-per-rollout",
)
"""Experiments behind rows of claims.md that nothing else is said of: sections of one page, without figures."""
SMALL_PAGE = DOCS / "smaller.md"
COUNT = re.compile(r"on (\d+ of \d+) seeds \(([\d.]+) to ([\d.]+)\)")


def runs_of(out: Path) -> tuple[Experiment, Runs]:
    """The experiment in a folder of `holdfast reproduce`, and its finished runs."""
    plan = load_plan(out)
    return plan.experiment, finished(plan.jobs(out))


def link(experiment: str) -> str:
    """Where a page of the study finds an experiment's arms and controls."""
    return f"smaller.md#{experiment}" if experiment in SMALL else f"{experiment}.md"


def section_of(results: Mapping[str, Any]) -> str:
    """An experiment of `SMALL`: its arms, and what no paper claims."""
    name = results["experiment"]
    lines = [f"## {name}", "", r.sentence(results["shows"]), "", "```bash", results["command"], "```", ""]
    lines += [*(f"* {note}" for note in results["notes"]), *(f"* {line}" for line in missing(results))]
    lines += [f"* [Every run](../data/laboratory/{name}/runs.csv), as CSV.", ""]
    lines += [*_table(COLUMNS, arm_rows(results)), "", *_table(CLAIMS, claim_rows(results)), ""]
    return "\n".join(lines)


def text_of(results: Mapping[str, Any]) -> str:
    """The page without its figures, from what results.json holds."""
    lines = [f"# {results['title']}", "", r.sentence(results["shows"]), "", "```bash", results["command"], "```", ""]
    lines += [f"**{line}**\n" for line in r.start_lines(results)]
    lines += [f"* {note}" for note in results["notes"]]
    seeds = ", ".join(map(str, results["seeds"]))
    lines += [
        "",
        f"Recipe `{results['recipe']}`, seeds {seeds}. [How to read this page](README.md#how-to-read-a-page).",
    ]
    lines += ["", *_table(COLUMNS, arm_rows(results)), "", *(f"* {line}" for line in missing(results))]
    if results["sweep"]["made"] and results["sweep"]["arms"]:
        lines += ["", *(f"* {line}" for line in r.sweep_lines(results))]
    lines += ["", "## Claims", ""]
    if papers := [claim["verdict"] for claim in results["claims"] if claim["paper"] != CONTROL]:
        counts = ", ".join(f"{papers.count(word)} {word}" for word in dict.fromkeys(papers))
        lines += [f"Of the papers' claims: {counts}. [The papers' claims](claims.md) has each.", ""]
    lines += _table(CLAIMS, claim_rows(results))
    return "\n".join(lines) + "\n"


def arm_rows(results: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """The cells of `COLUMNS` for each arm that has runs."""
    for arm in results["arms"]:
        if arm["runs"]:
            cells = dict(zip(r.ARM_COLUMNS, r.arm_row(arm), strict=True))
            yield [cells["arm"], *(cells[column].replace(" to ", "–") for column in COLUMNS[1:])]


def missing(results: Mapping[str, Any]) -> Iterator[str]:
    """Arms without a run, in one line, and the seeds that others lack."""
    none = [arm["name"] for arm in results["arms"] if not arm["runs"]]
    lacking: dict[str, list[str]] = {}
    for arm, seed in (name.rsplit(", seed ", 1) for name in results["unfinished"]):
        if not arm.startswith(tuple(none)):
            lacking.setdefault(arm, []).append(seed)
    by_seeds: dict[str, list[str]] = {}
    for arm, seeds in lacking.items():
        by_seeds.setdefault(", ".join(seeds), []).append(arm)
    if none:
        yield f"Not run: {'; '.join(none)}."
    for these, arms in by_seeds.items():
        yield f"No seeds {these}: {'; '.join(arms)}."


def claim_rows(results: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """What no paper claims, with its test and verdict. Arms of which the same is said share a row."""
    names = sorted((arm["name"] for arm in results["arms"]), key=len, reverse=True)
    rows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for claim in results["claims"]:
        if claim["paper"] == CONTROL:
            arm = next((name for name in names if claim["says"].startswith(f"{name} ")), "")
            rest = claim["says"].removeprefix(arm)
            rows.setdefault((rest, claim["asks"]), []).append((arm, shown(claim["verdict"], claim["because"])))
    for (rest, asks), verdicts in rows.items():
        if len(verdicts) == 1:
            ((arm, word),) = verdicts
            yield arm + rest, asked(asks), word
        else:
            yield f"…{rest}", asked(asks), "<br>".join(f"{arm}: {word}" for arm, word in verdicts)


def asked(test: str) -> str:
    """A test without what all comparisons of scores share, which README.md says once."""
    return test.replace(", seed by seed, differences of 0.03 or less left out", "")


def shown(word: str, because: str) -> str:
    """A verdict with its count of seeds and the interval; where there is no count, with the reason.

    >>> shown("partly", "it fell on 2 of 3 seeds (0.21 to 0.94)"), shown("cannot tell", "no seed can answer")
    ('**partly**, 2 of 3 (0.21–0.94)', '**cannot tell**: no seed can answer')
    """
    if counted := COUNT.search(because):
        count, low, high = counted.groups()
        return f"**{word}**, {count} ({low}–{high}){because[counted.end() :]}"
    return f"**{word}**: {because}"


def _table(columns: Sequence[str], rows: Iterator[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *(f"| {' | '.join(row)} |" for row in rows)]


def runs_as_csv(results: Mapping[str, Any]) -> str:
    """A row a run: all numbers of the page and more."""
    rows = [{"arm": arm["name"], "seed": seed} | run for arm in results["arms"] for seed, run in arm["runs"].items()]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: f"{v:.4g}" if isinstance(v, float) else v for key, v in row.items()} for row in rows)
    return file.getvalue()


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
    """DOCS/NAME.md, its figures and KEPT_RUNS/NAME/runs.csv, from the finished runs of a folder."""
    plan = load_plan(out)
    experiment, runs = runs_of(out)
    results = r.results_of(plan, runs, out)
    write_whole(KEPT_RUNS / experiment.name / "runs.csv", runs_as_csv(results))
    if experiment.name in SMALL:
        return write_section(experiment.name, section_of(results))
    for old in (DOCS / "figures").glob(f"{experiment.name}-[0-9]*.svg"):
        old.unlink()
    (DOCS / "figures").mkdir(parents=True, exist_ok=True)
    lines = ["", "## Curves", ""]
    for figure, name, svg in figures(experiment, runs):
        write_whole(DOCS / "figures" / name, svg)
        arms = ", ".join(arm for arm in figure.arms if arm in runs)
        lines.append(f"![{figure.title}: {arms}](figures/{name})")
    lines += ["", f"[Every run](../data/laboratory/{experiment.name}/runs.csv), as CSV."]
    write_whole(DOCS / f"{experiment.name}.md", text_of(results) + "\n".join(lines) + "\n")
    return DOCS / f"{experiment.name}.md"


def write_section(name: str, section: str) -> Path:
    """An experiment's section of `SMALL_PAGE`, in place of the one that is there."""
    text = SMALL_PAGE.read_text(encoding="utf-8")
    write_whole(SMALL_PAGE, filled(text, {name: section}))
    return SMALL_PAGE


def write_kept_page(name: str) -> Path:
    """The same, from the runs in the repository."""
    with tempfile.TemporaryDirectory() as folder:
        restore(name, Path(folder))
        return write_page(Path(folder))


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
