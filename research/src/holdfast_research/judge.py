"""The tests that claims are put to. Each function makes a pure test: runs in, verdict out.

A test asks one question of every seed: yes, no, or no answer (the reward never fell, a series is missing). Shown means
yes on every seed, partly on at least half of them, not shown on fewer. With fewer than `MIN_SEEDS` seeds that can
answer, the verdict is cannot tell: a single run shows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import mean, median

from holdfast.base.collapse import PLATEAU_ROWS
from holdfast_research.readings import wilson
from holdfast_research.series import (
    HALF,
    RISE,
    RunSeries,
    RunSummary,
    at_step,
    below_step,
    between,
    decay_step,
    drop_step,
    summarise,
    surge_step,
)
from holdfast_research.values import Runs, Status, Verdict

MIN_SEEDS = 3
MIN_STEPS = 40
"""Steps of a run that can be asked whether it collapses or holds: a collapse is 20 steps of plateau and a fall."""

NOBODY = "no finished run to ask"
NO_DROP = "the reward never dropped, or a series is missing"

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
    if len(decided) < MIN_SEEDS:
        few = f"only {len(decided)}" if decided else "none"
        return Verdict(Status.CANNOT_TELL, f"{few} of the {MIN_SEEDS} seeds it takes can answer{aside}", numbers)
    yes = sum(decided)
    word = Status.SHOWN if yes == len(decided) else Status.PARTLY if 2 * yes >= len(decided) else Status.NOT_SHOWN
    low, high = wilson(yes, len(decided))
    return Verdict(word, f"{question} on {yes} of {len(decided)} seeds ({low:.2f} to {high:.2f}){aside}", numbers)


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
MARGIN = 0.03
"""The least difference of test EM over 400 questions, or of rewards over 800 rollouts, that counts; the standard error
of each is about 0.02."""


@dataclass(frozen=True, slots=True)
class Score:
    """A number of a finished run that claims compare."""

    name: str
    of: Callable[[RunSummary], float]
    margin: float = MARGIN
    """Differences up to this do not count."""


SAMPLED_EM = Score("sampled test EM", lambda summary: summary.em_after)
GREEDY_EM = Score("greedy test EM", lambda summary: summary.greedy_after)
DISPLACEMENT = Score("displacement", lambda summary: summary.displacement, margin=0.0)


def collapses(arm: str) -> Test:
    """Whether the reward fell from a plateau."""
    return each_seed(arm, _collapsed, f"{arm} held for {PLATEAU_ROWS} steps and then lost 40 % of its peak", SHORT)


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


def no_surge_where(arm: str, other: str, rise: float = 0.3) -> Test:
    """Whether a method stops what precedes a collapse, and not only the collapse until the last step."""
    question = f"entropy of {arm} did not surge where that of {other} did"
    return _of_surges(arm, other, rise, lambda ours, theirs: ours is None, question)


def postpones_surge(arm: str, other: str, steps: int = 20, rise: float = 0.3) -> Test:
    """Whether entropy rises later than that of `other`, or never."""
    question = f"entropy of {arm} surged {steps} steps later than that of {other}, or never,"
    return _of_surges(arm, other, rise, lambda ours, theirs: ours is None or ours - theirs >= steps, question)


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


def drops_after_as_many_updates(arm: str, other: str, within: float = 1.5) -> Test:
    """Whether optimizer steps, not rollout batches, tell when the reward drops: their ratio is at most `within`."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        ours, theirs = (_updates_until(each, drop_step(each)) for each in (run, control))
        numbers: Numbers = {"optimizer steps to the drop": ours, f"of {other}": theirs}
        if ours is None or theirs is None:
            return None, numbers
        return max(ours, theirs) <= within * min(ours, theirs), numbers

    question = f"{arm} dropped after as many optimizer steps as {other}, within a factor of {within:g},"
    return each_pair(arm, other, ask, question, f"{arm} or {other} never dropped")


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
        near = not abs(ours - theirs) > score.margin  # true of NaN too: a score that was not measured
        return (None if near else ours > theirs), {arm: ours, other: theirs}

    question, silence = f"{arm} ended above {other} in {score.name}", f"they ended within {score.margin} of it"
    return each_pair(arm, other, ask, question, silence)


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
        near = not abs(ours - theirs) > MARGIN
        return (None if near else ours > theirs), {f"highest of {arm}": ours, f"of {other}": theirs}

    return each_pair(arm, other, ask, f"{arm} had a higher peak than {other}", f"they were within {MARGIN} of it")


