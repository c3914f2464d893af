"""One question asked of every seed, and the word for the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from holdfast_research.series import RunSeries
from holdfast_research.values import Runs, Verdict, Word

MIN_SEEDS = 3
MIN_STEPS = 40
"""Of a run that is asked whether it collapses or holds: a collapse is 20 steps of plateau and a fall."""

NOBODY = "no finished run to ask"
NO_DROP = "the reward never dropped, or a series is missing"

Test = Callable[[Runs], Verdict]
Numbers = dict[str, float | None]
Answer = tuple[bool | None, Numbers]


def tally(answers: Mapping[int, Answer], question: str, silence: str) -> Verdict:
    """The verdict of some seeds' answers.

    >>> tally({1: (True, {}), 2: (True, {}), 3: (False, {})}, "fell first", "").because
    'fell first on 2 of 3 seeds'
    >>> tally({1: (True, {}), 2: (None, {})}, "fell first", "the reward never fell").because
    'only 1 of the 3 seeds it takes can answer; on 1 the reward never fell'
    """
    if not answers:
        return Verdict(Word.CANNOT_TELL, NOBODY)
    numbers = {str(seed): found for seed, (_, found) in answers.items()}
    decided = [answer for answer, _ in answers.values() if answer is not None]
    silent = len(answers) - len(decided)
    aside = f"; on {silent} {silence}" if silent else ""
    if len(decided) < MIN_SEEDS:
        few = f"only {len(decided)}" if decided else "none"
        return Verdict(Word.CANNOT_TELL, f"{few} of the {MIN_SEEDS} seeds it takes can answer{aside}", numbers)
    yes = sum(decided)
    word = Word.SHOWN if yes == len(decided) else Word.PARTLY if 2 * yes >= len(decided) else Word.NOT_SHOWN
    return Verdict(word, f"{question} on {yes} of {len(decided)} seeds{aside}", numbers)


def each_seed(arm: str, ask: Callable[[RunSeries], Answer], question: str, silence: str) -> Test:
    """Ask every run of an arm."""

    def test(runs: Runs) -> Verdict:
        return tally({run.seed: ask(run) for run in runs.get(arm, ())}, question, silence)

    return test


def each_pair(arm: str, other: str, ask: Callable[[RunSeries, RunSeries], Answer], question: str, silence: str) -> Test:
    """Ask the runs of two arms with the same seed: `ask(run of arm, run of other)`."""

    def test(runs: Runs) -> Verdict:
        others = {run.seed: run for run in runs.get(other, ())}
        pairs = {run.seed: ask(run, others[run.seed]) for run in runs.get(arm, ()) if run.seed in others}
        return tally(pairs, question, silence)

    return test


def where_it_held(arm: str, test: Test) -> Test:
    """Of the runs of an arm that did not fall: what a claim is held against is in a run that holds."""

    def held(runs: Runs) -> Verdict:
        found = runs.get(arm, ())
        kept = tuple(run for run in found if not run.fell)
        if found and not kept:
            return Verdict(Word.CANNOT_TELL, f"{arm} fell on every seed")
        verdict = test({**runs, arm: kept})
        fell = len(found) - len(kept)
        return replace(verdict, because=f"{verdict.because}; on {fell} it fell") if fell else verdict

    return held
