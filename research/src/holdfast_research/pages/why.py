"""Rival explanations of the same fall, beside the runs: the tables of research/docs/why.md.

    python -m holdfast_research.pages.why     # writes the tables into the page, from the runs in research/data

An explanation names a cause. An arm that removes it should hold where plain GRPO falls, and an arm that leaves it
should fall. So each explanation makes a statement on each arm, and the runs answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.files import write_whole
from holdfast_research.pages.kept_runs import KEPT
from holdfast_research.pages.methods import SURGE, Method, methods
from holdfast_research.paths import DOCS
from holdfast_research.series import surge_step
from holdfast_research.signals import warnings_of

PAGE = DOCS / "why.md"
ONE_STEP = "GRPO at K = 1"
"""Plain GRPO of `anchor`: one optimizer step per rollout batch, so every ratio is 1."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What makes the reward fall, according to someone."""

    name: str
    source: str
    removes: tuple[str, ...]
    """Beginnings of the names, as in methods.md, of the arms that remove the cause or work against it: they should
    hold. Every other arm leaves it, and should fall as plain GRPO does."""


EXPLANATIONS = (
    Explanation(
        "A truncated sampler leaks, or: the drift towards a sampler that differs",
        "DeepSeek-V3.2, arXiv 2512.02556; score centering, arXiv 2609.20807",
        ("GRPO, untruncated", "GRPO, sampling mask", "score centering"),
    ),
    Explanation(
        "Lazy likelihood displacement",
        "arXiv 2512.04220, arXiv 2505.18830",
        ("NTHR", "LLD", "GSPO + LLDS", "GSPO, clip 0.2, LLDS"),
    ),
    Explanation("Importance sampling distribution drift", "arXiv 2603.10069", ("SAPO", ONE_STEP)),
    Explanation(
        "Ratios beyond the trust region",
        "arXiv 2507.18071, arXiv 2602.04879, arXiv 2506.13585",
        ("GSPO", "DPPO", "CISPO", "Geo-RS", "off-policy mask", ONE_STEP),
    ),
    Explanation("Spikes of control tokens", "arXiv 2606.26027", ("interleaved SFT",)),
    Explanation("Credit of turns", "GiGPO, arXiv 2505.10978", ("GiGPO",)),
    Explanation("Entropy lost to a few tokens", "arXiv 2505.22617", ("Clip-Cov",)),
    Explanation("Groups without contrast", "RAGEN-2", ("variance filter",)),
)

MEASURES: Mapping[str, str] = {
    "advantage where the sampler cuts below -0.05": "truncated sampler",
    "the sampler keeps 0.02 less than at its most": "truncated sampler",
    "displacement of correct rollouts below 0": "displacement",
    "displacement below -0.002 nats": "displacement",
    "ratios of a rollout multiply to below one half": "ratio drift",
    "entropy 0.1 nats above its lowest": "all of them",
    "gradient norm 1 above its lowest": "spikes",
}
"""A signal of `signals.py` -> whose measure it is."""


def runs_by_name(kept: Path = KEPT) -> dict[str, Method]:
    """Every method on the one testbed, and plain GRPO at K = 1."""
    groups = methods(kept)
    found = {method.name: method for method in groups.pop("{}")}
    for group in groups.values():
        if group[0].experiment == "anchor":
            found[ONE_STEP] = next(method for method in group if method.name == "GRPO")
    return found


LEFT_OUT = ("GRPO", "GRPO, reliable search")
"""The controls: what every explanation explains, and what takes away the failed searches."""


def fell(method: Method) -> int:
    """The seeds on which the reward fell."""
    return method.fell


def fell_or_surged(method: Method) -> int:
    """The seeds on which the reward fell, or entropy surged where the sampler does not look."""
    return sum(run.fell or surge_step(run, "entropy/mean", SURGE) is not None for run in method.runs.values())


