"""What moves before a reward drops: tests of it, and of the searches, as those of `judge`; and early warnings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import mean, median
from typing import Any

from holdfast_research.judge import MIN_STEPS, Answer, Numbers, Test, each_pair, each_seed
from holdfast_research.series import (
    HALF,
    SURGE,
    RunSeries,
    at_step,
    below_step,
    between,
    decay_step,
    drop_step,
    fall_step,
    rise_step,
    surge_step,
)
from holdfast_research.values import Runs

NO_DROP = "the reward never dropped, or a series is missing"
NO_FALL = "the reward never dropped, or displacement was not below 0 for long before"
NO_SECOND = "there was no second action"
LIKELIHOODS = {"likelihood/correct", "likelihood/incorrect"}


def _comes_before_the_drop(
    arm: str, metric: str, sign: Callable[[RunSeries], int | None], name: str, question: str
) -> Test:
    """Whether a sign of a metric comes before the reward drops. `name` is what the numbers call it."""

    def ask(run: RunSeries) -> Answer:
        drop, came = drop_step(run), sign(run)
        numbers: Numbers = {name: came, "reward drop": drop}
        if drop is None or not run.means(metric)[1]:
            return None, numbers
        return came is not None and came < drop, numbers

    return each_seed(arm, ask, question, NO_DROP)


def displaced_before_drop(arm: str) -> Test:
    """Whether displacement of correct rollouts was below 0 before the reward dropped."""
    metric, question = "displacement/correct", "correct rollouts were displaced before the reward dropped"
    return _comes_before_the_drop(
        arm, metric, partial(below_step, metric=metric, level=0.0), "displacement < 0", question
    )


def entropy_before_drop(arm: str) -> Test:
    """Whether entropy surged before the reward dropped."""
    metric, question = "entropy/mean", f"entropy rose {SURGE} nats above its lowest before the reward dropped"
    sign = partial(surge_step, metric=metric, rise=SURGE)
    return _comes_before_the_drop(arm, metric, sign, "entropy surge", question)


def ratio_drifts_before_drop(arm: str) -> Test:
    """Whether the mean of ln ∏ r over rollouts was below `HALF` before the reward dropped."""
    metric, question = "ratio/log_product", "the product of a rollout's ratios had halved before the reward dropped"
    sign = partial(below_step, metric=metric, level=HALF)
    return _comes_before_the_drop(arm, metric, sign, "ratio product halved", question)


def never_displaced(arm: str) -> Test:
    """Whether displacement never fell below 0: asked of runs that hold, beside `displaced_before_drop`."""

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


def entropy_surges_alone(arm: str, other: str, change: float = 0.15) -> Test:
    """Whether the metric `other`, when entropy has surged, is within the fraction `change` of its value
    at the lowest entropy."""

    def ask(run: RunSeries) -> Answer:
        surge = surge_step(run, "entropy/mean", SURGE)
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


def ratio_never_drifts(arm: str) -> Test:
    """Whether ratios never drifted: asked of runs that hold, and of methods that stop the drift."""

    def ask(run: RunSeries) -> Answer:
        _, values = run.means("ratio/log_product")
        return (min(values) >= HALF, {"lowest mean of ln ∏ r": min(values)}) if values else (None, {})

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
    """Whether most questions were never displaced at once: asked of runs that hold, beside `most_displaced`."""

    def ask(run: RunSeries) -> Answer:
        _, values = run.means("displacement/fraction")
        return (max(values) <= share, {"highest": max(values)}) if values else (None, {})

    return each_seed(arm, ask, f"{arm} never lost over {share:.0%} of the correct rollouts", "it was not measured")


# ---- searches: the first action compared with the second, and how many there are


def first_action_crosses(arm: str, kind: str = "correct") -> Test:
    """Whether the first action starts likelier than the second and is below it when the reward drops."""
    return each_seed(
        arm,
        lambda run: _crosses(run, kind, drop_step(run)),
        f"the first action of {kind} rollouts began likelier than the second and was below it when the reward dropped",
        f"{NO_DROP}, or {NO_SECOND}",
    )


def first_action_crosses_by_the_end(arm: str, kind: str = "correct") -> Test:
    """The same at the last step instead of the drop, for runs that hold."""
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
    """The same at the last step instead of the drop, for runs that hold."""
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


# ---- early warnings: what turns before the reward drops, how long before, and how often it turns for nothing


@dataclass(frozen=True, slots=True)
class Signal:
    """Something a monitor could watch; every value is a mean of five steps."""

    says: str
    crosses: Callable[[RunSeries, str, float], int | None]
    metric: str
    by: float

    def turns(self, run: RunSeries) -> int | None:
        """The step at which it turns; None when it never does."""
        return self.crosses(run, self.metric, self.by)

    def logged(self, run: RunSeries) -> bool:
        """Whether the run has the series."""
        return bool(run.means(self.metric)[1])


SIGNALS = (
    Signal("displacement of correct rollouts below 0", below_step, "displacement/correct", 0.0),
    Signal("displacement below -0.002 nats", below_step, "displacement/correct", -0.002),
    Signal("displacement below -0.01 nats", below_step, "displacement/correct", -0.01),
    Signal("over half of the correct rollouts displaced", rise_step, "displacement/fraction", 0.5),
    Signal("ratios of a rollout multiply to below one half", below_step, "ratio/log_product", HALF),
    Signal("entropy 0.1 nats above its lowest", surge_step, "entropy/mean", 0.1),
    Signal("entropy 0.3 nats above its lowest", surge_step, "entropy/mean", 0.3),
    Signal("rollouts 10 tokens longer than at their shortest", surge_step, "rollout/length", 10.0),
    Signal("mean advantage per token below -0.05", below_step, "advantage/token_mean", -0.05),
    Signal("advantage where the sampler cuts below -0.05", below_step, "advantage/tail_mean", -0.05),
    Signal("the sampler keeps 0.02 less than at its most", fall_step, "sampler/mask_mass", 0.02),
    Signal("control tokens out of place, 99th percentile above 0.1", rise_step, "control/misplaced_p99", 0.1),
    Signal("gradient norm 1 above its lowest", surge_step, "grad/norm", 1.0),
)


def warnings_of(runs: Runs) -> list[dict[str, Any]]:
    """For each signal: in how many runs whose reward dropped it turned before, its leads in steps, and in how many runs
    whose reward never dropped it turned too, by the median step of the drops: both kinds are watched for equally long.
    All arms together; runs shorter than `MIN_STEPS` count in neither, nor do those without the series."""
    long = [run for seeds in runs.values() for run in seeds if len(run.rows) >= MIN_STEPS]
    drops = {id(run): drop_step(run) for run in long}
    fell = [drop for drop in drops.values() if drop is not None]
    watched = median(fell) if fell else float("inf")
    rows = []
    for signal in SIGNALS:
        turned = [(drops[id(run)], signal.turns(run)) for run in long if signal.logged(run)]
        leads = sorted(drop - turn for drop, turn in turned if drop is not None and turn is not None and turn < drop)
        rows.append(
            {
                "signal": signal.says,
                "before": len(leads),
                "dropped": sum(drop is not None for drop, _ in turned),
                "leads": leads,
                "median": median(leads) if leads else None,
                "false": sum(drop is None and turn is not None and turn <= watched for drop, turn in turned),
                "held": sum(drop is None for drop, _ in turned),
            }
        )
    return rows
