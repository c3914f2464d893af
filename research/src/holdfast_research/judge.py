"""The tests that claims are put to, and those of how runs end. Each function makes a pure test: runs in, verdict out.

`signs` has the tests of what moves before.

A test asks one question of every seed: yes, no, or no answer (the reward never fell, a series is missing). Shown means
yes on every seed, partly on at least half of them, not shown on fewer. With fewer than `MIN_SEEDS` seeds that can
answer, the verdict is cannot tell: a single run shows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from holdfast_research.readings import wilson
from holdfast_research.series import RISE, RunSeries, RunSummary, drop_step, summarise
from holdfast_research.values import Runs, Status, Verdict

MIN_SEEDS = 3
MIN_STEPS = 40
"""Steps of a run that can be asked whether it collapses or holds: a collapse is 20 steps of plateau and a fall."""

NOBODY = "no finished run to ask"

Test = Callable[[Runs], Verdict]
Numbers = dict[str, float | None]
Answer = tuple[bool | None, Numbers]


def tally(answers: Mapping[int, Answer], question: str, silence: str) -> Verdict:
    """The verdict of some seeds' answers, with the 95 % interval of the share that said yes.

    >>> tally({1: (True, {}), 2: (True, {}), 3: (False, {})}, "fell first", "").because
    'fell first on 2 of 3 seeds (0.21 to 0.94)'
    >>> tally({1: (True, {}), 2: (None, {})}, "fell first", "the reward never fell").because
    'only 1 of the 3 seeds it takes can answer; on 1 the reward never fell'
    """
    if not answers:
        return Verdict(Status.CANNOT_TELL, NOBODY)
    numbers = {str(seed): values for seed, (_, values) in answers.items()}
    decided = [answer for answer, _ in answers.values() if answer is not None]
    silent = len(answers) - len(decided)
    aside = f"; on {silent} {silence}" if silent else ""
    yes, of = sum(decided), len(decided)
    if of < MIN_SEEDS:
        few = f"only {of}" if decided else "none"
        because = f"{few} of the {MIN_SEEDS} seeds it takes can answer{aside}"
        return Verdict(Status.CANNOT_TELL, because, numbers, yes, of)
    word = Status.SHOWN if yes == of else Status.PARTLY if 2 * yes >= of else Status.NOT_SHOWN
    low, high = wilson(yes, of)
    return Verdict(word, f"{question} on {yes} of {of} seeds ({low:.2f} to {high:.2f}){aside}", numbers, yes, of)


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
    """The test, asked of the runs of an arm that did not fall."""

    def held(runs: Runs) -> Verdict:
        every = runs.get(arm, ())
        steady = tuple(run for run in every if not run.fell)
        if every and not steady:
            return Verdict(Status.CANNOT_TELL, f"{arm} fell on every seed")
        verdict = test({**runs, arm: steady})
        fell = len(every) - len(steady)
        return replace(verdict, because=f"{verdict.because}; on {fell} it fell") if fell else verdict

    return held


def where_it_learned(arm: str, test: Test) -> Test:
    """The test, asked on the seeds on which `arm` rose and held: where there is nothing to learn, no habit changes."""

    def learned(runs: Runs) -> Verdict:
        every = runs.get(arm, ())
        if not every:
            return test(runs)
        seeds = {run.seed for run in every if _held(run)[0]}
        if not seeds:
            return Verdict(Status.CANNOT_TELL, f"{arm} rose by {RISE} and held on 0 of {len(every)} seeds")
        verdict = test({name: tuple(run for run in those if run.seed in seeds) for name, those in runs.items()})
        rest = len(every) - len(seeds)
        return replace(verdict, because=f"{verdict.because}; on {rest} {arm} did not learn") if rest else verdict

    return learned


# ---- how runs end: which collapse, hold, fall later, end higher


SHORT = f"the run has fewer than {MIN_STEPS} steps"
PEAK_ROLLOUTS = 800
"""Behind a five-step mean of the reward in the recipe `flaky`."""


def noise(answers: int) -> float:
    """How far two tests of equally good models come apart by chance: 95 % of the differences are smaller.

    A test with exact match p over n answers has the variance p (1 − p) / n, and the difference of two independent ones
    twice that. It is largest at p = 1/2: 1.96 √(2 · ¼ / n). At p = 0.9 it is three fifths of that.

    >>> round(noise(400), 3), round(noise(200), 3)
    (0.069, 0.098)
    """
    return 1.96 * math.sqrt(0.5 / answers)


@dataclass(frozen=True, slots=True)
class Score:
    """A number of a finished run that claims compare."""

    name: str
    of: Callable[[RunSummary], float]
    noise: Callable[[RunSeries], float] = lambda run: noise(run.results["questions"])
    """Of the run: differences up to this do not count."""


SAMPLED_EM = Score("sampled test EM", lambda summary: summary.em_after)
GREEDY_EM = Score("greedy test EM", lambda summary: summary.greedy_after)
DISPLACEMENT = Score("displacement", lambda summary: summary.displacement, noise=lambda run: 0.0)


def falls(arm: str) -> Test:
    """Whether the reward fell at some step."""
    return each_seed(arm, _fell, f"{arm} lost 40 % of its peak", SHORT)


def stays_down(arm: str) -> Test:
    """Whether the reward of a run that fell is still down at the end, or came back."""

    def ask(run: RunSeries) -> Answer:
        fell, numbers = _fell(run)
        return (bool(run.reward.fallen[-1]) if fell else None), numbers

    return each_seed(arm, ask, f"{arm} was still down at its last step", "it did not fall")


def holds(arm: str) -> Test:
    """Whether the reward rose and never fell."""
    return each_seed(arm, _held, f"{arm} rose, never lost 40 % of its peak, and ended at 85 % of it or above", SHORT)


def prevents_where(arm: str, other: str) -> Test:
    """Whether the run does not fall, on the seeds on which `other` fell. A run of few steps that did not fall cannot
    say."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        (fell, _), (falls_too, numbers) = _fell(control), _fell(run)
        return (not falls_too if fell and falls_too is not None else None), numbers

    return each_pair(
        arm, other, ask, f"{arm} did not lose 40 % of its peak where {other} did", f"{other} did not, or {SHORT}"
    )


