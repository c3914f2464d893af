"""An experiment of the study as a page of the documentation: research/docs/NAME.md, its figure, and its runs as CSV.

    holdfast reproduce run death-spiral --jobs 2
    python -m holdfast_research.pages.curves runs/lab/death-spiral
    python -m holdfast_research.pages.curves --kept       # all pages, from the runs in the repository

The page has the question, the setting, what was found, and what was not run. Everything else is in the index.html that
`holdfast reproduce` writes, what the papers claim is in claims.md, and words and columns are explained once, in
research/docs/README.md.
"""

from __future__ import annotations

import argparse
import csv
import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.base.files import write_whole
from holdfast_research import results as r
from holdfast_research.figures import draw
from holdfast_research.pages.filling import filled
from holdfast_research.pages.kept_runs import restore
from holdfast_research.paths import DOCS, KEPT_RUNS
from holdfast_research.plan import PLAN_FILE, finished, load_plan
from holdfast_research.values import CONTROL, Experiment, Runs

COLUMNS = ("arm", "seeds", "fell", "surged", "reward, last", "test EM", "greedy")
CLAIMS = ("prediction or control", "test", "verdict")
SMALL = (
    *("anchor", "coefficient", "first-action", "masking", "per-sample", "preserving", "second-search"),
    "steps-per-rollout",
)
"""Experiments behind rows of claims.md that nothing else is said of: sections of one page, without figures."""
SMALL_PAGE = DOCS / "smaller.md"
GREEDY = "greedy "


def runs_of(out: Path) -> tuple[Experiment, Runs]:
    """The experiment in a folder of `holdfast reproduce`, and its finished runs."""
    plan = load_plan(out)
    return plan.experiment, finished(plan.jobs(out))


def link(experiment: str) -> str:
    """Where a page of the study finds an experiment's arms and controls."""
    return f"smaller.md#{experiment}" if experiment in SMALL else f"{experiment}.md"


def _seeds(seeds: Sequence[Any]) -> str:
    return f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}"


def text_of(results: Mapping[str, Any], picture: Sequence[str] = ()) -> str:
    """The page, or the section of an experiment of `SMALL`, from what results.json holds. `picture` is its line."""
    name, level = results["experiment"], "#" * (1 + (results["experiment"] in SMALL))
    title = name if name in SMALL else results["title"]
    command = f"holdfast reproduce run {name} --seeds {len(results['seeds'])}"
    lines = [f"{level} {title}", "", r.sentence(results["shows"]), "", "```bash", command, "```", ""]
    lines += [f"**{line}**\n" for line in r.start_lines(results)]
    lines += [f"* {note}" for note in results["notes"]]
    runs = f"[every run](../data/laboratory/{name}/runs.csv)"
    lines += [f"* Recipe `{results['recipe']}`, {_seeds(results['seeds'])}: {runs}, and"]
    lines += ["  [how to read this page](README.md#how-to-read-a-page).", ""]
    lines += [*_table(COLUMNS, map(arm_row, (arm for arm in results["arms"] if arm["runs"]))), "", *picture]
    if name not in SMALL:
        lines += [*([""] if picture else []), f"{level}# What we conclude", ""]
    if papers := [claim["verdict"] for claim in results["claims"] if claim["paper"] != CONTROL]:
        counts = ", ".join(f"{papers.count(word)} {word}" for word in dict.fromkeys(papers))
        lines += [f"[The papers' claims](claims.md): {counts}.", ""]
    if rows := [*claim_rows(results)]:
        lines += [*_table(CLAIMS, rows), ""]
    if gaps := [*results["not_run"], *missing(results)]:
        heading = "We did not run:" if name in SMALL else f"{level}# What we did not run"
        lines += [heading, "", *(f"* {line}" for line in gaps), ""]
    return "\n".join(lines)


def arm_row(arm: Mapping[str, Any]) -> Sequence[str]:
    """The cells of `COLUMNS`: means over seeds, of test EM also the lowest and the highest."""
    runs = list(arm["runs"].values())
    name = arm["name"] + (f", {arm['coefficient']}" if arm["coefficient"] else "")
    # The reward of stale rollouts is that of older weights: it does not say whether those that learn fell.
    fell = "–" if arm["settings"].get("train.staleness") else f"{sum(run['fell'] for run in runs)}"
    tests = sum(run["em_after"] is not None for run in runs)
    few = "" if tests == len(runs) else f", n = {tests}"
    return (
        name,
        str(len(runs)),
        fell,
        f"{sum(run['surged'] for run in runs)}",
        r.mean_and_range((run["last"] for run in runs), ".2f").partition(" ")[0],
        r.mean_and_range((run["em_after"] for run in runs), ".2f").replace(" to ", "–") + few,
        r.mean_and_range((run["greedy_after"] for run in runs), ".2f").partition(" ")[0],
    )


