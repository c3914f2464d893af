"""Every claim of the papers that an experiment of the study tests, with the verdict of each set of kept runs.

    python -m holdfast_research.pages.claims        # research/docs/claims.md, from the runs in research/data/laboratory

Claims and tests are those of the experiments, verdicts those of their pages. What no kept run can answer is listed too.
Claims about single steps and hidden states are put to the reading `influence`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean

from holdfast.base.files import write_whole
from holdfast_research import readings
from holdfast_research.experiments import EXPERIMENTS
from holdfast_research.judge import NOBODY
from holdfast_research.pages import influence, influence_claims
from holdfast_research.pages.curves import asked, link, runs_of, shown
from holdfast_research.pages.kept_runs import KEPT, restore
from holdfast_research.paths import DOCS
from holdfast_research.plan import PLAN_FILE
from holdfast_research.series import RunSeries
from holdfast_research.values import CONTROL, Claim, Runs, Status, Verdict

PAGE = DOCS / "claims.md"
BESIDE = "What the verdicts leave out"
BESIDE_ARMS = (
    *("GRPO", "GRPO, reliable search", "GRPO, untruncated sampler", "GRPO, sampling mask kept"),
    *("LLDS action", "SAPO"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the kept runs of an experiment say of a claim; no verdict where none of them can be asked."""

    experiment: str
    """Or the reading; the name of its page."""
    claim: Claim
    verdict: Verdict | None


def answers(kept: Path = KEPT) -> Iterator[Answer]:
    """The answers of every experiment, in the order of `holdfast reproduce list`."""
    for experiment in EXPERIMENTS.values():
        runs = kept_runs(experiment.name, kept)
        for claim in experiment.claims:
            if claim.paper != CONTROL:
                verdict = claim.test(runs) if runs else None
                asked = verdict is not None and verdict.because != NOBODY
                yield Answer(experiment.name, claim, verdict if asked else None)


def answers_of_reading() -> Iterator[Answer]:
    """What the checkpoints behind influence.md say."""
    kept = readings.kept(influence.NAME)
    for claim in influence_claims.claims([influence.from_kept(run) for run in kept["runs"]]) if kept else ():
        yield Answer(influence.NAME, claim, claim.test({}))


@cache
def kept_runs(name: str, kept: Path) -> Runs:
    """The runs in the repository; none of an experiment that has none there."""
    if not (kept / name / PLAN_FILE).exists():
        return {}
    with tempfile.TemporaryDirectory() as folder:
        restore(name, Path(folder), kept)
        return runs_of(Path(folder))[1]


def whole_page(kept: Path = KEPT) -> str:
    """The text of claims.md. What is above its first table and its last ones is written there, by hand."""
    text = PAGE.read_text(encoding="utf-8")
    introduction, beside = text.partition("\n## ")[0], text[text.index(f"## {BESIDE}\n") :].partition("\n[")[0]
    tables = page([*answers(kept), *answers_of_reading()])
    return "\n".join([introduction, tables, beside, *further(kept)])


def page(every: Sequence[Answer]) -> str:
    """The tables of claims and verdicts, a section a paper."""
    papers: dict[str, dict[tuple[str, str, str], list[Answer]]] = {}
    for answer in every:
        claim = answer.claim
        papers.setdefault(claim.paper, {}).setdefault((claim.says, claim.where, claim.asks), []).append(answer)
    lines: list[str] = []
    for paper, rows in papers.items():
        lines += [f"## {paper}", "", "| claim | where | test | verdicts |", "|---|---|---|---|"]
        told = {row: those for row, those in rows.items() if any(map(_tells, those))}
        lines += [f"| {row[0]} | {row[1]} | {asked(row[2])} | {_verdicts(those)} |" for row, those in told.items()]
        undecided = {row: those for row, those in rows.items() if row not in told and _verdicts(those)}
        lines += [
            "",
            "Cannot tell:",
            "",
            *(f"* {row[0]} ({row[1]}) {_verdicts(those)}" for row, those in undecided.items()),
        ]
        missing = [_missing(row[0], row[1], those) for row, those in rows.items() if not _verdicts(those)]
        lines += ["", *(("Not answered by any kept run:", "", *dict.fromkeys(missing), "") if missing else ())]
    return "\n".join(lines)


def _tells(answer: Answer) -> bool:
    return answer.verdict is not None and answer.verdict.word != Status.CANNOT_TELL


def further(kept: Path = KEPT) -> Iterator[str]:
    """Tables of what no claim asks: invalid turns, clipping and ratios of the same runs."""
    for name in (each for each in ("death-spiral", "testbeds") if (kept / each / PLAN_FILE).exists()):
        runs = kept_runs(name, kept)
        last = max(int(run.rows[-1]["step"]) for arm in runs.values() for run in arm)
        early, middle, late = (1, 10), (31, 40), (last - 9, last)
        steps = [f"{first} to {end}" for first, end in (early, middle, late, middle, late, (last - 19, last))]
        yield f"[{name}]({name}.md), means over seeds and over the steps named:\n"
        yield (
            f"| arm | seeds | invalid turns, {' | '.join(steps[:3])} | clipped tokens, {' | '.join(steps[3:5])} "
            f"| ln ∏ r, {steps[5]} |"
        )
        yield "|---" * 8 + "|"
        for arm, seeds in ((arm, runs[arm]) for arm in BESIDE_ARMS if arm in runs):
            cells = [f"{_mean(seeds, 'rollout/invalid_fraction', *part):.2f}" for part in (early, middle, late)]
            cells += [f"{_mean(seeds, 'clip/fraction', *part):.3f}" for part in (middle, late)]
            cells.append(f"{_mean(seeds, 'ratio/log_product', last - 19, last):+.2f}")
            yield f"| {arm} | {len(seeds)} | {' | '.join(cells)} |"
        yield ""


def _mean(runs: Sequence[RunSeries], metric: str, first: int, last: int) -> float:
    """Over runs, of each one's mean over the steps from `first` to `last`."""
    return mean(mean(row[metric] for row in run.rows if first <= row["step"] <= last) for run in runs)


def _verdicts(those: list[Answer]) -> str:
    return "<br>".join(
        f"[{each.experiment}]({link(each.experiment)}): {shown(each.verdict.word, each.verdict.because)}"
        for each in those
        if each.verdict
    )


def _missing(says: str, where: str, those: list[Answer]) -> str:
    return f"* {says} ({where}) Asked by {', '.join(f'`{answer.experiment}`' for answer in those)}."


if __name__ == "__main__":
    write_whole(PAGE, whole_page())
    print(PAGE)
