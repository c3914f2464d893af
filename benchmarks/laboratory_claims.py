"""Every claim of the papers that an experiment of the laboratory asks, with the verdict of each set of kept runs.

    python benchmarks/laboratory_claims.py        # docs/laboratory/claims.md, from the runs in benchmarks/laboratory

Claims and tests are those of the experiments, verdicts those of their pages. What no kept run can answer is listed too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.files import write_whole
from holdfast.lab.experiments import EXPERIMENTS
from holdfast.lab.judge import NOBODY
from holdfast.lab.plan import PLAN_FILE
from holdfast.lab.results import CONTROL
from holdfast.lab.values import Claim, Runs, Verdict
from laboratory_page import DOCS, runs_of
from laboratory_runs import KEPT, restore

INTRODUCTION = """\
# The papers' claims, one by one

What the experiments of the [laboratory](../laboratory.md) ask in the papers' name, and what the runs in the repository
say. A verdict links to its page, where the test, the controls beside it and the numbers seed by seed stand. A claim
that is shown here may still be no mark of a collapse: the controls on those pages ask whether it is in runs that hold
as well.

Read them with four things in mind:

* **Strength.** Unless an arm says otherwise LLDS has λ = 1 and SAPO γ = 1, over the tokens they protect, where the
  papers have 0.2 and 0.1.
* **One organism, shared runs.** `organisms` draws an organism with every seed. All other experiments share one, and the
  plain GRPO of `death-spiral`, `strength`, `per-sample`, `first-action`, `masking`, `sapo`, K = 10 in
  `steps-per-rollout` and frequent reward in `preserving` are the same runs: one outcome stands in several rows.
* **Length.** `organisms` has 160 steps, the others 80.
* **Names.** "paper" at the end of an arm is what its penalty is divided by ([preserving](preserving.md)); methods and
  settings are in [Papers](../papers.md).

The [first organism](death-spiral-first.md), whose runs were not kept, is not in these tables.

What the papers report of 1.5 to 14 billion parameters on seven sets of questions, scores and gains in the first place,
is nothing that this scale can speak to.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one experiment's kept runs say of a claim; no verdict where none of them can be asked."""

    experiment: str
    claim: Claim
    verdict: Verdict | None


def answers(kept: Path = KEPT) -> Iterator[Answer]:
    """Of every experiment, in the order of the list that `holdfast reproduce` prints."""
    for experiment in EXPERIMENTS.values():
        runs = kept_runs(experiment.name, kept)
        for claim in experiment.claims:
            if claim.paper != CONTROL:
                verdict = claim.test(runs) if runs else None
                asked = verdict is not None and verdict.because != NOBODY
                yield Answer(experiment.name, claim, verdict if asked else None)


def kept_runs(name: str, kept: Path) -> Runs:
    """The runs in the repository; none of an experiment that has none there."""
    if not (kept / name / PLAN_FILE).exists():
        return {}
    with tempfile.TemporaryDirectory() as folder:
        restore(name, Path(folder), kept)
        return runs_of(Path(folder))[1]


def page(found: list[Answer]) -> str:
    papers: dict[str, dict[tuple[str, str, str], list[Answer]]] = {}
    for answer in found:
        claim = answer.claim
        papers.setdefault(claim.paper, {}).setdefault((claim.says, claim.where, claim.asks), []).append(answer)
    lines = [INTRODUCTION]
    for paper, rows in papers.items():
        lines += [f"## {paper}", "", "| claim | where | test | verdicts |", "|---|---|---|---|"]
        lines += [f"| {' | '.join((*row, _verdicts(those)))} |" for row, those in rows.items() if _verdicts(those)]
        missing = [_missing(row[0], row[1], those) for row, those in rows.items() if not _verdicts(those)]
        lines += ["", *(("Not answered by any kept run:", "", *dict.fromkeys(missing), "") if missing else ())]
    return "\n".join(lines)


def _verdicts(those: list[Answer]) -> str:
    return "<br>".join(
        f"**{one.verdict.word}** in [{one.experiment}]({one.experiment}.md): {one.verdict.because}"
        for one in those
        if one.verdict
    )


def _missing(says: str, where: str, those: list[Answer]) -> str:
    return f"* {says} ({where}) Asked by {', '.join(f'`{one.experiment}`' for one in those)}."


if __name__ == "__main__":
    write_whole(DOCS / "claims.md", page(list(answers())))
    print(DOCS / "claims.md")
