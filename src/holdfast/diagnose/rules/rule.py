"""What a rule is: one value with a code, its checks, its texts and its relations to other codes.

A check looks at rows: the steps at which all of its series are logged. Its result at a row may depend only on the rows
up to it. So later rows never change what was found, or its step. They only end it, and then it may begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.finding import Finding
from holdfast.diagnose.log import REWARDS, Log, Series, as_of, finite, has, reward_curve
from holdfast.diagnose.log.collapse import TREND_ERRORS, curve_of, reward_range
from holdfast.diagnose.log.trailing import (
    Span,
    Truths,
    Values,
    held,
    highest,
    lowest,
    mean_at_first,
    merged,
    spans,
    trailing_mean,
    trend,
)
from holdfast.diagnose.rules.remedies import NOTHING, Remedy


@dataclass(frozen=True, slots=True)
class Rows:
    """Some series of a log where all of them have a value."""

    log: Log
    names: tuple[str, ...]
    steps: NDArray[np.int64]
    """[N], strictly increasing."""
    columns: tuple[Values, ...]
    """[N] each, in the order of `names`."""

    def latest(self, name: str, of: Callable[[Values], Values] | None = None) -> Values:
        """[N]: the last value of another series at or before each step. With `of`, the last value of that function of
        the series. NaN before the first value, and everywhere if the series is not logged.
        """
        if name not in self.log.series:
            return np.broadcast_to(np.nan, len(self.steps))
        known = finite(self.log.series[name])
        return as_of(known if of is None else Series(known.steps, of(known.values)), self.steps)

    def is_zero(self, name: str) -> Truths:
        """[N]: whether the last value of a series is exactly 0, which one that is printed as 0.000 need not be."""
        series = self.log.series.get(name)
        return np.asarray((self.latest(name) == 0) & (series is not None and not series.rounded))

    def where(self, name: str, condition: Callable[[Values], Truths]) -> Truths:
        """[N]: whether another series fulfilled a condition at its last value; False where it has none so far."""
        return self.latest(name, lambda values: condition(values).astype(float)) > 0


def from_start(row: int) -> int:
    """`Signal.began` of what has been so since the first row."""
    return 0


def rows_of(log: Log, names: tuple[str, ...], *, raw: bool = False) -> Rows:
    """The steps at which all of the series are logged and finite; with `raw`, finite or not. The log must have all."""
    series = [log.series[name] if raw else finite(log.series[name]) for name in names]
    steps = series[0].steps
    if all(np.array_equal(steps, part.steps) for part in series[1:]):
        return Rows(log, names, steps, tuple(part.values for part in series))
    for part in series[1:]:
        steps = np.intersect1d(steps, part.steps, assume_unique=True)
    return Rows(log, names, steps, tuple(part.values[np.searchsorted(part.steps, steps)] for part in series))


@dataclass(frozen=True, slots=True)
class Signal:
    """The result of a condition. Evidence is a function, so it is computed only for a finding."""

    where: Truths
    """[N]: the rows at which the condition holds."""
    evidence: Callable[[], Mapping[str, Values]]
    """Names of series, or of what was computed from them, and their numbers in every row, [N]."""
    message_values: Callable[[], Mapping[str, NDArray[np.generic]]] = dict
    """Other values that the message mentions, [N]."""
    normal: Truths | None = None
    """[N]: the rows at which the series are back to normal. A finding begins, holds, and is over after some such rows
    (`Check.rows_normal`) in which the reward is not down: what passed and left the reward down stays a finding. One
    that is over at the end of the log is a note. None for what does not pass, such as a NaN."""
    began: Callable[[int], int] | None = None
    """The row at which what is found began, from the row at which it is certain; it looks at no later row. None where
    both are the same, or `Check.rows_running` says how many rows it takes."""


Kind = Literal["logged cause", "likely cause", "symptom", "from the start"]
"""A logged cause is a setting, or a series that measures the cause itself. A likely cause is inferred. A symptom is
what a run shows whatever the cause. What is so from the start explains nothing that changed later."""
KINDS: tuple[Kind, ...] = ("logged cause", "likely cause", "symptom", "from the start")
"""In the order in which they are reported, where they begin within a few rows of each other."""

HitLevel = Literal["finding", "reason", "note"]
"""A reason explains why a run does not learn: a finding where the reward does not rise, a note elsewhere. The newest
row decides (`diagnose.verdict`)."""


@dataclass(frozen=True, slots=True)
class Hit:
    """What a rule found."""

    step: int
    """The first step at which it was certain."""
    summary: str
    """What happened, in one sentence with its numbers."""
    evidence: Mapping[str, float]
    """Names of series, or of what was computed from them, and their numbers at `step`."""
    series: tuple[str, ...]
    """The series to look at."""
    remedy: Remedy | None = None
    """What to change, if this evidence needs another remedy than the rule's."""
    level: HitLevel = "finding"
    kind: Kind | None = None
    """The kind of this evidence, if it is another than the rule's."""
    spans: tuple[Span, ...] = ()
    """(first step, step of the return) of each time it was found and held; None where it still holds. Only a check of
    level "finding" has any."""
    began: int | None = None
    """The step at which it began; None if that is `step`."""

    @property
    def onset(self) -> int:
        """The step at which it began."""
        return self.step if self.began is None else self.began


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One way to detect what a rule is about."""

    series: tuple[str, ...]
    """A row is a step at which all of these are logged."""
    signal: Callable[[Rows], Signal | None]
    """Which rows show it. None, to save arithmetic, if no row can."""
    message: str
    """What happened, in one sentence. Fields in braces are filled with the evidence and values of the row."""
    min_rows: int = 1
    """Rows before the first possible finding."""
    rows_running: int = 1
    """Consecutive rows that have to show it."""
    rows_normal: int = 2
    """Consecutive rows that have to be normal before it is over: one odd row must not end it."""
    better: tuple[tuple[str, ...], ...] = ()
    """Sets of series that are better evidence. This check only sees rows from before such a set is complete."""
    look_at: tuple[str, ...] = ()
    """The series a chart should show, as far as they are logged by then. Default: `series`, and others in evidence."""
    remedy: Remedy | None = None
    """Replaces the remedy of the rule."""
    raw: bool = False
    """Whether values that are not finite make rows too."""
    level: HitLevel = "finding"
    """The level of what it finds."""
    kind: Kind | None = None
    """Replaces the kind of the rule."""

    def find(self, log: Log) -> tuple[list[Span], Callable[[int], Hit]] | None:
        """Every time that rows show it, and what was found at the first step of one; None if no row shows it."""
        begins = _begin(log, self.series)
        ends = min((step for names in self.better if (step := _begin(log, names)) is not None), default=None)
        if begins is None or (ends is not None and ends <= begins):
            return None
        rows = rows_of(log if ends is None else log.until(ends - 1), self.series, raw=self.raw)
        if not len(rows.steps):
            return None
        signal = self.signal(rows)
        if signal is None:
            return None
        where = signal.where
        if self.min_rows > 1:
            where = where & (np.arange(len(where)) >= self.min_rows - 1)
        if self.rows_running > 1:
            where = held(where, self.rows_running)
        if not where.any():
            return None
        normal = signal.normal
        if normal is not None:
            normal = held(normal & ~signal.where & ~falling(rows), self.rows_normal)
        found = [(int(rows.steps[a]), None if b is None else int(rows.steps[b])) for a, b in spans(where, normal)]
        return found, lambda step: self._hit_at(step, rows, signal)

    def _hit_at(self, step: int, rows: Rows, signal: Signal) -> Hit:
        at = int(np.searchsorted(rows.steps, step))
        evidence = {name: float(values[at]) for name, values in signal.evidence().items()}
        numbers = evidence | {name: values[at] for name, values in signal.message_values().items()}
        known = {name: v for name, v in evidence.items() if name in self.series or not np.isnan(v)}
        begun = rows.log.until(step)
        shown = [*self.series, *(name for name in known if name not in self.series and name in begun.series)]
        look_at = tuple(name for name in self.look_at or shown if has(begun, name)) or self.series
        row = max(at - self.rows_running + 1, 0)
        began = int(rows.steps[row if signal.began is None else signal.began(row)])
        summary = self.message.format_map(numbers)
        return Hit(step, summary, known, look_at, self.remedy, self.level, self.kind, began=began)


def _begin(log: Log, names: tuple[str, ...]) -> int | None:
    """The first step at which all of the series have begun; None if one of them never does."""
    begun = [int(part.steps[0]) for name in names if (part := log.series.get(name)) is not None and len(part)]
    return max(begun) if len(begun) == len(names) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One code: how it is detected, and what the user should know about it."""

    code: str
    """Stable, such as `LLD003`."""
    title: str
    kind: Kind = "likely cause"
    needs: tuple[tuple[str, ...], ...]
    """Sets of series, the best first. The rule can decide if all series of one set are logged."""
    equal_needs: bool = False
    """Whether each of these sets is as good as the first."""
    applies: Callable[[Log], bool] = lambda log: True
    """Whether the rule applies to a log: without a penalty, no penalty can be inert."""
    checks: tuple[Check, ...]
    """Where several detect something, the first of them says what; at the same step, the one that comes first here."""
    every_row: bool = False
    """Whether the rule looks at every row of the log, not at one for each rollout batch."""

    meaning: str
    """One sentence."""
    impact: str
    """Why it matters."""
    remedy: Remedy
    remedy_in: Callable[[Log, Hit, Sequence[Finding]], Remedy] | None = None
    """Replaces it, if the remedy depends on the settings of the log, or on what is reported before."""
    limitations: str
    """When the rule is wrong, or finds nothing."""

    suppressed_by: tuple[str, ...] = ()
    """Codes that explain the same better. A finding of one of them, from the same step or before, hides this one while
    it holds."""
    suppressed_by_earlier: tuple[str, ...] = ()
    """Codes that lead to this one. An earlier finding of one of them hides this one while it holds."""
    phase: Literal["stagnation", "decay", "collapse"] | None = None
    """The phase of a likelihood collapse that begins with this finding (arXiv 2512.04220)."""

    def rows(self, log: Log, batches: Log) -> Log:
        """The log that this rule looks at: the whole log, or the log with a row for each rollout batch."""
        return log if self.every_row else batches

    def find(self, log: Log) -> Hit | None:
        """What was found last, which is a note once it is over; None if nothing was. What several checks find at the
        same time is one finding, which begins with the first of them and holds until all are over. A reason counts
        where no finding holds, and a check of level "note" as long as no other has found anything."""
        if not self.applies(log):
            return None
        hit = self._find(log, "finding")
        if hit is None or hit.level == "note":  # which has passed
            reason = self._find(log, "reason")
            hit = reason if hit is None or (reason is not None and reason.level == "reason") else hit
        return hit or self._find(log, "note")

    def _find(self, log: Log, level: HitLevel) -> Hit | None:
        """What the checks of one level find."""
        checks = (check for check in self.checks if check.level == level)
        found = [times for check in checks if (times := check.find(log)) is not None]
        if not found:
            return None
        all_times = merged(span for times, _ in found for span in times)
        step, back = all_times[-1]
        hit = next(hit_at(step) for times, hit_at in found if any(begun == step for begun, _ in times))
        if level == "finding":
            hit = replace(hit, spans=tuple(all_times))
        if back is None:
            return hit
        summary = f"{hit.summary} It was over at step {back}."
        return replace(hit, summary=summary, remedy=NOTHING, level="note")


