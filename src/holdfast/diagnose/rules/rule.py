"""What a rule is: one value with a code, its checks, its texts and its relations to other codes.

A check looks at rows: the steps at which all of its series are logged. Its result at a row may depend only on the rows
up to it. So later rows never change what was found, or its step. They only end it, and then it may begin anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.finding import Finding, Word
from holdfast.diagnose.log import REWARDS, Log, Series, as_of, finite, has, reward_curve
from holdfast.diagnose.log.trailing import Span, Truths, Values, held, merged, spans
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

    @property
    def by_name(self) -> dict[str, Values]:
        """The columns by their names."""
        return dict(zip(self.names, self.columns, strict=True))

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


def in_newest(rows: Rows, evidence: Mapping[str, float], words: Mapping[str, object], began: int = 0) -> Signal:
    """What the newest row decides: its evidence, other values that the message mentions, and the row where it began."""
    count = len(rows.steps)
    return Signal(
        np.arange(count) == count - 1,
        lambda: {name: np.full(count, value) for name, value in evidence.items()},
        lambda: {name: np.full(count, value) for name, value in words.items()},
        began=lambda row: min(began, row),
    )


def falling(rows: Rows) -> Truths:
    """[N]: where the reward has probably fallen, by the best reward that is logged so far."""
    result = np.full(len(rows.steps), np.nan)
    for name in REWARDS:
        if np.isnan(result).any() and (curve := reward_curve(rows.log, name)) is not None:
            known = as_of(Series(curve.steps, curve.falling.astype(np.float64)), rows.steps)
            result = np.where(np.isnan(result), known, result)
    return result > 0


@dataclass(frozen=True, slots=True)
class Signal:
    """The result of a condition. Evidence is a function, so it is computed only for a finding."""

    where: Truths
    """[N]: the rows at which the condition holds."""
    evidence: Callable[[], Mapping[str, Values]] | None = None
    """Names of series, or of what was computed from them, and their numbers in every row, [N]. Default: the series of
    the check."""
    words: Callable[[], Mapping[str, NDArray[np.generic]]] = dict
    """Other values that the message mentions, [N]."""
    normal: Truths | None = None
    """[N]: the rows at which the series are back to normal. A finding begins, holds, and is over after some such rows
    (`Check.rows_normal`) in which the reward is not down: what passed and left the reward down stays a finding. One
    that is over at the end of the log is a note. None for what does not pass, such as a NaN."""
    began: Callable[[int], int] | None = None
    """The row at which what is found began, from the row at which it is certain; it looks at no later row. None where
    both are the same, or `Check.rows_running` says how many rows it takes."""


Condition = Callable[..., Signal | None]
"""(rows, their columns) -> which of them show something. None, to save arithmetic, if no row can."""

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
    """(first step, step of the return) of each time that a check of level "finding" found it and it held; None where it
    still holds. A reason keeps the times before, because what they hid stays hidden."""
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
    signal: Condition
    """Which rows show it."""
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
    level: HitLevel = "finding"
    """The level of what it finds."""
    kind: Kind | None = None
    """Replaces the kind of the rule."""

    def find(self, log: Log, *, raw: bool = False) -> tuple[list[Span], Callable[[int], Hit]] | None:
        """Every time that rows show it, and what was found at the first step of one; None if no row shows it. With
        `raw`, values that are not finite make rows too."""
        begins = _begin(log, self.series)
        ends = min((step for names in self.better if (step := _begin(log, names)) is not None), default=None)
        if begins is None or (ends is not None and ends <= begins):
            return None
        rows = rows_of(log if ends is None else log.until(ends - 1), self.series, raw=raw)
        if not len(rows.steps):
            return None
        signal = self.signal(rows, *rows.columns)
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
        columns = rows.by_name if signal.evidence is None else signal.evidence()
        evidence = {name: float(values[at]) for name, values in columns.items()}
        numbers = evidence | {name: values[at] for name, values in signal.words().items()}
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


Left = Literal["nothing", "little"]
"""Of what a policy learns from."""

Outcome = Literal["correct", "incorrect", "failed", "empty", "unanswered", "truncated"]
"""Of a rollout. Empty: with a search that found nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How `diagnose.outlook` names what came after a finding."""

    fact: str
    """The name of the fact whose value is the step."""
    words: str
    """What the rest of the run came after, with a place for the `step`."""
    is_final: Callable[[Log, int], bool] = lambda log, step: True
    """Whether it is so from this step to the end of the log."""


COLLAPSING = ("LLD001", "LLD002", "LLD003", "ISD001", "ENT001", "RWD001")
"""Codes of a policy that decays or has collapsed. It samples unlikely tokens, clips more and leaves its reference, so
what shows later may follow from that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One code: how it is detected, and what the user should know about it."""

    code: str = ""
    """Stable, such as `LLD003`; the name of the rule's file says it."""
    doc: str | None = None
    """The docstring of that file, with paragraphs that begin with "Meaning: ", "Impact: " and "Limitations: ". None
    under `python -OO`."""
    title: str
    kind: Kind = "likely cause"
    needs: tuple[tuple[str, ...], ...] = ()
    """Sets of series, the best first: the rule can decide if all series of one set are logged. Default: those of the
    checks."""
    equal_needs: bool = False
    """Whether each of these sets is as good as the first."""
    applies: Callable[[Log], bool] = lambda log: True
    """Whether the rule applies to a log: without a penalty, no penalty can be inert."""
    checks: tuple[Check, ...]
    """Where several detect something, the first of them says what; at the same step, the one that comes first here."""
    reads: Literal["batches", "rows", "rows with NaN"] = "batches"
    """What a row is: a rollout batch, or a row of the log as it is, where numbers that are not finite count or not."""

    remedy: Remedy
    remedy_in: Callable[[Log, Hit, Sequence[Finding]], Remedy] | None = None
    """Replaces it, if the remedy depends on the settings of the log, or on what is reported before."""

    suppressed_by: tuple[str, ...] = ()
    """Codes that explain the same better. A finding of one of them, from the same step or before, hides this one while
    it holds."""
    suppressed_by_earlier: tuple[str, ...] = ()
    """Codes that lead to this one. An earlier finding of one of them hides this one while it holds."""
    phase: Literal["stagnation", "decay", "collapse"] | None = None
    """The phase of a likelihood collapse that begins with this finding (arXiv 2512.04220)."""
    leaves: Callable[[Hit], Left | None] = lambda hit: None
    """How much is left to learn from while it holds. With nothing, the run is broken; with little, its reward goes up
    and down by chance."""
    looks_like_learning: bool = False
    """Whether a run that learns shows it too. It then explains only a reward that is certainly flat."""
    states: Word | None = None
    """The verdict that this finding says."""
    ending: Ending | None = None
    """If the rest of a run is worth nothing once this is found."""
    rollouts: Outcome | None = None
    """The outcome of the rollouts to look at; None for those of any outcome."""

    def __post_init__(self) -> None:
        if not self.needs:
            object.__setattr__(self, "needs", tuple(dict.fromkeys(check.series for check in self.checks)))

    @property
    def meaning(self) -> str:
        """What is found."""
        return paragraph_of(self.doc, "Meaning")

    @property
    def impact(self) -> str:
        """Why it matters."""
        return paragraph_of(self.doc, "Impact")

    @property
    def limitations(self) -> str:
        """When the rule is wrong, or finds nothing."""
        return paragraph_of(self.doc, "Limitations")

    def rows(self, log: Log, batches: Log) -> Log:
        """The log that this rule looks at: the whole log, or the log with a row for each rollout batch."""
        return batches if self.reads == "batches" else log

    def find(self, log: Log) -> Hit | None:
        """What was found last, which is a note once it is over; None if nothing was. What several checks find at the
        same time is one finding, which begins with the first of them and holds until all are over. A reason counts
        where no finding holds, and a check of level "note" as long as no other has found anything."""
        if not self.applies(log):
            return None
        hit = self._find(log, "finding")
        if hit is None or hit.level == "note":  # which has passed
            reason = self._find(log, "reason")
            if reason is not None and (hit is None or reason.level == "reason"):
                hit = replace(reason, spans=() if hit is None else hit.spans)
        return hit or self._find(log, "note")

    def _find(self, log: Log, level: HitLevel) -> Hit | None:
        """What the checks of one level find."""
        checks, raw = (check for check in self.checks if check.level == level), self.reads == "rows with NaN"
        found = [times for check in checks if (times := check.find(log, raw=raw)) is not None]
        if not found:
            return None
        all_times = merged(span for times, _ in found for span in times)
        step, back = all_times[-1]
        hit = next(hit_at(step) for times, hit_at in found if any(begun == step for begun, _ in times))
        if level == "finding":
            hit = replace(hit, spans=tuple(all_times))
        if back is None:
            return hit
        summary = f"{hit.summary} This was over by step {back}."
        return replace(hit, summary=summary, remedy=NOTHING, level="note")


def paragraph_of(doc: str | None, word: str) -> str:
    """The paragraph of a docstring that begins with a word and a colon, in one line; empty without one.

    >>> paragraph_of("X001: a thing.\\n\\nMeaning: It\\nis so.\\n\\nImpact: None.\\n", "Meaning")
    'It is so.'
    """
    found = re.search(rf"^{word}: (.+?)(\n\n|\Z)", doc or "", re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else ""


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
