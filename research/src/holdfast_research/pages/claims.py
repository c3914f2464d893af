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

from holdfast.base.files import write_whole
from holdfast_research import readings
from holdfast_research.experiments import EXPERIMENTS
from holdfast_research.judge import NOBODY
from holdfast_research.pages import influence, influence_claims
from holdfast_research.pages.curves import link, runs_of, shown, together
from holdfast_research.pages.filling import filled
from holdfast_research.pages.kept_runs import KEPT, restore
from holdfast_research.paths import DOCS
from holdfast_research.plan import PLAN_FILE
from holdfast_research.values import CONTROL, Claim, Runs, Status, Verdict

PAGE = DOCS / "claims.md"
COLUMNS = ("paper", "claim", "where", "test", "verdicts")


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


def page(every: Sequence[Answer]) -> str:
    """The table: a row a claim of a paper, those that some run answers first."""
    rows: dict[tuple[str, str, str, str], list[Answer]] = {}
    for each in every:
        claim = each.claim
        rows.setdefault((claim.paper.partition(",")[0], claim.says, claim.where, claim.asks), []).append(each)
    told = sorted(rows, key=lambda row: (row[0], not any(map(_tells, rows[row]))))
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join((*row, _verdicts(rows[row])))} |" for row in told)])


def _tells(answer: Answer) -> bool:
    return answer.verdict is not None and answer.verdict.word != Status.CANNOT_TELL


def _verdicts(those: list[Answer]) -> str:
    by_experiment: dict[str, list[str]] = {}
    for each in those:
        if each.verdict:
            word = shown(each.claim.decoding, each.verdict.word, each.verdict.yes, each.verdict.of)
            by_experiment.setdefault(each.experiment, []).append(word)
    found = [f"[{name}]({link(name)}) {together(words)}" for name, words in by_experiment.items()]
    return "<br>".join(found) or f"not run (`{those[0].experiment}`)"


def main() -> None:
    """Write the table into the page."""
    table = page([*answers(), *answers_of_reading()])
    write_whole(PAGE, filled(PAGE.read_text(encoding="utf-8"), {"claims": table}))
    print(PAGE)


if __name__ == "__main__":
    main()
