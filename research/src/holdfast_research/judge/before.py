"""What moves before the reward falls."""

from __future__ import annotations

from statistics import mean, median

from holdfast_research.judge.asking import NO_DROP, Answer, Numbers, Test, each_seed
from holdfast_research.series import HALF, RunSeries, at_step, below_step, between, decay_step, drop_step, surge_step

NO_FALL = "the reward never dropped, or displacement was not below 0 for long before"
LIKELIHOODS = {"likelihood/correct", "likelihood/incorrect"}


def displaced_before_drop(arm: str) -> Test:
    def ask(run: RunSeries) -> Answer:
        drop, below = drop_step(run), below_step(run, "displacement/correct", 0.0)
        return _leads(run, "displacement/correct", below, drop), {"displacement < 0": below, "reward drop": drop}

    return each_seed(arm, ask, "correct rollouts were displaced before the reward dropped", NO_DROP)


def never_displaced(arm: str) -> Test:
    """Of a run that holds: whether the sign of displacement tells it from one that does not."""

    def ask(run: RunSeries) -> Answer:
        _, values = run.means("displacement/correct")
        if not values:
            return None, {}
        below = below_step(run, "displacement/correct", 0.0)
        return below is None, {"displacement < 0": below, "lowest": min(values)}

    return each_seed(arm, ask, f"displacement of {arm} never fell below 0", "displacement was not measured")


def likelihood_decays_first(arm: str) -> Test:
    """The likelihood of correct rollouts has its summit, and decays, while the reward has not had its own."""

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
    """Definition A.3 (3): from where displacement is first below 0 to the drop, more so in the second half."""

    def ask(run: RunSeries) -> Answer:
        found = _displaced_part(run, "displacement/correct")
        if found is None:
            return None, {"reward drop": drop_step(run)}
        half = len(found) // 2
        first, second = mean(found[:half]), mean(found[half:])
        return second < first, {"nats per token, first half": first, "second half": second}

    return each_seed(arm, ask, "displacement grew until the reward dropped", NO_FALL)


def wrong_not_raised(arm: str) -> Test:
    """Definition A.3 (2), its first half: meanwhile wrong rollouts gain nothing either."""

    def ask(run: RunSeries) -> Answer:
        found = _displaced_part(run, "displacement/incorrect")
        if found is None:
            return None, {"reward drop": drop_step(run)}
        return mean(found) <= 0, {"nats per token": mean(found)}

    return each_seed(arm, ask, "wrong rollouts became no likelier while right ones were displaced", NO_FALL)


def _displaced_part(run: RunSeries, metric: str) -> list[float] | None:
    """The metric's means from where that of correct rollouts is first below 0 to the drop; None if there are not 4."""
    drop, below = drop_step(run), below_step(run, "displacement/correct", 0.0)
    if drop is None or below is None:
        return None
    values = [v for s, v in zip(*run.means(metric), strict=True) if below <= s <= drop]
    return values if len(values) >= 4 else None


def wrong_below_right(arm: str) -> Test:
    """In 90 % of the later half of the steps before the drop; of all steps where there is none."""

    def ask(run: RunSeries) -> Answer:
        last = drop_step(run) or int(run.rows[-1]["step"])
        rows = [r for r in run.rows if last / 2 < r["step"] <= last]
        pairs = [(r["likelihood/incorrect"], r["likelihood/correct"]) for r in rows if r.keys() >= LIKELIHOODS]
        if not pairs:
            return None, {}
        share = mean(wrong < right for wrong, right in pairs)
        return share >= 0.9, {"share of those steps": share}

    return each_seed(arm, ask, f"wrong rollouts of {arm} were less likely than right ones", "a series is missing")


def entropy_surges_alone(arm: str, other: str, rise: float = 0.3, change: float = 0.15) -> Test:
    """Entropy has risen by `rise` nats while the metric `other` is within `change` of what it was at its lowest."""

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
    def ask(run: RunSeries) -> Answer:
        drop, surge = drop_step(run), surge_step(run, "entropy/mean", rise)
        return _leads(run, "entropy/mean", surge, drop), {"entropy surge": surge, "reward drop": drop}

    return each_seed(arm, ask, f"entropy rose {rise} nats above its lowest before the reward dropped", NO_DROP)


def gradient_calm_at_drop(arm: str, factor: float = 2.0) -> Test:
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
    """The other side of `gradient_calm_at_drop`: a five-step mean that is more than ordinary there."""

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
    """The mean of ln ∏ r over rollouts, in nats."""

    def ask(run: RunSeries) -> Answer:
        drop, below = drop_step(run), below_step(run, "ratio/log_product", level)
        return _leads(run, "ratio/log_product", below, drop), {"ratio product halved": below, "reward drop": drop}

    return each_seed(arm, ask, "the product of a rollout's ratios had halved before the reward dropped", NO_DROP)


def ratio_never_drifts(arm: str, level: float = HALF) -> Test:
    """Of a method that is to stop the drift, or of a run that holds without one."""

    def ask(run: RunSeries) -> Answer:
        _, values = run.means("ratio/log_product")
        if not values:
            return None, {}
        return min(values) >= level, {"lowest mean of ln ∏ r": min(values)}

    return each_seed(arm, ask, f"the product of {arm}'s ratios never halved", "a series is missing")


def most_displaced(arm: str, share: float = 0.5) -> Test:
    """More than `share` of the correct rollouts fell under an update, in five-step means, before the reward dropped."""

    def ask(run: RunSeries) -> Answer:
        drop = drop_step(run)
        steps, values = run.means("displacement/fraction")
        known = [v for s, v in zip(steps, values, strict=True) if drop is not None and s < drop]
        if drop is None or not known:
            return None, {"reward drop": drop}
        return max(known) > share, {"at first": known[0], "highest before the drop": max(known)}

    return each_seed(arm, ask, f"over {share:.0%} of the correct rollouts fell in some five steps", NO_DROP)


def never_most_displaced(arm: str, share: float = 0.5) -> Test:
    """The control of `most_displaced`, of a run that holds."""

    def ask(run: RunSeries) -> Answer:
        _, values = run.means("displacement/fraction")
        return (max(values) <= share, {"highest": max(values)}) if values else (None, {})

    return each_seed(arm, ask, f"{arm} never lost over {share:.0%} of the correct rollouts", "it was not measured")


def _leads(run: RunSeries, metric: str, signal: int | None, drop: int | None) -> bool | None:
    """None without a drop, or without the metric: what was not logged cannot have been silent."""
    if drop is None or not run.means(metric)[1]:
        return None
    return signal is not None and signal < drop