def missing(results: Mapping[str, Any]) -> Iterator[str]:
    """Arms without a run, in one line, and the seeds that others lack."""
    none = [arm["name"] for arm in results["arms"] if not arm["runs"]]
    lacking: dict[str, list[str]] = {}
    for arm, seed in (name.rsplit(", seed ", 1) for name in results["unfinished"]):
        if not arm.startswith(tuple(none)):
            lacking.setdefault(arm, []).append(seed)
    by_seeds: dict[str, list[str]] = {}
    for arm, seeds in lacking.items():
        by_seeds.setdefault(_seeds(seeds), []).append(arm)
    if none := [*none, *results["left_out"]]:
        yield f"Arms: {'; '.join(none)}." if len(none) < 10 else f"{len(none)} more arms of the experiment's file."
    for these, arms in by_seeds.items():
        named = "; ".join(arms) if len(arms) < 4 else f"{len(arms)} arms, which the table shows"
        yield f"{these.capitalize()}: {named}."


def claim_rows(results: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """What no paper claims, with its test and verdict. Arms of which the same is said share a row."""
    names = sorted((arm["name"] for arm in results["arms"]), key=len, reverse=True)
    rows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for claim in results["claims"]:
        if claim["paper"] == CONTROL:
            arm = next((name for name in names if claim["says"].startswith(f"{name} ")), "")
            rest = claim["says"].removeprefix(arm)
            word = shown(claim["decoding"], claim["verdict"], claim["yes"], claim["of"])
            rows.setdefault((rest, claim["asks"]), []).append((arm, word))
    for (rest, asks), verdicts in rows.items():
        arms = {arm: together([word for other, word in verdicts if other == arm]) for arm, _ in verdicts}
        if len(arms) == 1:
            ((arm, words),) = arms.items()
            yield arm + rest, asks, words
        else:
            yield f"…{rest}", asks, "<br>".join(f"{arm}: {words}" for arm, words in arms.items())


def shown(decoding: str, word: str, yes: int, of: int) -> str:
    """A verdict with its count of seeds, and whether it is of greedy answers.

    >>> shown("", "partly", 2, 3), shown("sampled", "cannot tell", 0, 0), shown("greedy", "shown", 3, 3)
    ('**partly** 2/3', '**cannot tell**', 'greedy **shown** 3/3')
    """
    return (GREEDY if decoding == "greedy" else "") + f"**{word}**" + (f" {yes}/{of}" if of else "")


def together(verdicts: Sequence[str]) -> str:
    """The verdicts of sampled and of greedy answers, which are said once where they are the same.

    >>> together(["**shown** 3/3", "greedy **shown** 3/3"]), together(["**shown** 3/3", "greedy **cannot tell**"])
    ('**shown** 3/3 both', '**shown** 3/3; greedy **cannot tell**')
    """
    same = len(verdicts) == 2 and verdicts[1] == f"{GREEDY}{verdicts[0]}"
    return f"{verdicts[0]} both" if same else "; ".join(verdicts)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
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


def picture_of(experiment: Experiment, runs: Runs) -> str:
    """The drawing of the page. Raises `MissingExtra` without matplotlib."""
    assert experiment.picture is not None
    svg = draw(experiment.picture, runs, key=experiment.name)
    assert svg, f"no run of {experiment.name} has {experiment.picture.metric}"
    return alone(svg)


def picture_line(experiment: Experiment, runs: Runs) -> list[str]:
    """The line that shows it; none without a picture."""
    if experiment.picture is None:
        return []
    arms = "; ".join(arm for arm in experiment.picture.arms if arm in runs)
    return [f"![{experiment.picture.title}: {arms}](figures/{experiment.name}.svg)"]


def write_page(out: Path) -> Path:
    """DOCS/NAME.md, its figure and KEPT_RUNS/NAME/runs.csv, from the finished runs of a folder."""
    plan = load_plan(out)
    experiment, runs = runs_of(out)
    results = r.results_of(plan, runs, out)
    write_whole(KEPT_RUNS / experiment.name / "runs.csv", runs_as_csv(results))
    text = text_of(results, picture_line(experiment, runs))
    if experiment.name in SMALL:
        return write_section(experiment.name, text)
    if experiment.picture is not None:
        (DOCS / "figures").mkdir(parents=True, exist_ok=True)
        write_whole(DOCS / "figures" / f"{experiment.name}.svg", picture_of(experiment, runs))
    write_whole(DOCS / f"{experiment.name}.md", text)
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
