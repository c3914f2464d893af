"""What the rest of a run was worth, where to go back to, where entropy is going, and where the time went: facts, and
sentences about them.

These are no findings. They help to decide what to do with a run whose findings are known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.finding import Finding
from holdfast.diagnose.log import Log, Series, finite, has
from holdfast.diagnose.log.smoothed import WINDOW
from holdfast.diagnose.log.trailing import MEAN_SECOND_DIFF, Values, trailing_mean
from holdfast.diagnose.rules import RULES
from holdfast.diagnose.rules._parts import ENTROPY, LENGTH, RATE
from holdfast.diagnose.rules.ent002 import EXHAUSTED_NATS, EXHAUSTED_SHARE, EXHAUSTED_TOKEN_NATS
from holdfast.diagnose.rules.rwd001 import good_step
from holdfast.hosts import HOSTS
from holdfast.hosts.host import PARTS

NO_RATE = "learning rate 0 since"
ENDINGS = {code: rule.ending for code, rule in reversed(RULES.items()) if rule.ending is not None}
"""Symptoms first: a fall says more than its cause that the rest was worth nothing."""
AFTER = {ending.fact: ending.words for ending in ENDINGS.values()} | {
    NO_RATE: "the learning rate became 0 at step {step:.0f}"
}
SHARE, TIME_SHARE = "share of the rows after", "share of the time after"
GOOD, SAVED = "last good step", "last good checkpoint"
FLOOR, FLOOR_STEP = "entropy floor", "entropy floor at step"

WORTH_SAYING = 0.1
"""Share of a run. A smaller part is the end of a schedule, or the rows that it takes to see a fall."""
STRETCHES = 6
"""Stretches in each of which entropy must be lower than in the one before. In noise alone that is one case in 720."""
TIME = "time/step_s"


def outlook(batches: Log, findings: Sequence[Finding], *, learns: bool = False) -> dict[str, float]:
    """Facts about the end of a run, and about its time; what cannot be said is left out. `batches` has one row for each
    rollout batch."""
    findings = [finding for finding in findings if finding.level == "finding" and not finding.by_verdict]
    found = {finding.code: finding.step for finding in findings}
    ends: dict[str, int | None] = {
        ending.fact: found[code]
        for code, ending in ENDINGS.items()
        if code in found and ending.is_final(batches, found[code])
    }
    ends[NO_RATE] = rate_is_zero_since(batches)
    facts = {name: float(step) for name, step in ends.items() if step is not None}
    if facts:
        facts |= shares_after(batches, int(min(facts.values())))
    for finding in findings:
        if RULES[finding.code].states == "fell":
            facts |= last_good(batches, good_step(finding.evidence, findings[0].step))
    held_out = fallen_scores(batches) if learns else {}
    return facts | held_out | entropy_floor(batches) | facts_of_seconds(batches)


def in_words(facts: Mapping[str, float]) -> str:
    """The facts of `outlook` in a few short sentences; empty if none is worth a line.

    >>> in_words({"fell for good": 212.0, SHARE: 0.38, TIME_SHARE: 0.41, GOOD: 187.0, SAVED: 150.0})
    '38% of the run (41% of its time) came after the reward collapsed. Last good checkpoint: step 150.'
    """
    sentences = []
    if facts.get(SHARE, 0.0) >= WORTH_SAYING:
        first = min((name for name in AFTER if name in facts), key=lambda name: facts[name])
        time = f" ({facts[TIME_SHARE]:.0%} of its time)" if TIME_SHARE in facts else ""
        sentences.append(f"{facts[SHARE]:.0%} of the run{time} came after {AFTER[first].format(step=facts[first])}.")
    if SAVED in facts and facts[SAVED] > 0:
        sentences.append(f"Last good checkpoint: step {facts[SAVED]:.0f}.")
    elif GOOD in facts:
        none = ", before the first checkpoint" if SAVED in facts else ""
        sentences.append(f"Last good step: {facts[GOOD]:.0f}{none}.")
    for key in facts:
        if key.startswith(AT_BEST):
            name = key.removeprefix(AT_BEST)
            sentences.append(
                f"But the held-out score {name} fell from {facts[key]:.3g} to {facts[AT_LAST + name]:.3g} while the "
                "training reward rose: compare how training and evaluation differ in questions, sampling and reward. "
                "Keep the checkpoint with the best held-out score."
            )
    if FLOOR_STEP in facts:
        floor = f"{facts[FLOOR]:.2g} nats, where ENT002 applies"
        sentences.append(f"At this pace, entropy will reach {floor}, at about step {facts[FLOOR_STEP]:.0f}.")
    return " ".join([*sentences, *seconds_in_words(facts)])


# ---- what was not learned


def fallen_scores(log: Log) -> dict[str, float]:
    """The mean of some evaluations at best and at last, for each held-out score that fell by a sixth and by far more
    than its noise. The mean is over two, or an eighth of them.

    >>> from holdfast.diagnose.log import Series
    >>> evaluated = lambda *scores: Log(format="trl", host="trl", name="", series={
    ...     "eval/em": Series(np.arange(len(scores)), np.asarray(scores))})
    >>> sorted(round(score, 3) for score in fallen_scores(evaluated(0.5, 0.52, 0.54, 0.5, 0.44, 0.39)).values())
    [0.415, 0.53]
    >>> fallen_scores(evaluated(0.4, 0.5, 0.4, 0.5, 0.4, 0.4))
    {}
    """
    facts: dict[str, float] = {}
    for name, series in log.series.items():
        if not _SCORE.fullmatch(name) or len(scores := finite(series).values) < MIN_SCORES or scores.min() < 0:
            continue
        count = len(scores)
        window = max(2, count // 8)
        means = trailing_mean(scores, window)[window - 1 :]
        best, last = float(means.max()), float(means[-1])
        noise = float(np.abs(np.diff(scores, 2)).mean()) / MEAN_SECOND_DIFF * (1 + FEW / count)
        errors = np.sqrt(2 * np.log(count / window / BY_CHANCE))  # the best is the highest of so many
        if best - last > max(MIN_LOSS * best, errors * noise * np.sqrt(2 / window)):
            facts |= {AT_BEST + name: best, AT_LAST + name: last}
    return facts


_SCORE = re.compile(r"eval/(em|em_greedy|f1|f1_greedy|reward/mean|.+/score)")
AT_BEST, AT_LAST = "held-out score at best: ", "held-out score at last: "
MIN_SCORES = 5
MIN_LOSS = 1 / 6
BY_CHANCE = 0.02
FEW = 3.0
"""A noise estimated from few neighbours is too small as often as too large."""


# ---- what was wasted


def rate_is_zero_since(log: Log) -> int | None:
    """The first step of a learning rate that is 0 to the end, after one that was not."""
    if not has(log, RATE):
        return None
    rate = finite(log.series[RATE])
    zeros = len(rate) - 1 - int(np.flatnonzero(rate.values)[-1]) if rate.values.any() else 0
    return int(rate.steps[-zeros]) if zeros else None


def shares_after(log: Log, step: int) -> dict[str, float]:
    """The share of the rows after a step, and of the time of the steps, if it is logged."""
    facts = {SHARE: float((log.steps > step).mean())}
    if has(log, TIME):
        times = finite(log.series[TIME])
        if (total := times.values.sum()) > 0:
            facts[TIME_SHARE] = float(times.values[times.steps > step].sum() / total)
    return facts


def last_good(log: Log, step: float) -> dict[str, float]:
    """The last good step, and the checkpoint at or before it, if the settings say how often one is saved (0 if none was
    saved by then)."""
    every = saved_every(log)
    return {GOOD: step} | ({} if every is None else {SAVED: step // every * every})


def saved_every(log: Log) -> int | None:
    """Steps between two checkpoints, if the settings say so."""
    if log.settings.get("save_strategy", "steps") != "steps":
        return None
    value = log.settings.get(HOSTS[log.host].saved_every)
    return value if type(value) is int and value > 0 else None


# ---- where entropy goes


def entropy_floor(log: Log) -> dict[str, float]:
    """The level at which ENT002 calls entropy exhausted, and the step at which it gets there at the pace of the last
    rows. Empty without a clear trend, and if that is further away than the run has come."""
    if not has(log, ENTROPY):
        return {}
    entropy = finite(log.series[ENTROPY])
    if len(entropy) < STRETCHES * WINDOW:
        return {}
    floor = min(EXHAUSTED_SHARE * float(trailing_mean(entropy.values, WINDOW).max()), EXHAUSTED_TOKEN_NATS)
    if has(log, LENGTH):
        length = float(finite(log.series[LENGTH]).values[-WINDOW:].mean())
        floor = max(floor, EXHAUSTED_NATS / length) if length > 0 else floor
    rows = max(len(entropy) // 2, STRETCHES * WINDOW)
    step = reaches(entropy.steps[-rows:], entropy.values[-rows:], floor)
    last, first = float(entropy.steps[-1]), float(entropy.steps[0])
    return {FLOOR: floor, FLOOR_STEP: step} if step is not None and last < step <= 2 * last - first else {}


def reaches(steps: NDArray[np.int64], values: Values, level: float) -> float | None:
    """The step at which [N] falling values reach a level, by a straight line or by an exponential, whichever fits the
    means of six stretches better. None if a stretch is not below the one before, or the level is reached.

    A fall that slows down must not be projected at its mean pace. So the pace of the last three stretches counts where
    it is slower.

    >>> steps = np.arange(1, 61)
    >>> round(reaches(steps, 1.0 - 0.01 * steps, 0.1)), round(reaches(steps, np.exp(-0.05 * steps), 0.01))
    (90, 92)
    """
    x = _means(steps.astype(np.float64))
    y = _means(values)
    if not (np.diff(y) < 0).all() or y[-1] <= level or level <= 0:
        return None
    models: Sequence[tuple[Values, float]] = ((y, level), (np.log(y), float(np.log(level))))
    errors, found = [], []
    for shape, target in models:
        slope, start = np.polyfit(x, shape, 1)
        fitted = slope * x + start
        errors.append(float(np.square((np.exp(fitted) if shape is not y else fitted) - y).sum()))
        late = np.polyfit(x[STRETCHES // 2 :], shape[STRETCHES // 2 :], 1)[0]
        found.append(float(x[-1] + (target - fitted[-1]) / max(slope, late)))
    return found[int(np.argmin(errors))]


def _means(values: Values) -> Values:
    """The means of `STRETCHES` stretches of equal length; the first values are left out if they do not divide."""
    return np.asarray(values[len(values) % STRETCHES :].reshape(STRETCHES, -1).mean(axis=1))


# ---- where the seconds of a step go, by the spans that the host logs


OTHER = "other"
STEP, FIRST, LAST, LONGER = (
    "seconds a step",
    "seconds a step at first",
    "seconds a step at last",
    "length, last to first",
)
_SHARE = "share of the time: "

NAMED_SHARE = 0.02
"""Share of the time. Smaller parts are named on the page."""
STARVES = 0.2
"""Share of the time that the trainer waits, or the engine for tools, from which on it is worth saying."""
SLOWER = 1.5
"""How many times as long a step takes, beyond what longer rollouts explain."""
MIN_ROWS = 20
"""Rows of which the first and the last quarter are compared. The first steps compile and load."""
OVERLAP = 1.05
"""Times a step that its parts may take. If they are more, generation runs beside the trainer."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds of each step, by what they were spent on."""

    steps: NDArray[np.int64]
    """[N]."""
    total: Values
    """[N]."""
    parts: Mapping[str, Values]
    """A key of `PARTS`, or `OTHER` for what is left of the step -> [N]. Nothing is counted twice."""