def holds_where(arm: str, other: str) -> Test:
    """Whether the run holds, on the seeds on which `other` fell: the others cannot tell a remedy from an easy task."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        fell, _ = _fell(control)
        held, numbers = _held(run)
        return (held if fell else None), numbers

    return each_pair(
        arm,
        other,
        ask,
        f"{arm} ended at 85 % of its peak or above, and never lost 40 % of it, where {other} did",
        f"{other} did not fall",
    )


def delays(arm: str, other: str, steps: int = 5) -> Test:
    """Whether the reward drops this many steps later than that of `other`, or never."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        early, late = drop_step(control), drop_step(run)
        numbers: Numbers = {"drop": late, f"drop of {other}": early}
        if early is None:
            return None, numbers
        return late is None or late - early >= steps, numbers

    return each_pair(
        arm, other, ask, f"{arm} dropped {steps} steps later than {other} or never", f"{other} never dropped"
    )


def falls_after_delay(arm: str, other: str, steps: int = 5) -> Test:
    """Whether the run falls too, but later: a coefficient that is too small."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        (fell, _), (too, numbers) = _fell(control), _fell(run)
        early, late = drop_step(control), drop_step(run)
        numbers |= {"drop": late, f"drop of {other}": early}
        if not fell or early is None or too is None:
            return None, numbers
        return too and late is not None and late - early >= steps, numbers

    return each_pair(arm, other, ask, f"{arm} fell, {steps} steps later than {other},", f"{other} did not fall")


def ends_higher(arm: str, other: str, score: Score = SAMPLED_EM) -> Test:
    """Whether the score at the end is higher, by more than its margin."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        ours, theirs = score.of(summarise(run)), score.of(summarise(control))
        near = abs(ours - theirs) <= score.noise(run)
        return (None if near else ours > theirs), {arm: ours, other: theirs}

    def test(runs: Runs) -> Verdict:
        scored = {
            name: tuple(run for run in runs.get(name, ()) if not math.isnan(score.of(summarise(run))))
            for name in (arm, other)
        }
        question, silence = f"{arm} ended above {other} in {score.name}", "they ended within the noise of two tests"
        return each_pair(arm, other, ask, question, silence)(scored)

    return test


def ends_no_lower(arm: str, other: str, score: Score = SAMPLED_EM) -> Test:
    """Whether the score at the end is not lower by more than its noise. Stale rollouts are judged by this: their reward
    is that of older weights, and says little of those that learn."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        ours, theirs = score.of(summarise(run)), score.of(summarise(control))
        known = not math.isnan(ours) and not math.isnan(theirs)
        return (theirs - ours <= score.noise(run) if known else None), {arm: ours, other: theirs}

    return each_pair(arm, other, ask, f"{arm} did not end below {other} in {score.name}", "no test was made")


def gains(arm: str, by: float) -> Test:
    """Whether sampled EM on the closing evaluation is so much higher after training than before."""

    def ask(run: RunSeries) -> Answer:
        summary = summarise(run)
        before, after = summary.em_before, summary.em_after
        known = not math.isnan(before) and not math.isnan(after)
        return (after - before >= by if known else None), {"before": before, "after": after}

    return each_seed(arm, ask, f"sampled EM rose by {by} or more", "the start was not evaluated")


def peaks_higher(arm: str, other: str) -> Test:
    """Whether the peak is higher than that of `other`, over the steps both have."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        last = min(int(each.rows[-1]["step"]) for each in (run, control))
        ours, theirs = (
            max((v for s, v in zip(*each.means("reward/mean"), strict=True) if s <= last), default=math.nan)
            for each in (run, control)
        )
        near = not abs(ours - theirs) > noise(PEAK_ROLLOUTS)
        return (None if near else ours > theirs), {f"highest of {arm}": ours, f"of {other}": theirs}

    return each_pair(arm, other, ask, f"{arm} had a higher peak than {other}", "they were within the noise")


def _fell(run: RunSeries) -> Answer:
    r = summarise(run)
    numbers: Numbers = {"peak": r.peak, "lowest after": r.lowest_after, "last": r.last}
    # A short run that fell has fallen. That a run did not fall takes enough steps.
    return (run.fell or (False if len(run.rows) >= MIN_STEPS else None)), numbers


def _held(run: RunSeries) -> Answer:
    r = summarise(run)
    held = r.peak - r.first >= RISE and r.last >= 0.85 * r.peak and not run.fell
    numbers: Numbers = {"first": r.first, "peak": r.peak, "last": r.last}
    return (held if len(run.rows) >= MIN_STEPS else None), numbers
