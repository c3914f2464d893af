"""Rival explanations of the same fall, beside the runs: the tables of research/docs/why.md.

    python -m holdfast_research.pages.why     # writes them into the page, from the runs in research/data/laboratory

An explanation names a cause. An arm that removes it should not fall where plain GRPO does, and an arm that leaves it
should. So each explanation makes a statement on each arm, and the runs answer. A fall is one of the reward. A surge of
entropy is counted beside it, because it is the signature of one of the explanations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from holdfast.base.files import write_whole
from holdfast_research.pages.arms import Method, methods
from holdfast_research.pages.claims import kept_runs
from holdfast_research.pages.curves import link
from holdfast_research.pages.filling import filled
from holdfast_research.pages.kept_runs import KEPT
from holdfast_research.paths import DOCS
from holdfast_research.series import RunSeries
from holdfast_research.signs import SIGNALS, Signal, warnings_of

PAGE = DOCS / "why.md"
ONE_STEP = "GRPO at K = 1"
"""Plain GRPO of `anchor`: one optimizer step per rollout batch, so every ratio is 1."""
LEFT_OUT = ("GRPO", "GRPO, reliable search")
"""The controls: what every explanation explains, and what takes away the failed searches."""
WEAKER = (
    *("LLDS, λ = 0.01", "LLDS, λ = 0.1, response gate", "LLDS, λ = 0.2"),
    *("SAPO, γ = 0.1", "SAPO, τ = 0.6, γ = 1.0", "SAPO, τ = 0.8, γ = 1.0"),
    *("interleaved SFT", "GiGPO", "Clip-Cov", "variance filter"),
)
"""Arms whose method is here at a larger dose too: that a weak dose does not help says little of the explanation, so
they are shown and not counted."""
ENOUGH = 2 / 3
"""Of seeds, or of arms, that do what an explanation says: more than chance where half would, and one seed of three may
be an exception."""

DISPLACED = "displacement of correct rollouts below 0"
DRIFTED = "ratios of a rollout multiply to below one half"
MISPLACED = "control tokens out of place, 99th percentile above 0.1"
LEAKED = "the sampler keeps 0.02 less than at its most"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What makes the reward fall, according to someone."""

    name: str
    source: str
    word: str
    """For the table of arms."""
    says: str
    measure: str | None
    """The signal of `signs.py` that should turn; None where the kept runs have no such series."""
    removes: tuple[str, ...]
    """Beginnings of the names of the arms that remove the cause or work against it: they should not fall. Every other
    arm leaves it, and should fall as plain GRPO does."""


EXPLANATIONS = (
    Explanation(
        "Sampler drift",
        "DeepSeek-V3.2, arXiv 2512.02556; score centering, 2609.20807",
        "sampler",
        "a truncated sampler under a loss over all tokens moves probability to what is never sampled",
        LEAKED,
        ("GRPO, untruncated", "GRPO, sampling mask", "score centering"),
    ),
    Explanation(
        "Displacement",
        "LLDS, 2512.04220; NTHR, 2505.18830",
        "displacement",
        "incorrect rollouts that resemble correct ones push these down",
        DISPLACED,
        ("NTHR", "LLD", "GSPO + LLDS", "GSPO, clip 0.2, LLDS"),
    ),
    Explanation(
        "Ratio drift",
        "SAPO, 2603.10069",
        "ratios",
        "ratios of correct rollouts sink to 0, and their gradients with them",
        DRIFTED,
        ("SAPO", ONE_STEP),
    ),
    Explanation(
        "Trust region",
        "GSPO, 2507.18071; DPPO, 2602.04879; CISPO, 2506.13585",
        "trust",
        "the clip lets updates through that go too far",
        DRIFTED,
        ("GSPO", "DPPO", "CISPO", "Geo-RS", "off-policy mask", ONE_STEP),
    ),
    Explanation(
        "Control tokens",
        "2606.26027",
        "tokens",
        "spikes of a few control tokens break the format",
        MISPLACED,
        ("interleaved SFT",),
    ),
    Explanation("Credit", "GiGPO, 2505.10978", "credit", "good turns of bad rollouts are punished", None, ("GiGPO",)),
    Explanation(
        "Lost entropy",
        "2505.22617",
        "entropy",
        "a few tokens of high covariance use up the entropy",
        None,
        ("Clip-Cov",),
    ),
    Explanation(
        "Void turns",
        "SimpleTIR, 2509.02479",
        "void",
        "turns that are neither a search nor an answer are unlikely tokens, with large gradients",
        None,
        ("SimpleTIR",),
    ),
    Explanation(
        "No contrast",
        "RAGEN-2",
        "contrast",
        "groups of equal rewards leave noise alone",
        None,
        ("variance filter",),
    ),
)

