"""The tests that claims are put to. Each function makes a pure one: runs in, verdict out.

A test asks one question of every seed: yes, no, or not to be told (the reward never fell, a series is missing). Shown
is yes on every seed, partly on at least half of them, not shown on fewer. With fewer than `MIN_SEEDS` seeds that can
answer, the verdict is cannot tell: a single run shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import mean, median

from holdfast.lab.series import (
    RunSeries,
    at_step,
    below_step,
    between,
    decay_step,
    drop_step,
    is_collapse,
    summarise,
    surge_step,
)
from holdfast.lab.values import Runs, Verdict, Word

MIN_SEEDS = 3
MIN_STEPS = 40
"""Of a run that is asked whether it collapses or holds: a collapse is 20 steps of plateau and a fall."""

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
        return Verdict(Word.CANNOT_TELL, "no finished run to ask")
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


# ---- collapse and hold


def collapses(arm: str) -> Test:
    return each_seed(arm, _collapsed, f"{arm} rose, held and lost 40 % of its peak", SHORT)


def does_not_collapse(arm: str) -> Test:
    return each_seed(arm, _held, f"{arm} kept 85 % of its peak to the end", SHORT)


def holds_where(arm: str, other: str) -> Test:
    """Only seeds on which `other` collapsed can tell a cure from a task that needs none."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        fell, _ = _collapsed(control)
        held, numbers = _held(run)
        return (held if fell else None), numbers

    return each_pair(
        arm, other, ask, f"{arm} kept 85 % of its peak where {other} collapsed", f"{other} did not collapse"
    )


def no_surge_where(arm: str, other: str, rise: float = 0.3) -> Test:
    """Whether a method stops what goes before a collapse, and not only the collapse until the last step."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        ours, theirs = (surge_step(one, "entropy/mean", rise) for one in (run, control))
        numbers: Numbers = {f"surge of {arm}": ours, f"of {other}": theirs}
        return (None if theirs is None else ours is None), numbers

    return each_pair(
        arm, other, ask, f"entropy of {arm} did not surge where that of {other} did", f"{other} had no surge"
    )


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


def collapses_after_delay(arm: str, other: str) -> Test:
    """Delays, and still drops: a strength that is too weak."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        early, late = drop_step(control), drop_step(run)
        numbers: Numbers = {"drop": late, f"drop of {other}": early}
        return (None if early is None else late is not None and late > early), numbers

    return each_pair(arm, other, ask, f"{arm} dropped, and later than {other}", f"{other} never dropped")


_SCORES = {"em after": "sampled test EM", "greedy after": "greedy test EM"}


def ends_higher(arm: str, other: str, key: str = "em after") -> Test:
    """`key` of `summarise`: sampled test EM at the end unless said otherwise."""

    def ask(run: RunSeries, control: RunSeries) -> Answer:
        ours, theirs = summarise(run)[key], summarise(control)[key]
        return ours > theirs, {arm: ours, other: theirs}

    return each_pair(arm, other, ask, f"{arm} ended above {other} in {_SCORES.get(key, key)}", "a run is missing")


# ---- what moves before the reward falls


def displaced_before_drop(arm: str) -> Test:
    def ask(run: RunSeries) -> Answer:
        drop, below = drop_step(run), below_step(run, "displacement/correct", 0.0)
        return _leads(below, drop), {"displacement < 0": below, "reward drop": drop}

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
    """The likelihood of correct rollouts has its summit, and decays, before the reward drops."""

    def ask(run: RunSeries) -> Answer:
        drop = drop_step(run)
        top = decay_step(run, "likelihood/correct", drop) if drop is not None else None
        if drop is None or top is None:
            return None, {"summit": top, "reward drop": drop}
        high, low = at_step(run, "likelihood/correct", top), at_step(run, "likelihood/correct", drop)
        assert high is not None and low is not None
        return (
            drop - top >= 5 and high - low > 0.01,
            {"summit": top, "reward drop": drop, "nats per token lost by then": high - low},
        )

    return each_seed(arm, ask, "the likelihood of correct rollouts decayed 5 steps before the reward dropped", NO_DROP)