def _of_surges(arm: str, other: str, rise: float, yes: Callable[[int | None, int], bool], question: str) -> Test:
    """`yes(step of our surge, step of theirs)` on the seeds on which `other` has one."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        ours, theirs = (surge_step(each, "entropy/mean", rise) for each in (run, control))
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
    # A short run that fell has fallen. That a run did not fall takes enough steps.
    return (run.fell or (False if len(run.rows) >= MIN_STEPS else None)), numbers


def _held(run: RunSeries) -> Answer:
    r = summarise(run)
    held = r.peak - r.first >= RISE and r.last >= 0.85 * r.peak and not run.fell
    numbers: Numbers = {"first": r.first, "peak": r.peak, "last": r.last}
    return (held if len(run.rows) >= MIN_STEPS else None), numbers


# ---- what moves before the reward falls


NO_FALL = "the reward never dropped, or displacement was not below 0 for long before"
LIKELIHOODS = {"likelihood/correct", "likelihood/incorrect"}


def displaced_before_drop(arm: str) -> Test:
    """Whether displacement of correct rollouts was below 0 before the reward dropped."""

    def ask(run: RunSeries) -> Answer:
        drop, below = drop_step(run), below_step(run, "displacement/correct", 0.0)
        return _leads(run, "displacement/correct", below, drop), {"displacement < 0": below, "reward drop": drop}

    return each_seed(arm, ask, "correct rollouts were displaced before the reward dropped", NO_DROP)


def never_displaced(arm: str) -> Test:
    """The control of `displaced_before_drop`, for a run that holds."""

    def ask(run: RunSeries) -> Answer:
        _, values = run.means("displacement/correct")
        if not values:
            return None, {}
        below = below_step(run, "displacement/correct", 0.0)
        return below is None, {"displacement < 0": below, "lowest": min(values)}

    return each_seed(arm, ask, f"displacement of {arm} never fell below 0", "displacement was not measured")


def likelihood_decays_first(arm: str) -> Test:
    """Whether the likelihood of correct rollouts peaks and decays before the reward peaks."""

    def ask(run: RunSeries) -> Answer:
        drop = drop_step(run)
        top = decay_step(run, "likelihood/correct", drop) if drop is not None else None
        numbers: Numbers = {"summit": top, "reward drop": drop}
        if drop is None or top is None:
            return None, numbers
        peak = decay_step(run, "reward/mean", drop)
        high, low = at_step(run, "likelihood/correct", top), at_step(run, "likelihood/correct", drop)
        assert peak is not None and high is not None and low is not None
        numbers |= {"summit of the reward": peak, "nats per token lost by the drop": high - low}
        return top < peak and drop - top >= 5 and high - low > 0.01, numbers

    return each_seed(arm, ask, "the likelihood of correct rollouts decayed while the reward still rose", NO_DROP)


def displacement_deepens(arm: str) -> Test:
    """Definition A.3 (3): whether displacement is lower in the second half of the steps from its first below 0 to the
    drop."""

    def ask(run: RunSeries) -> Answer:
        values = _displaced_part(run, "displacement/correct")
        if values is None:
            return None, {"reward drop": drop_step(run)}
        half = len(values) // 2
        first, second = mean(values[:half]), mean(values[half:])
        return second < first, {"nats per token, first half": first, "second half": second}

    return each_seed(arm, ask, "displacement grew until the reward dropped", NO_FALL)


def incorrect_not_raised(arm: str) -> Test:
    """Definition A.3 (2), first half: whether incorrect rollouts do not become likelier over those steps."""

    def ask(run: RunSeries) -> Answer:
        values = _displaced_part(run, "displacement/incorrect")
        if values is None:
            return None, {"reward drop": drop_step(run)}
        return mean(values) <= 0, {"nats per token": mean(values)}

    return each_seed(arm, ask, "incorrect rollouts became no likelier while correct ones were displaced", NO_FALL)


def _displaced_part(run: RunSeries, metric: str) -> list[float] | None:
    """The metric's means from where that of correct rollouts is first below 0 to the drop; None if there are not 4."""
    drop, below = drop_step(run), below_step(run, "displacement/correct", 0.0)
    if drop is None or below is None:
        return None
    values = [v for s, v in zip(*run.means(metric), strict=True) if below <= s <= drop]
    return values if len(values) >= 4 else None