MEASURES: Mapping[str, str] = {
    "advantage where the sampler cuts below -0.05": "sampler drift",
    LEAKED: "sampler drift",
    DISPLACED: "displacement",
    "displacement below -0.002 nats": "displacement",
    DRIFTED: "ratio drift, trust region",
    "entropy 0.1 nats above its lowest": "all but lost entropy",
    MISPLACED: "control tokens",
}
"""A signal of `signs.py` -> whose measure it is."""

ELSEWHERE: Mapping[str, str] = {
    "testbeds": "drawn worlds",
    "factbook": "135 M, Factbook",
    "real-fall": "135 M, large step",
    "real-long": "135 M, 150 batches",
    "real-old": "135 M, stale rollouts",
    "real-age": "135 M, age of rollouts",
}
"""An experiment on another start -> what it is."""

TOKENS: Mapping[str, str] = {
    "negative/long_unlikely_share": "share of the push",
    "negative/long_unlikely_share_by_response": "as a mean per response",
    "likelihood/before_observation": "log-prob, first actions",
    "likelihood/after_observation": "later actions",
}
"""A series of the tokens that updates move -> what the page calls it."""


def runs_by_name(kept: Path = KEPT) -> dict[str, Method]:
    """Every method on the one testbed, and plain GRPO at K = 1."""
    groups = methods(kept)
    found = {method.name: method for method in groups.pop("{}")}
    for group in groups.values():
        if group[0].experiment == "anchor":
            found[ONE_STEP] = next(method for method in group if method.name == "GRPO")
    return found


def fell(method: Method) -> int:
    """The seeds on which the reward fell."""
    return method.fell


def surged(method: Method) -> int:
    """The seeds on which entropy surged."""
    return method.surged


def counted(found: Mapping[str, Method]) -> dict[str, Method]:
    """The arms that count for or against explanations: not the controls, and no weaker doses."""
    return {name: method for name, method in found.items() if name not in (*LEFT_OUT, *WEAKER)}


def judged(
    explanation: Explanation, found: Mapping[str, Method], bad: Callable[[Method], int], *, removes: bool
) -> dict[str, bool]:
    """Arm -> whether it does what the explanation says, on at least two thirds of its seeds: no `bad` end where it
    `removes` the cause, a bad end where it does not."""
    shares = {
        name: bad(method) / len(method.runs)
        for name, method in counted(found).items()
        if name.startswith(explanation.removes) is removes
    }
    return {name: (share <= 1 - ENOUGH) if removes else (share >= ENOUGH) for name, share in shares.items()}


def turned(signal: str, runs: Sequence[RunSeries]) -> int:
    """In how many runs a signal turned at all."""
    return sum(signal_of(signal).turns(run) is not None for run in runs)


def signal_of(says: str) -> Signal:
    """The signal with these words."""
    return next(each for each in SIGNALS if each.says == says)


def turned_of(says: str | None, runs: Sequence[RunSeries]) -> str:
    """In how many runs it turned, of those that have its series."""
    logged = [run for run in runs if says is not None and signal_of(says).logged(run)]
    return f"{turned(says, logged)}/{len(logged)}" if says is not None and logged else "–"