def seconds_of(log: Log) -> Seconds | None:
    """The seconds of each step; None if the log has none that the host's table knows.

    A span inside another is taken off it. What runs beside the step, because it takes longer than what should contain
    it, is left out.
    """
    host = HOSTS[log.host]
    ours = {row.host: row.ours for row in (*host.series, *host.more)}
    spans = {}
    for span in host.spans:
        found = [part for name, part in log.series.items() if re.fullmatch(ours.get(span.host, span.host), name)]
        if found:
            spans[span] = found
    whole = ours.get(host.step_seconds, host.step_seconds)
    known = has(log, whole)
    if known:
        steps = finite(log.series[whole]).steps
    elif spans:
        steps = np.unique(np.concatenate([part.steps for found in spans.values() for part in found]))
    else:
        return None
    own = {span.host: sum((_at(part, steps) for part in found), np.zeros(len(steps))) for span, found in spans.items()}
    for span in spans:
        if span.inside in own:
            outer, inner = own[span.inside], own[span.host]
            taken = np.minimum(inner, outer) if inner.sum() <= outer.sum() else np.zeros(len(steps))
            own[span.inside], own[span.host] = outer - taken, taken
    parts = dict.fromkeys(PARTS, np.zeros(len(steps)))
    for span in spans:
        waits = span.waits_with and any(name.startswith(span.waits_with) for name in log.series)
        part = "waiting" if waits else span.part
        parts[part] = parts[part] + own[span.host]
    total = _at(log.series[whole], steps) if known else np.sum(list(parts.values()), axis=0)
    named = np.sum(list(parts.values()), axis=0)
    if (named - parts["evaluation"]).sum() > OVERLAP * total.sum():
        named = named - parts.pop("generation") - parts.pop("tool")
    total = np.maximum(total, named)  # an evaluation may be outside of the step
    parts[OTHER] = total - named
    return Seconds(steps, total, {name: values for name, values in parts.items() if values.any()})