def incorrect_below_correct(arm: str) -> Test:
    """Whether incorrect rollouts are less likely than correct ones, in 90 % of the later half of the steps before the
    drop, or of all steps without a drop."""

    def ask(run: RunSeries) -> Answer:
        last = drop_step(run) or int(run.rows[-1]["step"])
        rows = [r for r in run.rows if last / 2 < r["step"] <= last]
        pairs = [(r["likelihood/incorrect"], r["likelihood/correct"]) for r in rows if r.keys() >= LIKELIHOODS]
        if not pairs:
            return None, {}
        share = mean(incorrect < correct for incorrect, correct in pairs)
        return share >= 0.9, {"share of those steps": share}

    return each_seed(arm, ask, f"incorrect rollouts of {arm} were less likely than correct ones", "a series is missing")


def entropy_surges_alone(arm: str, other: str, rise: float = 0.3, change: float = 0.15) -> Test:
    """Whether the metric `other`, when entropy has risen by `rise` nats, is within the fraction `change` of its value
    at the lowest entropy."""

    def ask(run: RunSeries) -> Answer:
        surge = surge_step(run, "entropy/mean", rise)
        if surge is None:
            return None, {"entropy surge": None}
        steps, entropy = run.means("entropy/mean")
        before = [(v, s) for s, v in zip(steps, entropy, strict=True) if s <= surge]
        calm = min(before)[1]
        was, became = at_step(run, other, calm), at_step(run, other, surge)
        if not was or became is None:
            return None, {"entropy surge": surge}
        ratio = became / was
        return abs(ratio - 1) <= change, {"entropy surge": surge, f"{other} at surge / before": ratio}

    return each_seed(
        arm, ask, f"entropy had surged while {other} stood still", "entropy never surged, or a series is missing"
    )


def entropy_before_drop(arm: str, rise: float = 0.3) -> Test:
    """Whether entropy rose by `rise` nats before the reward dropped."""

    def ask(run: RunSeries) -> Answer:
        drop, surge = drop_step(run), surge_step(run, "entropy/mean", rise)
        return _leads(run, "entropy/mean", surge, drop), {"entropy surge": surge, "reward drop": drop}

    return each_seed(arm, ask, f"entropy rose {rise} nats above its lowest before the reward dropped", NO_DROP)


def gradient_calm_at_drop(arm: str, factor: float = 2.0) -> Test:
    """Whether the gradient norm is at most `factor` × its earlier median when the reward drops."""

    def ask(run: RunSeries) -> Answer:
        drop = drop_step(run)
        if drop is None:
            return None, {"reward drop": None}
        before = between(run, "grad/norm", 1, drop - 5)
        now = at_step(run, "grad/norm", drop)
        if not before or now is None:
            return None, {"reward drop": drop}
        return now <= factor * median(before), {"norm at the drop": now, "median before": median(before)}

    return each_seed(
        arm, ask, f"the gradient norm was at most {factor:g} × its median when the reward dropped", NO_DROP
    )


def gradient_surges(arm: str, factor: float = 2.0) -> Test:
    """Whether a five-step mean of the gradient norm from the drop on exceeds `factor` × the earlier median."""

    def ask(run: RunSeries) -> Answer:
        drop = drop_step(run)
        if drop is None:
            return None, {"reward drop": None}
        before = between(run, "grad/norm", 1, drop - 5)
        later = [v for s, v in zip(*run.means("grad/norm"), strict=True) if s >= drop]
        if not before or not later:
            return None, {"reward drop": drop}
        return max(later) > factor * median(before), {"largest mean": max(later), "median before": median(before)}

    return each_seed(arm, ask, f"the gradient norm exceeded {factor:g} × its earlier median", NO_DROP)