def explanations_table(found: Mapping[str, Method]) -> str:
    """One row for each explanation: what it says, whether the arms and its measure agree, and the verdict."""
    runs = [run for method in found.values() for run in method.runs.values()]
    fallen, others = ([run for run in runs if run.fell is kind] for kind in (True, False))
    lines = [
        "| explanation | a run falls because | removes it: did not fall | no surge either | leaves it: fell | right "
        "| its measure turned, of runs that fell | of others |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in EXPLANATIONS:
        stayed, calm, falls = (
            judged(one, found, bad, removes=removes) for bad, removes in ((fell, True), (surged, True), (fell, False))
        )
        both = {name: stayed[name] and calm[name] for name in stayed}
        arms = [f"{sum(part.values())}/{len(part)}" for part in (stayed, both, falls, stayed | falls)]
        seen = [turned_of(one.measure, part) for part in (fallen, others)]
        lines.append(f"| **{one.name}** ({one.source}) | {one.says} | {' | '.join((*arms, *seen))} |")
    return "\n".join(lines)


def cells(method: Method) -> Iterator[str]:
    """How often a method fell and surged, how often each measure turned, and what it ends with."""
    runs = list(method.runs.values())
    for count in (method.fell, method.surged, *(turned(signal, runs) for signal in (LEAKED, DISPLACED, DRIFTED))):
        yield f"{count}/{len(runs)}"
    yield f"{method.mean_of(lambda summary: summary.last):.2f}"
    exact_match = method.mean_of(lambda summary: summary.em_after)
    yield "–" if math.isnan(exact_match) else f"{exact_match:.2f}"


CELLS = "fell | entropy surged | mass leaked | displaced | ratios halved | reward, last | test EM"


def arms_table(found: Mapping[str, Method]) -> str:
    """Explanation x measure x arm: whose cause each arm removes, and which measures turned."""
    lines = [f"| arm | removes | {CELLS} |", "|---" * 9 + "|"]

    def order(name: str) -> tuple[bool, float, float, float]:
        n = len(found[name].runs)
        em = found[name].mean_of(lambda summary: summary.em_after)
        return name not in LEFT_OUT, found[name].fell / n, found[name].surged / n, -em

    for name in sorted(found, key=order):
        method = found[name]
        whose = ", ".join(one.word for one in EXPLANATIONS if name.startswith(one.removes))
        shown = re.sub(r"\.0(?!\d)", "", name.replace(" = ", " "))
        weaker = " (weaker dose)" if name in WEAKER else ""
        row = (f"[{shown}]({link(method.experiment)}){weaker}", whose or "–", *cells(method))
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def measures_table(found: Mapping[str, Method]) -> str:
    """Which measure turned before the reward dropped, how long before, and how often without a drop."""
    rows = {row["signal"]: row for row in warnings_of({name: tuple(m.runs.values()) for name, m in found.items()})}
    real = [run for seeds in kept_runs("factbook", KEPT).values() for run in seeds]
    lines = [
        f"| measure | of | before a drop | steps before, median | no drop | {len(real)} runs of the real model |",
        "|---|---|---|---|---|---|",
    ]
    for signal in sorted(MEASURES, key=lambda signal: -(rows[signal]["median"] or 0)):
        row = rows[signal]
        median = "–" if row["median"] is None else f"{row['median']:g}"
        counts = f"{row['before']}/{row['dropped']} | {median} | {row['false']}/{row['held']}"
        there = "–" if MEASURES[signal] == "sampler drift" else turned_of(signal, real)  # sampled untruncated
        lines.append(f"| {signal} | {MEASURES[signal]} | {counts} | {there} |")
    return "\n".join(lines)


def elsewhere_table(kept: Path = KEPT) -> str:
    """The same of other worlds, and of a pretrained model."""
    lines = [f"| where | arm | {CELLS} |", "|---" * 9 + "|"]
    for experiment, where in ELSEWHERE.items():
        for arm, seeds in kept_runs(experiment, kept).items():
            method = Method(arm, experiment, {run.seed: run for run in seeds})
            lines.append(f"| [{where}]({experiment}.md) | {arm} | {' | '.join(cells(method))} |")
    return "\n".join(lines)


def thirds(runs: Sequence[RunSeries], metric: str) -> str:
    """The metric's mean over the first and over the last third of the steps that log it, a mean over the runs."""
    parts = [
        (mean(values[: len(values) // 3]), mean(values[-(len(values) // 3) :]))
        for values in (run.series(metric)[1] for run in runs)
        if len(values) >= 3
    ]
    return " → ".join(f"{mean(part):.2f}" for part in zip(*parts, strict=True)) or "–"


def tokens_table(kept: Path = KEPT) -> str:
    """Whom updates push down, and which tokens lose likelihood, with fresh rollouts and with stale ones."""
    lines = ["| where | arm | fell | " + " | ".join(TOKENS.values()) + " |", "|---" * (3 + len(TOKENS)) + "|"]
    for experiment in ("mismatch", "factbook", "real-old"):
        for arm, seeds in kept_runs(experiment, kept).items():
            if not any(run.series(next(iter(TOKENS)))[1] for run in seeds):
                continue  # made before these series were logged
            row = (f"{sum(run.fell for run in seeds)}/{len(seeds)}", *(thirds(seeds, metric) for metric in TOKENS))
            lines.append(f"| [{experiment}]({experiment}.md) | {arm} | {' | '.join(row)} |")
    return "\n".join(lines)


def page(text: str, found: Mapping[str, Method]) -> str:
    """The page with each table between its two marks, `<!-- NAME -->` and `<!-- end -->`."""
    tables = {
        "explanations": explanations_table(found),
        "arms": arms_table(found),
        "measures": measures_table(found),
        "elsewhere": elsewhere_table(),
        "tokens": tokens_table(),
    }
    return filled(text, tables)


def main() -> None:
    """Write the page's tables."""
    write_whole(PAGE, page(PAGE.read_text(encoding="utf-8"), runs_by_name()))
    print(PAGE)


if __name__ == "__main__":
    main()