def decay_accelerates(arm: str) -> Test:
    """From the summit on, the second half of the way down is steeper than the first."""

    def ask(run: RunSeries) -> Answer:
        drop = drop_step(run)
        steps, values = run.means("likelihood/correct")
        if drop is None or not steps:
            return None, {"reward drop": drop}
        top = values.index(max(values))
        if len(values) - top < 6:
            return False, {"summit": steps[top]}
        down = values[top : values.index(min(values[top:])) + 1]
        middle = len(down) // 2
        if middle < 2:
            return False, {"summit": steps[top]}
        first = (down[middle] - down[0]) / middle
        second = (down[-1] - down[middle]) / (len(down) - 1 - middle)
        return second < first < 0, {"nats per step, first half": first, "second half": second}

    return each_seed(arm, ask, "the decay was steeper in its second half", NO_DROP)


def wrong_below_right(arm: str) -> Test:
    def ask(run: RunSeries) -> Answer:
        half = len(run.rows) // 2
        rows = [r for r in run.rows[half:] if "likelihood/correct" in r and "likelihood/incorrect" in r]
        if not rows:
            return None, {}
        share = mean(r["likelihood/incorrect"] < r["likelihood/correct"] for r in rows)
        return share >= 0.9, {"share of later steps": share}

    return each_seed(
        arm, ask, "wrong rollouts were less likely than right ones in 90 % of the later half", "a series is missing"
    )


def entropy_before_length(arm: str, rise: float = 0.3, change: float = 0.15) -> Test:
    """Entropy has risen by `rise` nats while the length is within `change` of what it was at the entropy's lowest."""

    def ask(run: RunSeries) -> Answer:
        surge = surge_step(run, "entropy/mean", rise)
        if surge is None:
            return None, {"entropy surge": None}
        steps, entropy = run.means("entropy/mean")
        before = [(v, s) for s, v in zip(steps, entropy, strict=True) if s <= surge]
        calm = min(before)[1]
        was, became = at_step(run, "rollout/length", calm), at_step(run, "rollout/length", surge)
        if was is None or became is None:
            return None, {"entropy surge": surge}
        ratio = became / was
        return abs(ratio - 1) <= change, {"entropy surge": surge, "length at surge / before": ratio}

    return each_seed(arm, ask, "entropy had surged while the length stood still", "entropy never surged")


def entropy_before_drop(arm: str, rise: float = 0.3) -> Test:
    def ask(run: RunSeries) -> Answer:
        drop, surge = drop_step(run), surge_step(run, "entropy/mean", rise)
        return _leads(surge, drop), {"entropy surge": surge, "reward drop": drop}

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


def gradient_explodes(arm: str, factor: float = 10.0) -> Test:
    def ask(run: RunSeries) -> Answer:
        drop = drop_step(run)
        if drop is None:
            return None, {"reward drop": None}
        before, later = between(run, "grad/norm", 1, drop - 5), between(run, "grad/norm_max", drop, 10**9)
        if not before or not later:
            return None, {"reward drop": drop}
        return max(later) >= factor * median(before), {"largest norm": max(later), "median before": median(before)}

    return each_seed(arm, ask, f"the gradient norm reached {factor:g} × its earlier median", NO_DROP)


def ratio_drifts_before_drop(arm: str, level: float = -0.7) -> Test:
    """`level` in nats: exp(-0.7) is half. The mean of ln ∏ r over rollouts."""

    def ask(run: RunSeries) -> Answer:
        drop, below = drop_step(run), below_step(run, "ratio/log_product", level)
        return _leads(below, drop), {"ratio product halved": below, "reward drop": drop}

    return each_seed(arm, ask, "the product of a rollout's ratios had halved before the reward dropped", NO_DROP)


# ---- actions


