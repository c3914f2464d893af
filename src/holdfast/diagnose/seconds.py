"""Where the seconds of a step go, by the spans that the host logs: facts, and sentences about them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.log import Log, Series, finite, has
from holdfast.diagnose.log.trailing import Values
from holdfast.hosts import HOSTS
from holdfast.hosts.host import PARTS

OTHER = "other"
STEP, FIRST, LAST, LONGER = (
    "seconds a step",
    "seconds a step at first",
    "seconds a step at last",
    "length, last to first",
)
_SHARE = "share of the time: "

WORTH_SAYING = 0.02
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
        large = sorted((name for name in shares if shares[name] >= WORTH_SAYING), key=lambda name: -shares[name])
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