def _at(series: Series, steps: NDArray[np.int64]) -> Values:
    """[len(steps)]: the values at these steps; 0 at a step that has none, such as one without an evaluation."""
    known = finite(series)
    _, here, there = np.intersect1d(steps, known.steps, return_indices=True)
    values = np.zeros(len(steps))
    values[here] = np.maximum(known.values[there], 0.0)
    return values


def facts_of_seconds(log: Log) -> dict[str, float]:
    """The median step, the share of each part, and what a step takes at first and at last if it became slower."""
    seconds = seconds_of(log)
    if seconds is None or not seconds.total.any():
        return {}
    facts = {STEP: float(np.median(seconds.total))}
    if seconds.parts.keys() - {OTHER}:
        whole = seconds.total.sum()
        facts |= {_SHARE + name: float(values.sum() / whole) for name, values in seconds.parts.items()}
    return facts | _slower(seconds, log.series.get("rollout/length"))


def _slower(seconds: Seconds, length: Series | None) -> dict[str, float]:
    """What a step and a rollout take at first and at last, if steps became slower and rollouts do not explain it."""
    quarter = len(seconds.steps) // 4
    if length is None or 4 * quarter < MIN_ROWS:
        return {}
    first, last = seconds.total[:quarter], seconds.total[-quarter:]
    tokens = _at(length, seconds.steps)
    before, now, short, long = (float(np.median(x)) for x in (first, last, tokens[:quarter], tokens[-quarter:]))
    if not (short > 0 and now > SLOWER * before * max(long / short, 1.0)):
        return {}
    if np.quantile(last, 0.25) <= np.quantile(first, 0.75):  # a few slow steps
        return {}
    return {FIRST: before, LAST: now, LONGER: long / short}