def first_action_crosses(arm: str, kind: str = "correct") -> Test:
    """The first action starts likelier than the second and ends below it."""

    def ask(run: RunSeries) -> Answer:
        _, one = run.means(f"likelihood/{kind}/action_1")
        _, two = run.means(f"likelihood/{kind}/action_2")
        if not one or not two:
            return None, {}
        started, ended = one[0] - two[0], one[-1] - two[-1]
        return started > 0 > ended, {"first minus second action, at first": started, "at the end": ended}

    return each_seed(
        arm, ask, f"the first action of {kind} rollouts began likelier than the second and ended below it", NO_SECOND
    )


def first_action_decays_faster(arm: str, kind: str = "correct") -> Test:
    def ask(run: RunSeries) -> Answer:
        _, one = run.means(f"likelihood/{kind}/action_1")
        _, two = run.means(f"likelihood/{kind}/action_2")
        if not one or not two:
            return None, {}
        lost, second = max(one) - one[-1], max(two) - two[-1]
        return lost > second, {"lost by the first action": lost, "by the second": second}

    return each_seed(arm, ask, f"the first action of {kind} rollouts lost more likelihood than the second", NO_SECOND)


def first_action_match_rises(arm: str, by: float = 0.1) -> Test:
    """More wrong rollouts begin with a search as good as a right sibling's."""

    def ask(run: RunSeries) -> Answer:
        steps, match = run.means("rollout/first_action_match")
        drop = drop_step(run)
        known = [v for s, v in zip(steps, match, strict=True) if drop is None or s <= drop]
        if not known:
            return None, {}
        return max(known) - known[0] >= by, {"at first": known[0], "highest before the drop": max(known)}

    return each_seed(
        arm, ask, f"the share of wrong rollouts with a right first search rose by {by}", "no group was mixed"
    )


def most_displaced(arm: str, share: float = 0.5) -> Test:
    """More than `share` of the correct rollouts fell under an update, in five-step means, before the reward dropped."""

    def ask(run: RunSeries) -> Answer:
        drop = drop_step(run)
        steps, values = run.means("displacement/fraction")
        known = [v for s, v in zip(steps, values, strict=True) if drop is not None and s <= drop]
        if drop is None or not known:
            return None, {"reward drop": drop}
        return max(known) > share, {"at first": known[0], "highest before the drop": max(known)}

    return each_seed(arm, ask, f"over {share:.0%} of the correct rollouts fell in some five steps", NO_DROP)


def searches_end_above(arm: str, bound: float) -> Test:
    return _searches_end(arm, lambda searches: searches > bound, f"above {bound:g}")


def searches_end_below(arm: str, bound: float) -> Test:
    return _searches_end(arm, lambda searches: searches < bound, f"below {bound:g}")


def _searches_end(arm: str, right: Callable[[float], bool], bound: str) -> Test:
    def ask(run: RunSeries) -> Answer:
        _, values = run.means("rollout/searches")
        if not values:
            return None, {}
        return right(values[-1]), {"searches at first": values[0], "at the end": values[-1]}

    return each_seed(arm, ask, f"{arm} ended {bound} searches a rollout", "a series is missing")


# ---- parts

NO_DROP = "the reward never dropped, or a series is missing"
NO_SECOND = "there was no second action"
SHORT = f"the run has fewer than {MIN_STEPS} steps"


def _collapsed(run: RunSeries) -> Answer:
    r = summarise(run)
    numbers: Numbers = {"first": r["first"], "peak": r["peak"], "lowest after": r["lowest after"], "last": r["last"]}
    return (is_collapse(r) if len(run.rows) >= MIN_STEPS else None), numbers


def _held(run: RunSeries) -> Answer:
    r = summarise(run)
    held = not is_collapse(r) and r["last"] >= 0.85 * r["peak"]
    return (held if len(run.rows) >= MIN_STEPS else None), {"peak": r["peak"], "last": r["last"]}


def _leads(signal: int | None, drop: int | None) -> bool | None:
    if drop is None:
        return None
    return signal is not None and signal < drop
