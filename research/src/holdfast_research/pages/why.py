"""Why agents collapse: the tables of research/docs/why.md.

    python -m holdfast_research.pages.why     # writes them into the page, from the runs in research/data/laboratory

Test EM of the final weights is what runs are compared by, sampled and greedy. "Fell" is of the reward, and is left out
where rollouts are stale: their reward is that of older weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean

from holdfast.base.files import write_whole
from holdfast_research.pages import stale
from holdfast_research.pages.arms import Method, methods
from holdfast_research.pages.claims import kept_runs
from holdfast_research.pages.curves import link
from holdfast_research.pages.filling import filled
from holdfast_research.pages.kept_runs import KEPT
from holdfast_research.paths import DOCS
from holdfast_research.series import RunSeries, RunSummary, summarise
from holdfast_research.signs import SIGNALS, Signal, warnings_of

PAGE = DOCS / "why.md"

SAMPLER: Mapping[str, tuple[str, str]] = {
    "plain GRPO": ("death-spiral", "GRPO"),
    "no failed searches": ("death-spiral", "GRPO, reliable search"),
    "whole vocabulary (top-p 1, top-k 0)": ("death-spiral", "GRPO, untruncated sampler"),
    "log-probs over what the sampler kept": ("death-spiral", "GRPO, sampling mask kept"),
    "LLDS, 1": ("death-spiral", "LLDS action"),
    "LLDS, 0.2": ("coefficient", "λ = 0.2"),
    "LLDS, 0.1, v1's gate": ("coefficient", "λ = 0.1, response gate"),
    "LLDS, 0.01": ("coefficient", "λ = 0.01"),
    "SAPO, 1": ("death-spiral", "SAPO"),
    "SAPO, 0.1": ("sapo", "γ = 0.1"),
    "SimpleTIR": ("remedies", "SimpleTIR"),
    "PPO": ("remedies", "PPO"),
    "GSPO at GRPO's clip": ("death-spiral", "GSPO, clip 0.2"),
    "NTHR": ("remedies", "NTHR"),
    "DPPO": ("remedies", "DPPO"),
}
"""What is changed, on the testbed whose sampler is truncated -> its experiment and arm."""
PENALTIES: Mapping[str, str] = {
    "plain GRPO": "",
    "LLDS, 0.2": ", LLDS action, 0.2",
    "LLDS, 1": ", LLDS action",
    "SAPO, 1": ", SAPO",
}
"""A column of the pretrained model's tables -> what its arms are called after their age."""
AGES = ("GRPO", "1 batch old", "4 batches old", "8 batches old")
TWICE = (*PENALTIES.values(), ", TIS", ", score centering", ", IPO")
TINY: Mapping[str, str] = {
    "plain GRPO": "",
    "LLDS, 1": ", LLDS action",
    "TIS": ", TIS",
    "score centering": ", score centering",
    "ratios to the sampler": ", ratios to the sampler",
    "and LLDS, 1": ", ratios to the sampler, LLDS action",
}
"""The same of the tiny model's."""
TINY_AGES = ("GRPO, untruncated sampler", "1 batch old", "4 batches old", "16 batches old")

DISPLACED = "displacement of correct rollouts below 0"
DRIFTED = "ratios of a rollout multiply to below one half"
LEAKED = "the sampler keeps 0.02 less than at its most"
MEASURES = (
    "advantage where the sampler cuts below -0.05",
    LEAKED,
    DISPLACED,
    "displacement below -0.002 nats",
    DRIFTED,
    "entropy 0.1 nats above its lowest",
)
"""Signals of `signs.py` that the page compares."""


def signal_of(says: str) -> Signal:
    """The signal with these words."""
    return next(each for each in SIGNALS if each.says == says)


def turned(signal: str, runs: Sequence[RunSeries]) -> int:
    """In how many runs a signal turned at all."""
    return sum(signal_of(signal).turns(run) is not None for run in runs)


def average(runs: Sequence[RunSeries], number: Callable[[RunSummary], float]) -> str:
    """Over the runs that have it; a dash where none has."""
    known = [value for run in runs if not math.isnan(value := number(summarise(run)))]
    return f"{mean(known):.2f}" if known else "–"


