"""How runs end: which collapse, hold, fall later, end higher."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.collapse import PLATEAU_ROWS
from holdfast_research.judge.asking import MIN_STEPS, Answer, Numbers, Test, each_pair, each_seed
from holdfast_research.series import RISE, RunSeries, RunSummary, between, drop_step, summarise, surge_step

SHORT = f"the run has fewer than {MIN_STEPS} steps"
MARGIN = 0.03
"""Of test EM over 400 questions, and of rewards over 800 rollouts: the standard error of each is about 0.02."""


@dataclass(frozen=True, slots=True)
class Score:
    """A number of a finished run that claims compare."""

    name: str
    of: Callable[[RunSummary], float]
    margin: float = MARGIN
    """Differences up to this tell nothing."""


SAMPLED_EM = Score("sampled test EM", lambda summary: summary.em_after)
GREEDY_EM = Score("greedy test EM", lambda summary: summary.greedy_after)
DISPLACEMENT = Score("displacement", lambda summary: summary.displacement, margin=0.0)


def collapses(arm: str) -> Test:
    return each_seed(arm, _collapsed, f"{arm} held for {PLATEAU_ROWS} steps and then lost 40 % of its peak", SHORT)


def falls(arm: str) -> Test:
    return each_seed(arm, _fell, f"{arm} lost 40 % of its peak", SHORT)


def stays_down(arm: str) -> Test:
    """Whether the reward of a run that fell is still down at the end, or came back."""

    def ask(run: RunSeries) -> Answer:
        fell, numbers = _fell(run)
        return (bool(run.reward.fallen[-1]) if fell else None), numbers

    return each_seed(arm, ask, f"{arm} was still down at its last step", "it did not fall")


def holds(arm: str) -> Test:
    return each_seed(arm, _held, f"{arm} rose, never lost 40 % of its peak, and ended at 85 % of it or above", SHORT)


def prevents_where(arm: str, other: str) -> Test:
    """No fall, whatever else becomes of the run, on the seeds on which `other` fell."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        fell, _ = _fell(control)
        too, numbers = _fell(run)
        return (None if not fell or too is None else not too), numbers

    return each_pair(arm, other, ask, f"{arm} did not lose 40 % of its peak where {other} did", f"{other} did not")


def holds_where(arm: str, other: str) -> Test:
    """Only seeds on which `other` fell can tell a cure from a task that needs none."""

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


def no_surge_where(arm: str, other: str, rise: float = 0.3) -> Test:
    """Whether a method stops what goes before a collapse, and not only the collapse until the last step."""

    question = f"entropy of {arm} did not surge where that of {other} did"
    return _of_surges(arm, other, rise, lambda ours, theirs: ours is None, question)


def postpones_surge(arm: str, other: str, steps: int = 20, rise: float = 0.3) -> Test:
    """Whether entropy rises later than that of `other`, or never."""

    question = f"entropy of {arm} surged {steps} steps later than that of {other}, or never,"
    return _of_surges(arm, other, rise, lambda ours, theirs: ours is None or ours - theirs >= steps, question)


def delays(arm: str, other: str, steps: int = 5) -> Test:
    def ask(run: RunSeries, control: RunSeries) -> Answer:
        early, late = drop_step(control), drop_step(run)
        numbers: Numbers = {"drop": late, f"drop of {other}": early}
        if early is None:
            return None, numbers
        return late is None or late - early >= steps, numbers

    return each_pair(
        arm, other, ask, f"{arm} dropped {steps} steps later than {other} or never", f"{other} never dropped"
    )


def drops_after_as_many_updates(arm: str, other: str, within: float = 1.5) -> Test:
    """Whether optimizer steps, not rollout batches, tell when the reward drops: their ratio is at most `within`."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        ours, theirs = (_updates_until(one, drop_step(one)) for one in (run, control))
        numbers: Numbers = {"optimizer steps to the drop": ours, f"of {other}": theirs}
        if ours is None or theirs is None:
            return None, numbers
        return max(ours, theirs) <= within * min(ours, theirs), numbers

    question = f"{arm} dropped after as many optimizer steps as {other}, within a factor of {within:g},"
    return each_pair(arm, other, ask, question, f"{arm} or {other} never dropped")


def falls_after_delay(arm: str, other: str, steps: int = 5) -> Test:
    """Delays, and falls too: a strength that is too weak."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        (fell, _), (too, numbers) = _fell(control), _fell(run)
        early, late = drop_step(control), drop_step(run)
        numbers |= {"drop": late, f"drop of {other}": early}
        if not fell or early is None or too is None:
            return None, numbers
        return too and late is not None and late - early >= steps, numbers

    return each_pair(arm, other, ask, f"{arm} fell, {steps} steps later than {other},", f"{other} did not fall")


def ends_higher(arm: str, other: str, score: Score = SAMPLED_EM) -> Test:
    def ask(run: RunSeries, control: RunSeries) -> Answer:
        ours, theirs = score.of(summarise(run)), score.of(summarise(control))
        near = not abs(ours - theirs) > score.margin  # true of NaN too: a score that was not measured
        return (None if near else ours > theirs), {arm: ours, other: theirs}

    question, silence = f"{arm} ended above {other} in {score.name}", f"they ended within {score.margin} of it"
    return each_pair(arm, other, ask, question, silence)


def peaks_higher(arm: str, other: str) -> Test:
    """Against the best that `other` ever was, as where its score is from before its collapse; over steps both have."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        last = min(int(one.rows[-1]["step"]) for one in (run, control))
        ours, theirs = (
            max((v for s, v in zip(*one.means("reward/mean"), strict=True) if s <= last), default=math.nan)
            for one in (run, control)
        )
        near = not abs(ours - theirs) > MARGIN
        return (None if near else ours > theirs), {f"highest of {arm}": ours, f"of {other}": theirs}

    return each_pair(arm, other, ask, f"{arm} had a higher peak than {other}", f"they were within {MARGIN} of it")


def _of_surges(arm: str, other: str, rise: float, yes: Callable[[int | None, int], bool], question: str) -> Test:
    """`yes(step of our surge, step of theirs)` on the seeds on which `other` has one."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        ours, theirs = (surge_step(one, "entropy/mean", rise) for one in (run, control))
        measured = bool(run.means("entropy/mean")[1])
        return (yes(ours, theirs) if measured and theirs is not None else None), {
            f"surge of {arm}": ours,
            f"of {other}": theirs,
        }

    return each_pair(arm, other, ask, question, f"{other} had no surge, or a series is missing")


def _updates_until(run: RunSeries, step: int | None) -> float | None:
    """Optimizer steps made in the training steps up to this one."""
    return None if step is None else sum(between(run, "optimizer_steps_per_rollout", 1, step)) or None


def _collapsed(run: RunSeries) -> Answer:
    r = summarise(run)
    numbers: Numbers = {
        "first": r.first,
        "peak": r.peak,
        "held": r.held,
        "lowest after": r.lowest_after,
        "last": r.last,
    }
    return (run.collapsed if len(run.rows) >= MIN_STEPS else None), numbers


def _fell(run: RunSeries) -> Answer:
    r = summarise(run)
    numbers: Numbers = {"peak": r.peak, "lowest after": r.lowest_after, "last": r.last}
    return (run.fell if len(run.rows) >= MIN_STEPS else None), numbers


def _held(run: RunSeries) -> Answer:
    r = summarise(run)
    held = r.peak - r.first >= RISE and r.last >= 0.85 * r.peak and not run.fell
    numbers: Numbers = {"first": r.first, "peak": r.peak, "last": r.last}
    return (held if len(run.rows) >= MIN_STEPS else None), numbers