def ratio_drifts_before_drop(arm: str, level: float = HALF) -> Test:
    """Whether the mean of ln ∏ r over rollouts was below `level` nats before the reward dropped."""

    def ask(run: RunSeries) -> Answer:
        drop, below = drop_step(run), below_step(run, "ratio/log_product", level)
        return _leads(run, "ratio/log_product", below, drop), {"ratio product halved": below, "reward drop": drop}

    return each_seed(arm, ask, "the product of a rollout's ratios had halved before the reward dropped", NO_DROP)


def ratio_never_drifts(arm: str, level: float = HALF) -> Test:
    """The control of `ratio_drifts_before_drop`, for a run that holds or a method that stops the drift."""

    def ask(run: RunSeries) -> Answer:
        _, values = run.means("ratio/log_product")
        if not values:
            return None, {}
        return min(values) >= level, {"lowest mean of ln ∏ r": min(values)}

    return each_seed(arm, ask, f"the product of {arm}'s ratios never halved", "a series is missing")


def queries_drift_more(arm: str) -> Test:
    """Whether queries of rollouts with A > 0 lose more per token than their thoughts, up to the reward's drop."""

    def ask(run: RunSeries) -> Answer:
        drop = drop_step(run)
        drift = {kind: between(run, f"drift/positive/{kind}", 1, drop or 0) for kind in ("query", "thought", "answer")}
        if not all(drift.values()):
            return None, {"reward drop": drop}
        means: Numbers = {f"nats per token, {kind}": mean(values) for kind, values in drift.items()}
        return mean(drift["query"]) < mean(drift["thought"]), means

    return each_seed(arm, ask, f"queries of {arm} lost more per token than thoughts before the reward dropped", NO_DROP)


def most_displaced(arm: str, share: float = 0.5) -> Test:
    """Whether more than `share` of the correct rollouts lost likelihood in an update before the reward dropped, as a
    five-step mean."""

    def ask(run: RunSeries) -> Answer:
        drop = drop_step(run)
        steps, values = run.means("displacement/fraction")
        known = [v for s, v in zip(steps, values, strict=True) if drop is not None and s < drop]
        if drop is None or not known:
            return None, {"reward drop": drop}
        return max(known) > share, {"at first": known[0], "highest before the drop": max(known)}

    return each_seed(arm, ask, f"over {share:.0%} of the correct rollouts fell in some five steps", NO_DROP)


def never_most_displaced(arm: str, share: float = 0.5) -> Test:
    """The control of `most_displaced`, for a run that holds."""

    def ask(run: RunSeries) -> Answer:
        _, values = run.means("displacement/fraction")
        return (max(values) <= share, {"highest": max(values)}) if values else (None, {})

    return each_seed(arm, ask, f"{arm} never lost over {share:.0%} of the correct rollouts", "it was not measured")


def _leads(run: RunSeries, metric: str, signal: int | None, drop: int | None) -> bool | None:
    """Whether a signal came before the drop; None without a drop, or without the metric."""
    if drop is None or not run.means(metric)[1]:
        return None
    return signal is not None and signal < drop


# ---- searches: the first action compared with the second, and how many there are


NO_SECOND = "there was no second action"


def first_action_crosses(arm: str, kind: str = "correct") -> Test:
    """Whether the first action starts likelier than the second and is below it when the reward drops."""
    return each_seed(
        arm,
        lambda run: _crosses(run, kind, drop_step(run)),
        f"the first action of {kind} rollouts began likelier than the second and was below it when the reward dropped",
        f"{NO_DROP}, or {NO_SECOND}",
    )


def first_action_crosses_by_the_end(arm: str, kind: str = "correct") -> Test:
    """The same at the last step, of a run that holds."""
    return each_seed(
        arm,
        lambda run: _crosses(run, kind, int(run.rows[-1]["step"])),
        f"the first action of {kind} rollouts began likelier than the second and ended below it",
        NO_SECOND,
    )