def seconds_in_words(facts: Mapping[str, float]) -> list[str]:
    """Sentences on where the time goes, and on what makes the trainer or the engine wait.

    >>> seconds_in_words({STEP: 60.0, _SHARE + "generation": 0.85, _SHARE + "tool": 0.01, _SHARE + OTHER: 0.14})
    ['A step takes 60 s (median): 85% generation, 14% other.']
    """
    shares = {name: facts[_SHARE + name] for name in (*PARTS, OTHER) if _SHARE + name in facts}
    sentences = []
    if shares:
        large = sorted((name for name in shares if shares[name] >= NAMED_SHARE), key=lambda name: -shares[name])
        named = [name for name in large if name != OTHER] + [name for name in large if name == OTHER]
        parts = ", ".join(f"{shares[name]:.0%} {PARTS.get(name, name)}" for name in named)
        sentences.append(f"A step takes {facts[STEP]:.3g} s (median): {parts}.")
    if shares.get("waiting", 0.0) >= STARVES:
        sentences.append(
            f"The trainer waits for rollouts {shares['waiting']:.0%} of the time: faster or more inference engines "
            "would shorten a step."
        )
    if shares.get("tool", 0.0) >= STARVES:
        sentences.append(
            f"The inference engine waits for tools and rewards {shares['tool']:.0%} of the time: make them faster, or "
            "run more of them at once."
        )
    if FIRST in facts:
        grown = "no longer" if facts[LONGER] < 1.05 else f"only {facts[LONGER]:.2g} times as long"
        sentences.append(
            f"Steps have become slower, from {facts[FIRST]:.3g} s in the first quarter to {facts[LAST]:.3g} s in the "
            f"last, although rollouts are {grown}."
        )
    return sentences