def without_suppressed(hits: Mapping[str, Hit], rules: Mapping[str, Rule]) -> dict[str, Hit]:
    """One cause, one code: the hits that no other suppresses. Another code does so if it held when this one began, and
    was not suppressed itself. What a check of level "note" finds hides nothing.
    """

    def remains(code: str, step: int) -> bool:
        rule = rules[code]
        return not any(
            remains(other, begun)
            for other in {*rule.suppressed_by, *rule.suppressed_by_earlier} & hits.keys()
            for begun, back in hits[other].spans
            if (begun < step or (begun == step and other in rule.suppressed_by)) and (back is None or back > step)
        )

    return {code: hit for code, hit in hits.items() if remains(code, hit.step)}


ADVANTAGE = "advantage/token_mean"
ADVANTAGE_ROWS = 8
ROWS_TO_FORGET = 20
"""Rows after a single bad update, with the reward near its best, after which it did no harm."""
BEST_ROWS, BACK_SHARE = 5, 0.2
"""The reward is near its best when the mean of five rows is within that share of the range of it."""
LEARNED_SHARE = 0.1
"""Share of its range that a reward has gained, if the policy learns."""
LOW_SHARE = 0.5
"""Share of the highest possible reward up to which much is left to learn. That is 1, or the highest mean if it is
more."""
VISIBLE_SHARE = 0.2
SOLVED = 0.9
"""A mean reward between 0 and 1 from which on there is little left to gain; of one between 0 and 100, 90."""
LONG_PREFERRED_ADVANTAGE = 0.03
"""Mean advantage per token. Above this, advantages prefer long rollouts. Correct rollouts then lose likelihood because
others gain it: a flaw of the reward, not lazy displacement. In recorded displacement collapses it was below 0.01."""


