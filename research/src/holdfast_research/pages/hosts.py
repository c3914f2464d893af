"""The recipe `flaky` on three trainers: research/docs/hosts.md and its curves, from the series that are kept.

    python -m holdfast_research.pages.hosts keep TRAINERS.JSON VERL/SERIES.JSON     # what the benchmarks wrote
    python -m holdfast_research.pages.hosts                                         # the page again

`benchmarks/trainers.py` and `benchmarks/verl_runs.py` make the runs. The words of the page are between its tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.base.collapse import fell
from holdfast.base.files import write_whole
from holdfast_research.figures import draw
from holdfast_research.pages.curves import alone
from holdfast_research.paths import DOCS, REPOSITORY
from holdfast_research.series import RunSeries
from holdfast_research.values import Figure

KEPT, PAGE = REPOSITORY / "benchmarks/hosts_flaky.json", DOCS / "hosts.md"
BEGIN, END = "<!-- runs -->\n", "<!-- end of the runs -->\n"
TRAINERS = {"local": "holdfast train", "trl": "TRL", "verl": "verl"}
ARMS = {"grpo": "GRPO", "llds": "LLDS", "mask": "mask"}
METRICS = {"reward": "reward/mean", "entropy": "entropy/mean"}
TITLES = {"reward/mean": "Reward", "entropy/mean": "Entropy, nats per token"}

Runs = dict[str, dict[str, list[RunSeries]]]
"""By trainer and arm."""


def keep(files: Iterable[Path]) -> None:
    """Put the series of the runs into the repository. verl's runs have no trainer in their names."""
    kept = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    for file in files:
        for name, rows in json.loads(file.read_text()).items():
            full = name if name.count("-") == 2 else f"verl-{name}"
            kept[full] = {key: [round(row[key], 4) for row in rows] for key in METRICS}
    lines = [f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept)]
    write_whole(KEPT, "{\n" + ",\n".join(lines) + "\n}\n")


def kept_runs() -> Runs:
    """The runs in the repository; a step is a rollout batch, the first is 1."""
    runs: Runs = {name: {} for name in TRAINERS.values()}
    for name, series in json.loads(KEPT.read_text()).items():
        trainer, arm, seed = name.split("-")
        columns = [series[key] for key in METRICS]
        rows = [
            {"step": i, **dict(zip(METRICS.values(), row, strict=True))}
            for i, row in enumerate(zip(*columns, strict=True), start=1)
        ]
        run = RunSeries(arm=ARMS[arm], seed=int(seed[1:]), rows=tuple(rows), results={})
        runs[TRAINERS[trainer]].setdefault(run.arm, []).append(run)
    return runs


def row(trainer: str, run: RunSeries) -> str:
    """A run in the table: means of five batches."""
    steps, rewards = run.means("reward/mean")
    _, entropy = run.means("entropy/mean")
    fall = fell(run.reward)
    peak = max(reward for step, reward in zip(steps, rewards, strict=True) if fall is None or step <= fall.step)
    return (
        f"| {trainer} | {run.arm} | {run.seed} | {rewards[0]:.2f} → {peak:.2f} ({steps[rewards.index(peak)]}) → "
        f"{rewards[-1]:.2f} ({min(rewards[rewards.index(peak) :]):.2f}) | {fall.step if fall else '–'} | "
        f"{entropy[0]:.2f} → {entropy[-1]:.2f} | {len(run.rows)} |"
    )


def table(runs: Runs) -> str:
    """All runs, and how many of each arm fell."""
    lines = [
        "| trainer | loss | seed | reward first → peak (at) → last (lowest after) | fell at | entropy | batches |",
        "|---|---|---|---|---|---|---|",
        *(row(trainer, run) for trainer, arms in runs.items() for seeds in arms.values() for run in seeds),
        "",
        "| fell | " + " | ".join(ARMS.values()) + " |",
        "|---" * (1 + len(ARMS)) + "|",
        *(f"| {name} | {' | '.join(_tally(arms, arm) for arm in ARMS.values())} |" for name, arms in runs.items()),
    ]
    return "\n".join(lines) + "\n"


def _tally(arms: Mapping[str, list[RunSeries]], arm: str) -> str:
    seeds = arms.get(arm, [])
    return f"{sum(run.fell for run in seeds)} of {len(seeds)}" if seeds else "not run"


def curves(runs: Runs) -> str:
    """The figures' files, and the lines that show them."""
    lines = []
    for metric, title in TITLES.items():
        for trainer, arms in runs.items():
            shown = tuple(arm for arm in ARMS.values() if arm in arms)
            figure = Figure(metric=metric, title=f"{title}: {trainer}", arms=shown)
            name = f"hosts-{metric.partition('/')[0]}-{trainer.replace(' ', '-').lower()}.svg"
            if svg := draw(figure, {arm: tuple(seeds) for arm, seeds in arms.items()}, key=name[:-4]):
                write_whole(DOCS / "figures" / name, alone(svg))
                lines.append(f"![{figure.title}: {', '.join(shown)}](figures/{name})")
    return "\n".join(lines) + "\n"


def page(text: str, runs: Runs) -> str:
    """The page with its runs."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table(runs)}\n{curves(runs)}\n{END}{rest.split(END)[1]}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keep", nargs="?", choices=["keep"], help="put the series of these files into the repository")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    if options.keep:
        keep(options.files)
    write_whole(PAGE, page(PAGE.read_text(), kept_runs()))
    print(PAGE)


if __name__ == "__main__":
    main()
