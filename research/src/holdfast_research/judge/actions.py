"""Searches: the first action against the second, and how many there are."""

from __future__ import annotations

from holdfast_research.judge.asking import NO_DROP, Answer, Numbers, Test, each_pair, each_seed
from holdfast_research.series import RunSeries, at_step, drop_step

NO_SECOND = "there was no second action"


def first_action_crosses(arm: str, kind: str = "correct") -> Test:
    """The first action starts likelier than the second and is below it when the reward drops."""
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
    """From the summit of each to where the reward drops: what comes after it is no early sign, and may recover."""

    def ask(run: RunSeries) -> Answer:
        until = drop_step(run)
        lost = [_lost(run, f"likelihood/{kind}/action_{k}", until) for k in (1, 2)]
        if until is None or lost[0] is None or lost[1] is None:
            return None, {"reward drop": until}
        return lost[0] > lost[1], {"lost by the first action": lost[0], "by the second": lost[1]}

    question = f"the first action of {kind} rollouts had lost more likelihood than the second when the reward dropped"
    return each_seed(arm, ask, question, f"{NO_DROP}, or {NO_SECOND}")


def first_action_match_rises(arm: str, by: float = 0.1) -> Test:
    """More wrong rollouts begin with a search as good as a right sibling's, when the reward drops."""
    return each_seed(
        arm,
        lambda run: _match_rises(run, by, drop_step(run)),
        f"the share of wrong rollouts with a right first search had risen by {by} when the reward dropped",
        f"{NO_DROP}, or no group was mixed",
    )


def first_action_match_rises_by_the_end(arm: str, by: float = 0.1) -> Test:
    """The same at the last step, of a run that holds."""
    return each_seed(
        arm,
        lambda run: _match_rises(run, by, int(run.rows[-1]["step"])),
        f"the share of wrong rollouts with a right first search ended {by} higher",
        "no group was mixed",
    )


def searches_end_below(arm: str, bound: float) -> Test:
    """Of runs that did not fall: who babbles does not search either."""

    def ask(run: RunSeries) -> Answer:
        ended, numbers = _searches(run)
        return (None if ended is None or run.fell else ended < bound), numbers

    return each_seed(arm, ask, f"{arm} ended below {bound:g} searches a rollout", "it fell, or a series is missing")


def brings_back_searches(arm: str, other: str, above: float, below: float) -> Test:
    """`arm` ends above a bound where `other` ends below one: where nobody stops searching, nothing is brought back."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        (ours, numbers), (theirs, _) = _searches(run), _searches(control)
        if ours is None or theirs is None or theirs >= below or control.fell:
            return None, numbers | {f"of {other}": theirs}
        return ours > above, numbers | {f"of {other}": theirs}

    question = f"{arm} ended above {above:g} searches a rollout where {other} ended below {below:g}"
    return each_pair(arm, other, ask, question, f"{other} made {below:g} or more, or fell")


def _crosses(run: RunSeries, kind: str, until: int | None) -> Answer:
    _, one = run.means(f"likelihood/{kind}/action_1")
    _, two = run.means(f"likelihood/{kind}/action_2")
    if until is None or not one or not two:
        return None, {}
    later = [at_step(run, f"likelihood/{kind}/action_{k}", until) for k in (1, 2)]
    if later[0] is None or later[1] is None:
        return None, {}
    started, became = one[0] - two[0], later[0] - later[1]
    return started > 0 > became, {"first minus second action, at first": started, f"at step {until}": became}


def _match_rises(run: RunSeries, by: float, until: int | None) -> Answer:
    steps, match = run.means("rollout/first_action_match_fraction")
    known = [v for s, v in zip(steps, match, strict=True) if until is not None and s <= until]
    if not known:
        return None, {}
    return known[-1] - known[0] >= by, {"at first": known[0], "highest": max(known), f"at step {until}": known[-1]}


def _lost(run: RunSeries, metric: str, until: int | None) -> float | None:
    """How far the metric's mean lies below its summit at step `until`."""
    values = [v for s, v in zip(*run.means(metric), strict=True) if until is not None and s <= until]
    return max(values) - values[-1] if values else None


def _searches(run: RunSeries) -> tuple[float | None, Numbers]:
    _, values = run.means("rollout/searches")
    return (values[-1], {"searches at first": values[0], "at the end": values[-1]}) if values else (None, {})
