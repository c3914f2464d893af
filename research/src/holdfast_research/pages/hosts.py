"""The recipes `flaky` and `factbook` on three trainers: research/docs/hosts.md and its curves, from what is kept.

    python -m holdfast_research.pages.hosts keep flaky TRAINERS.JSON VERL/SERIES.JSON     # what the benchmarks wrote
    python -m holdfast_research.pages.hosts keep factbook TRAINERS.JSON --scores SCORES.JSON
    python -m holdfast_research.pages.hosts                                               # the page again

`benchmarks/trainers.py` and `benchmarks/verl_runs.py` make the runs. The words of the page are between its tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.base.files import write_whole
from holdfast.diagnose.log.collapse import fell
from holdfast_research.figures import draw
from holdfast_research.pages.curves import alone
from holdfast_research.pages.filling import filled
from holdfast_research.paths import DOCS, REPOSITORY
from holdfast_research.series import RunSeries
from holdfast_research.values import Figure

KEPT = {name: REPOSITORY / f"benchmarks/hosts_{name}.json" for name in ("flaky", "factbook")}
PAGE = DOCS / "hosts.md"
START = "start"
"""Of the scores: those of the model that all runs begin from."""
TRAINERS = {"local": "holdfast train", "trl": "TRL", "verl": "verl"}
ARMS = {"grpo": "GRPO", "llds": "LLDS", "mask": "mask"}
METRICS = {"reward": "reward/mean", "entropy": "entropy/mean"}
SCORES = {"em": ".3f", "f1": ".3f", "searches": ".2f"}

Runs = dict[str, dict[str, list[RunSeries]]]
"""By trainer and arm."""


def keep(recipe: str, files: Iterable[Path], scores: Path | None = None) -> None:
    """Put the series of the runs into the repository, and their scores. verl's runs have no trainer in their names."""
    file = KEPT[recipe]
    kept = json.loads(file.read_text()) if file.is_file() else {}
    for source in files:
        for name, rows in json.loads(source.read_text()).items():
            kept[_full(name)] = {key: [round(row[key], 4) for row in rows] for key in METRICS}
    if scores is not None:
        for name, values in json.loads(scores.read_text()).items():
            kept.setdefault(name if name == START else _full(name), {})["scores"] = values
    lines = [f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept)]
    write_whole(file, "{\n" + ",\n".join(lines) + "\n}\n")


def _full(name: str) -> str:
    return name if name.count("-") == 2 else f"verl-{name}"


def kept_runs(recipe: str) -> Runs:
    """The runs in the repository; a step is a rollout batch, the first is 1."""
    runs: Runs = {name: {} for name in TRAINERS.values()}
    kept = json.loads(KEPT[recipe].read_text())
    start = kept.pop(START, {}).get("scores", {})
    for name, series in kept.items():
        trainer, arm, seed = name.split("-")
        columns = [series[key] for key in METRICS]
        rows = [
            {"step": i, **dict(zip(METRICS.values(), row, strict=True))}
            for i, row in enumerate(zip(*columns, strict=True), start=1)
        ]
        results = {"before": start, "after": series.get("scores", {})}
        run = RunSeries(arm=ARMS[arm], seed=int(seed[1:]), rows=tuple(rows), results=results)
        runs[TRAINERS[trainer]].setdefault(run.arm, []).append(run)
    return runs


def row(trainer: str, run: RunSeries) -> str:
    """A run in the table: means of five batches."""
    steps, rewards = run.means("reward/mean")
    _, entropy = run.means("entropy/mean")
    fall = fell(run.reward)
    peak = max(reward for step, reward in zip(steps, rewards, strict=True) if fall is None or step <= fall.step)
    return (
        f"| {trainer} | {run.arm} | {run.seed} | {rewards[0]:.2f}, {peak:.2f}, {rewards[-1]:.2f} | "
        f"{fall.step if fall else '–'} | {entropy[0]:.2f}, {entropy[-1]:.2f} |"
    )


def table(runs: Runs) -> str:
    """All runs, and how many of each arm fell."""
    lines = [
        "| trainer | loss | seed | reward: first, peak, last | fell at | entropy: first, last |",
        "|---|---|---|---|---|---|",
        *(row(trainer, run) for trainer, arms in runs.items() for seeds in arms.values() for run in seeds),
        "",
        "| fell | " + " | ".join(ARMS.values()) + " |",
        "|---" * (1 + len(ARMS)) + "|",
        *(f"| {name} | {' | '.join(_tally(arms, arm) for arm in ARMS.values())} |" for name, arms in runs.items()),
    ]
    return "\n".join(lines) + "\n"


def scored_table(runs: Runs) -> str:
    """All runs, with what their models answered before and after."""
    lines = [
        "| trainer | loss | seed | exact match | F1 | searches | reward first → last | entropy | batches |",
        "|---" * 9 + "|",
        *(scored_row(name, run) for name, arms in runs.items() for seeds in arms.values() for run in seeds),
    ]
    return "\n".join(lines) + "\n"


def scored_row(trainer: str, run: RunSeries) -> str:
    """A run in that table."""
    before, after = run.results["before"], run.results["after"]
    scores = " | ".join(f"{before[key]:{form}} → {after[key]:{form}}" for key, form in SCORES.items())
    _, rewards = run.means("reward/mean")
    _, entropy = run.means("entropy/mean")
    return (
        f"| {trainer} | {run.arm} | {run.seed} | {scores} | {rewards[0]:.2f} → {rewards[-1]:.2f} | "
        f"{entropy[0]:.2f} → {entropy[-1]:.2f} | {len(run.rows)} |"
    )


def _tally(arms: Mapping[str, list[RunSeries]], arm: str) -> str:
    seeds = arms.get(arm, [])
    return f"{sum(run.fell for run in seeds)} of {len(seeds)}" if seeds else "not run"


def curves(runs: Runs) -> str:
    """The figures' files, and the lines that show them."""
    lines = []
    for trainer, arms in runs.items():
        shown = tuple(arm for arm in ARMS.values() if arm in arms)
        figure = Figure(metric="reward/mean", title=f"Reward: {trainer}", arms=shown)
        name = f"hosts-{trainer.replace(' ', '-').lower()}.svg"
        if svg := draw(figure, {arm: tuple(seeds) for arm, seeds in arms.items()}, key=name[:-4]):
            write_whole(DOCS / "figures" / name, alone(svg))
            lines.append(f"![{figure.title}: {', '.join(shown)}](figures/{name})")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with its runs."""
    runs = kept_runs("flaky")
    tables = {"flaky": f"{table(runs)}\n{curves(runs)}", "factbook": scored_table(kept_runs("factbook"))}
    return filled(text, tables)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    keeping = commands.add_parser("keep", help="put the series of these files into the repository")
    keeping.add_argument("recipe", choices=KEPT)
    keeping.add_argument("files", nargs="*", type=Path)
    keeping.add_argument("--scores", type=Path, help="scores.json of benchmarks/trainers.py --evaluate")
    options = parser.parse_args()
    if options.command == "keep":
        keep(options.recipe, options.files, options.scores)
    write_whole(PAGE, page(PAGE.read_text()))
    print(PAGE)


if __name__ == "__main__":
    main()