def ends(runs: Sequence[RunSeries], of: int) -> str:
    """Sampled test EM and, in brackets, greedy; with the number of tests where there are not `of`."""
    if not runs:
        return "not run"
    tests = sum(not math.isnan(summarise(run).em_after) for run in runs)
    few = "" if tests == of else f", n = {tests}"
    return f"{average(runs, lambda r: r.em_after)} ({average(runs, lambda r: r.greedy_after)}){few}"


def sampler_table(kept: Path = KEPT) -> str:
    """Arms on the testbed whose sampler is truncated."""
    lines = ["| changed | seeds | reward fell | entropy surged | test EM | greedy |", "|---" * 6 + "|"]
    for name, (experiment, arm) in SAMPLER.items():
        runs = kept_runs(experiment, kept)[arm]
        summaries = [summarise(run) for run in runs]
        counts = f"{len(runs)} | {sum(s.fell for s in summaries)} | {sum(s.surged for s in summaries)}"
        em, greedy = average(runs, lambda r: r.em_after), average(runs, lambda r: r.greedy_after)
        lines.append(f"| [{name}]({link(experiment)}) | {counts} | {em} | {greedy} |")
    return "\n".join(lines)


def matrix(experiment: str, ages: Sequence[str], columns: Mapping[str, str], kept: Path = KEPT) -> str:
    """Test EM, sampled (greedy), by age and by what is done about it."""
    runs = kept_runs(experiment, kept)
    lines = [f"| rollouts | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for age in ages:
        fresh = age == ages[0]
        cells = [ends(runs.get(f"{age}{cure}", ()), 3) for cure in columns.values()]
        lines.append(f"| {'fresh' if fresh else age} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rate_table(kept: Path = KEPT) -> str:
    """The pretrained model at twice its recipe's rate, rollouts eight batches old."""
    runs = kept_runs("real-old", kept)
    names = [*PENALTIES, "TIS", "score centering", "IPO"]
    rows = [("fresh, plain GRPO", "GRPO"), *((n, f"8 batches old{cure}") for n, cure in zip(names, TWICE, strict=True))]
    lines = ["| rollouts eight batches old | tests | test EM, each seed | mean | greedy |", "|---" * 5 + "|"]
    for name, arm in rows:
        tested = [run for run in runs[arm] if not math.isnan(summarise(run).em_after)]
        each = ", ".join(f"{summarise(run).em_after:.2f}" for run in tested)
        em, greedy = average(tested, lambda r: r.em_after), average(tested, lambda r: r.greedy_after)
        lines.append(f"| {name} | {len(tested)} | {each} | {em} | {greedy} |")
    return "\n".join(lines)


def on_the_testbed(kept: Path = KEPT) -> dict[str, Method]:
    """Every method on the one testbed whose sampler is truncated."""
    return {method.name: method for method in methods(kept)["{}"]}


def measures_table(found: Mapping[str, Method], kept: Path = KEPT) -> str:
    """Which measure turned before the reward dropped, how long before, and how often without a drop."""
    rows = {row["signal"]: row for row in warnings_of({name: tuple(m.runs.values()) for name, m in found.items()})}
    real = [run for seeds in kept_runs("factbook", kept).values() for run in seeds]
    lines = [
        f"| measure | before a drop | batches before, median | without a drop | {len(real)} runs of the real model |",
        "|---" * 5 + "|",
    ]
    for signal in sorted(MEASURES, key=lambda signal: -(rows[signal]["median"] or 0)):
        row = rows[signal]
        logged = [run for run in real if signal_of(signal).logged(run)]
        # The real model is sampled untruncated.
        there = "–" if not logged or "sampler" in signal else f"{turned(signal, logged)}/{len(logged)}"
        counts = f"{row['before']}/{row['dropped']} | {row['median']:g} | {row['false']}/{row['held']}"
        lines.append(f"| {signal} | {counts} | {there} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with each table between its two marks, `<!-- NAME -->` and `<!-- end -->`."""
    tables = {
        "sampler": sampler_table(),
        "ages": matrix("real-age", AGES, PENALTIES),
        "differences": stale.table(),
        "rate": rate_table(),
        "tiny": matrix("mismatch", TINY_AGES, TINY),
        "measures": measures_table(on_the_testbed()),
    }
    return filled(text, tables)


def main() -> None:
    """Write the page's tables."""
    write_whole(PAGE, page(PAGE.read_text(encoding="utf-8")))
    print(PAGE)


if __name__ == "__main__":
    main()