def long_not_preferred(rows: Rows) -> Truths:
    """[N]: where advantages do not prefer long rollouts, as far as the log shows."""
    advantage = rows.latest(ADVANTAGE, lambda values: trailing_mean(values, ADVANTAGE_ROWS))
    return ~(advantage > LONG_PREFERRED_ADVANTAGE)


def is_near_best(reward: Values) -> Truths:
    """[N]: where the reward has lost little of its best, or has come back."""
    mean = trailing_mean(reward, BEST_ROWS)
    best = highest(mean)
    return best - mean <= BACK_SHARE * reward_range(best, lowest(reward))


def did_no_harm(rows: Rows) -> Truths:
    """[N]: where the reward is near its best, so that what lasts no longer than a row has done no harm."""
    return rows.where("reward/mean", is_near_best)


def has_risen(rows: Rows, name: str = "reward/mean") -> Truths:
    """[N]: where the reward, or another series, has risen since the log began, by more than noise and by a tenth of its
    range. Learning ends an alarm; a rise that only a long log can show does not."""
    return rows.where(name, lambda values: _risen(values.tobytes()))


@lru_cache(maxsize=16)
def _risen(series: bytes) -> Truths:
    """Several rules ask it of the same reward."""
    values = np.frombuffer(series)
    gain = np.maximum(trend(values)[0], trailing_mean(values, BEST_ROWS) - mean_at_first(values, BEST_ROWS))
    return curve_of(values).rose & (gain > LEARNED_SHARE * reward_range(highest(values), lowest(values)))