def judged(
    explanation: Explanation, found: Mapping[str, Method], failed: Callable[[Method], int], *, removes: bool
) -> dict[str, bool]:
    """Arm -> whether it does what the explanation says, on at least two thirds of its seeds: not to fail where it
    `removes` the cause, to fail where it does not."""
    shares = {
        name: failed(method) / len(method.runs)
        for name, method in found.items()
        if name not in LEFT_OUT and name.startswith(explanation.removes) is removes
    }
    return {name: (share <= 1 / 3) if removes else (share >= 2 / 3) for name, share in shares.items()}


def summary_table(found: Mapping[str, Method]) -> str:
    """One row for each explanation: who should hold and does, who should fail and does; by the reward alone, and by
    reward and entropy."""
    lines = [
        "| explanation | removes it, held | leaves it, fell | right | removes it, sound | leaves it, failed | right |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for explanation in EXPLANATIONS:
        cells = []
        for failed in (fell, fell_or_surged):
            holds, falls = (judged(explanation, found, failed, removes=removes) for removes in (True, False))
            cells += [f"{sum(part.values())} of {len(part)}" for part in (holds, falls, holds | falls)]
        lines.append(f"| **{explanation.name}** ({explanation.source}) | {' | '.join(cells)} |")
    return "\n".join(lines)


def removers_table(found: Mapping[str, Method]) -> str:
    """What removes the cause that an explanation names, arm by arm."""
    lines = ["| explanation | what removes its cause: fell, entropy surged |", "|---|---|"]
    for explanation in EXPLANATIONS:
        arms = [
            f"[{name}]({found[name].experiment}.md) {found[name].fell}, {found[name].surged} of {len(found[name].runs)}"
            for name in judged(explanation, found, fell, removes=True)
        ]
        lines.append(f"| {explanation.name} | {'; '.join(arms)} |")
    return "\n".join(lines)


def held_table(found: Mapping[str, Method]) -> str:
    """What held although it leaves the mismatch of sampler and loss, with the surges of entropy."""
    (sampler, *_) = EXPLANATIONS
    exceptions = [found[name] for name, right in judged(sampler, found, fell, removes=False).items() if not right]
    lines = ["| held, and leaves the mismatch | fell | entropy surged | test EM |", "|---|---|---|---|"]
    for method in sorted(exceptions, key=lambda method: (method.surged / len(method.runs), method.name)):
        n, em = len(method.runs), method.mean_of(lambda summary: summary.em_after)
        lines.append(
            f"| [{method.name}]({method.experiment}.md) | {method.fell} of {n} | {method.surged} of {n} | {em:.2f} |"
        )
    return "\n".join(lines)


def measures_table(found: Mapping[str, Method]) -> str:
    """Which measure turned before the reward dropped, how long before, and how often without a drop."""
    rows = {row["signal"]: row for row in warnings_of({name: tuple(m.runs.values()) for name, m in found.items()})}
    ordered = sorted(MEASURES, key=lambda signal: -(rows[signal]["median"] or 0))
    lines = ["| measure | of | turned before the drop | steps before, median | in runs that never dropped |"]
    lines.append("|---|---|---|---|---|")
    for signal in ordered:
        row = rows[signal]
        median = "–" if row["median"] is None else f"{row['median']:g}"
        lines.append(
            f"| {signal} | {MEASURES[signal]} | {row['before']} of {row['dropped']} | {median} "
            f"| {row['false']} of {row['held']} |"
        )
    return "\n".join(lines)


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """The page with each table between its two marks, `<!-- NAME -->` and `<!-- end -->`."""
    for name, table in tables.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert begin and end, name
        text = f"{before}{begin}\n{table}\n\n{end}{after}"
    return text


def page(text: str, kept: Path = KEPT) -> str:
    """The page, its tables made again."""
    found = runs_by_name(kept)
    return with_tables(
        text,
        {
            "explanations": summary_table(found),
            "removers": removers_table(found),
            "held": held_table(found),
            "measures": measures_table(found),
        },
    )


def main(_: Sequence[str] | None = None) -> None:
    """Write the page."""
    write_whole(PAGE, page(PAGE.read_text(encoding="utf-8")))
    print(PAGE)


if __name__ == "__main__":
    main()