def first_action_decays_faster(arm: str, kind: str = "correct") -> Test:
    """Whether the first action loses more likelihood than the second, each from its highest to the reward's drop."""

    def ask(run: RunSeries) -> Answer:
        until = drop_step(run)
        lost = [_lost(run, f"likelihood/{kind}/action_{k}", until) for k in (1, 2)]
        if until is None or lost[0] is None or lost[1] is None:
            return None, {"reward drop": until}
        return lost[0] > lost[1], {"lost by the first action": lost[0], "by the second": lost[1]}

    question = f"the first action of {kind} rollouts had lost more likelihood than the second when the reward dropped"
    return each_seed(arm, ask, question, f"{NO_DROP}, or {NO_SECOND}")


def first_action_match_rises(arm: str, by: float = 0.1) -> Test:
    """Whether, when the reward drops, more incorrect rollouts begin with a search as good as a correct sibling's."""
    return each_seed(
        arm,
        lambda run: _match_rises(run, by, drop_step(run)),
        f"the share of incorrect rollouts with a right first search had risen by {by} when the reward dropped",
        f"{NO_DROP}, or no group was mixed",
    )


def first_action_match_rises_by_the_end(arm: str, by: float = 0.1) -> Test:
    """The same at the last step, of a run that holds."""
    return each_seed(
        arm,
        lambda run: _match_rises(run, by, int(run.rows[-1]["step"])),
        f"the share of incorrect rollouts with a right first search ended {by} higher",
        "no group was mixed",
    )


def searches_end_below(arm: str, bound: float) -> Test:
    """Whether a run that did not fall ends below this many searches: a policy that babbles does not search either."""

    def ask(run: RunSeries) -> Answer:
        ended, numbers = _searches(run)
        return (None if ended is None or run.fell else ended < bound), numbers

    return each_seed(arm, ask, f"{arm} ended below {bound:g} searches a rollout", "it fell, or a series is missing")


def brings_back_searches(arm: str, other: str, above: float, below: float) -> Test:
    """Whether `arm` ends above a bound, on the seeds on which `other` ends below one."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        (ours, numbers), (theirs, _) = _searches(run), _searches(control)
        if ours is None or theirs is None or theirs >= below or control.fell:
            return None, numbers | {f"of {other}": theirs}
        return ours > above, numbers | {f"of {other}": theirs}

    question = f"{arm} ended above {above:g} searches a rollout where {other} ended below {below:g}"
    return each_pair(arm, other, ask, question, f"{other} made {below:g} or more, or fell")


def _crosses(run: RunSeries, kind: str, until: int | None) -> Answer:
    _, first = run.means(f"likelihood/{kind}/action_1")
    _, second = run.means(f"likelihood/{kind}/action_2")
    if until is None or not first or not second:
        return None, {}
    later = [at_step(run, f"likelihood/{kind}/action_{k}", until) for k in (1, 2)]
    if later[0] is None or later[1] is None:
        return None, {}
    started, became = first[0] - second[0], later[0] - later[1]
    return started > 0 > became, {"first minus second action, at first": started, f"at step {until}": became}


def _match_rises(run: RunSeries, by: float, until: int | None) -> Answer:
    steps, match = run.means("rollout/first_action_match_fraction")
    known = [v for s, v in zip(steps, match, strict=True) if until is not None and s <= until]
    if not known:
        return None, {}
    return known[-1] - known[0] >= by, {"at first": known[0], "highest": max(known), f"at step {until}": known[-1]}


def _lost(run: RunSeries, metric: str, until: int | None) -> float | None:
    """By how much the metric's mean is below its highest at step `until`."""
    values = [v for s, v in zip(*run.means(metric), strict=True) if until is not None and s <= until]
    return max(values) - values[-1] if values else None


def _searches(run: RunSeries) -> tuple[float | None, Numbers]:
    _, values = run.means("rollout/searches")
    return (values[-1], {"searches at first": values[0], "at the end": values[-1]}) if values else (None, {})