def is_low(reward: Values, window: int) -> Truths:
    """[N]: where the mean of the last rewards leaves much to learn."""
    return trailing_mean(reward, window) <= LOW_SHARE * np.maximum(highest(reward), 1.0)


def shows_no_rise(rows: Rows) -> Truths:
    """[N]: where the reward has not risen, nothing suggests that it does, and a rise by a fifth of the highest possible
    reward would show. That is 1, or the highest mean if it is more."""

    def flat(reward: Values) -> Truths:
        change, error = trend(reward)
        visible = TREND_ERRORS * error < VISIBLE_SHARE * np.maximum(highest(reward), 1.0)
        return visible & (change < TREND_ERRORS / 2 * error)

    return rows.where("reward/mean", flat) & ~has_risen(rows)


def is_solved(rows: Rows) -> Truths:
    """[N]: where the reward is a share near 1, or a percentage near 100, so that little is left to gain."""

    def near_top(reward: Values) -> Truths:
        top = np.where(highest(reward) > 1, 100.0, 1.0)
        is_share = (lowest(reward) >= 0) & (highest(reward) <= top)
        return is_share & (trailing_mean(reward, BEST_ROWS) >= SOLVED * top)

    return rows.where("reward/mean", near_top)


def is_down(rows: Rows) -> Truths:
    """[N]: where RWD001 says that the reward is down."""
    return rows.where("reward/mean", lambda reward: curve_of(reward).down)


def falling(rows: Rows) -> Truths:
    """[N]: where the reward has probably fallen, by the best reward that is logged so far."""
    result = np.full(len(rows.steps), np.nan)
    for name in REWARDS:
        if np.isnan(result).any() and (curve := reward_curve(rows.log, name)) is not None:
            known = as_of(Series(curve.steps, curve.falling.astype(np.float64)), rows.steps)
            result = np.where(np.isnan(result), known, result)
    return result > 0
