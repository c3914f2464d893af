"""What LLDS says of a step on one question and of hidden states, put to the checkpoints behind influence.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean

from holdfast_research.experiments.arms import LLDS_PAPER
from holdfast_research.judge import Answer, Test, tally
from holdfast_research.pages.influence import Phase, Probed, ProbedRun, comparable, fallen
from holdfast_research.ranks import lowest_overlap
from holdfast_research.values import Claim

UP_TO_THE_FALL: tuple[Phase, ...] = ("before", "at")
HALF = 0.5
"""Of the questions in Figure 3, and the lower of the two overlaps that NTHR finds. As the least cosine that is alike it
is ours: LLDS has a constant and no number."""


def claims(runs: Sequence[ProbedRun]) -> tuple[Claim, ...]:
    """The claims, each with a test of these runs: it takes no others."""
    before, at = (fallen([c for run in runs for c in run.during(phase)], "question") for phase in UP_TO_THE_FALL)
    named, less_likely = map(sum, zip(*map(_named, runs), strict=True))

    def of(ask: Callable[[ProbedRun], Answer], question: str) -> Test:
        return lambda _: tally({run.seed: ask(run) for run in runs}, question, "no checkpoint had enough questions")

    return (
        Claim(
            paper=LLDS_PAPER,
            where="Figure 3 (v1), as in the paper: weights reset, one step on one question alone",
            says="Late in training, more than half of the questions lose likelihood in an update.",
            asks="by the mean over a question's correct rollouts more than half do, at some checkpoint up to the fall",
            test=of(
                _most_displaced,
                f"over half of the questions lost likelihood (in all {at} from the peak to the fall, {before} before)",
            ),
        ),
        Claim(
            paper=LLDS_PAPER,
            where="Definition A.3 (2) of v2, its second half",
            says="Meanwhile hidden states of incorrect rollouts stay similar to those of correct ones.",
            asks=f"the mean cosine of first actions, of one question, is above {HALF} at each checkpoint from the peak "
            "to the fall. The paper names no bound, and it is as high long before",
            test=of(_alike, "first actions of incorrect rollouts were similar to those of correct ones"),
        ),
        Claim(
            paper=LLDS_PAPER,
            where="Theorem 4.2, after Theorem 4.4 of NTHR: the larger GWHES, the less likelihood grows",
            says="GWHES ranks the questions by how much likelihood their correct rollouts gain in a step.",
            asks="of the fifth that gains least by the derivative it ranks half lowest, as NTHR finds (50 and 60 %): a "
            "mean over checkpoints up to the fall",
            test=of(_ranked, "half of the lowest fifth was ranked lowest"),
        ),
        Claim(
            paper=LLDS_PAPER,
            where="Theorem 4.2, by its sign",
            says="GWHES names the correct rollouts that a step makes less likely.",
            asks="half of those that become less likely by the derivative, from the peak to the fall",
            test=of(_half_named, f"half of them were named (in all {named} of {less_likely})"),
        ),
    )


def _up_to_the_fall(run: ProbedRun) -> list[Probed]:
    return comparable(c for phase in UP_TO_THE_FALL for c in run.during(phase))


def _most_displaced(run: ProbedRun) -> Answer:
    changes = [[change for _, _, change in c.influence.pairs("question", "optimizer")] for c in _up_to_the_fall(run)]
    shares = [mean(change < 0 for change in those) for those in changes]
    return (max(shares) > HALF, {"largest share": max(shares)}) if shares else (None, {})


def _alike(run: ProbedRun) -> Answer:
    firsts = [pair.incorrect_correct for c in run.during("at") for pair in c.influence.similarity if pair.action == 1]
    cosines = [cosine for cosine in firsts if cosine is not None]
    return (min(cosines) > HALF, {"lowest cosine": min(cosines)}) if cosines else (None, {})


def _ranked(run: ProbedRun) -> Answer:
    overlaps = []
    for checkpoint in _up_to_the_fall(run):
        _, predicted, measured = zip(*checkpoint.influence.pairs("question", "gradient"), strict=True)
        overlaps.append(lowest_overlap(predicted, measured) or 0.0)
    return (mean(overlaps) >= HALF, {"mean overlap": mean(overlaps)}) if overlaps else (None, {})


def _half_named(run: ProbedRun) -> Answer:
    named, less_likely = _named(run)
    return (2 * named >= less_likely if less_likely else None), {"named": named, "less likely": less_likely}


def _named(run: ProbedRun) -> tuple[int, int]:
    """Of the correct rollouts that become less likely from the peak to the fall: those GWHES says to, and all."""
    pairs = [pair for c in run.during("at") for pair in c.influence.pairs("rollout", "gradient")]
    predicted = [prediction for _, prediction, change in pairs if change < 0]
    return sum(prediction < 0 for prediction in predicted), len(predicted)
