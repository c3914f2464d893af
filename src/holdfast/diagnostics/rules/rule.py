"""What a rule is: a code with its conditions, its words and its relations to other codes, as one value.

A rule's conditions look at rows: the steps at which all of their series are logged. What a condition says of a row may
depend on the rows up to it and on no others, so the step at which a rule first finds something never changes as a log
grows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnostics.log import Host, Log, Series, as_of, finite
from holdfast.trailing import Truths, Values, first, held, trailing_mean

Remedy = Mapping[Host, str]
"""What to change, by host. Settings stand in backticks; `unknown` names no setting."""


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
        """[N]: the last value of another series at or before each step, or of a function of that series. NaN before
        its first value, and everywhere when it is not logged.
        """
        if name not in self.log.series:
            return np.full(len(self.steps), np.nan)
        known = finite(self.log.series[name])
        return as_of(known if of is None else Series(known.steps, of(known.values)), self.steps)


def rows_of(log: Log, names: tuple[str, ...], *, raw: bool = False) -> Rows:
    """The steps at which every one of the series is logged and finite; `raw`: finite or not. All have to be there."""
    series = [log.series[name] if raw else finite(log.series[name]) for name in names]
    steps = series[0].steps
    if all(np.array_equal(steps, one.steps) for one in series[1:]):
        return Rows(log, names, steps, tuple(one.values for one in series))
    for one in series[1:]:
        steps = np.intersect1d(steps, one.steps, assume_unique=True)
    return Rows(log, names, steps, tuple(one.values[np.searchsorted(one.steps, steps)] for one in series))


@dataclass(frozen=True, slots=True)
class Signal:
    """What a condition says of rows. Numbers are functions, because they are wanted only where something is found."""

    where: Truths
    """[N]: the rows that show it."""
    evidence: Callable[[], Mapping[str, Values]]
    """Names of series, or of what was computed from them, and their numbers in every row, [N]."""
    also: Callable[[], Mapping[str, NDArray[np.generic]]] = dict
    """More that the message mentions, [N]."""


@dataclass(frozen=True, slots=True)
class Hit:
    """What a rule found."""

    step: int
    """The first step at which the log showed it."""
    summary: str
    """What happened, in one sentence with its numbers."""
    evidence: Mapping[str, float]
    """Names of series, or of what was computed from them, and their numbers at `step`."""
    series: tuple[str, ...]
    """The series to look at."""
    remedy: Remedy | None = None
    """What to change, where this evidence asks for something else than the rule's remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One way to see what a rule is about."""

    series: tuple[str, ...]
    """What it is seen in: a row is a step at which all of these are logged."""
    signal: Callable[[Rows], Signal | None]
    """Which rows show it; None, to save arithmetic, where none can."""
    message: str
    """What happened, in one sentence; fields in braces are filled with evidence and values of the row."""
    min_rows: int = 1
    """Rows before anything is said."""
    rows_running: int = 1
    """Rows in a row that have to show it."""
    better: tuple[tuple[str, ...], ...] = ()
    """Sets of series that are better evidence. This check sees only rows from before all series of a set have begun."""
    look_at: tuple[str, ...] = ()
    """What a chart should show, where that is not `series`; those that are logged by then."""
    remedy: Remedy | None = None
    """In place of the rule's remedy."""
    raw: bool = False
    """Whether values that are not finite are rows too."""

    def find(self, log: Log) -> Hit | None:
        """The first row that shows it, in words."""
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
        at = first(held(where, self.rows_running) if self.rows_running > 1 else where)
        if at is None:
            return None
        step = int(rows.steps[at])
        evidence = {name: float(values[at]) for name, values in signal.evidence().items()}
        numbers = evidence | {name: values[at] for name, values in signal.also().items()}
        known = {name: v for name, v in evidence.items() if name in self.series or not np.isnan(v)}
        look_at = tuple(name for name in self.look_at if _is_known(log, name, step)) or self.series
        return Hit(step, self.message.format_map(numbers), known, look_at, self.remedy)


def _begin(log: Log, names: tuple[str, ...]) -> int | None:
    """The first step at which all of the series have begun; None where one never does."""
    begun = [int(one.steps[0]) for name in names if (one := log.series.get(name)) is not None and len(one)]
    return max(begun) if len(begun) == len(names) else None


def _is_known(log: Log, name: str, step: int) -> bool:
    return name in log.series and bool(np.isfinite(log.series[name].until(step).values).any())


def always(log: Log) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """All that is known of one code."""

    code: str
    """Stable, such as `LLD003`."""
    title: str
    needs: tuple[tuple[str, ...], ...]
    """Sets of series, the best first: the question can be answered where all series of one set are logged."""
    equal_needs: bool = False
    """Whether any of these sets answers as well as the first."""
    applies: Callable[[Log], bool] = always
    """Whether the question arises: where there is no penalty, none can be inert."""
    checks: tuple[Check, ...]
    """The earliest hit counts; of equals that of the check named first."""

    meaning: str
    """One sentence."""
    impact: str
    """Why it matters."""
    remedy: Remedy
    limitations: str
    """When the rule is wrong, or silent."""

    suppressed_by: tuple[str, ...] = ()
    """Codes that say the same better: where one of them was found no later, this one is not reported."""
    suppressed_by_earlier: tuple[str, ...] = ()
    """Codes that this one is only the end of: where one of them was found before, this one is not reported."""
    phase: Literal["stagnation", "decay", "collapse"] | None = None
    """The phase of a likelihood collapse that begins with it (arXiv 2512.04220)."""

    def find(self, log: Log) -> Hit | None:
        """What the rule finds in a log."""
        hits = [hit for check in self.checks if (hit := check.find(log)) is not None] if self.applies(log) else []
        return min(hits, key=lambda hit: hit.step, default=None)


def without_suppressed(hits: Mapping[str, Hit], rules: Mapping[str, Rule]) -> dict[str, Hit]:
    """One cause, one code: the hits that no other remaining hit suppresses."""

    def remains(code: str) -> bool:
        step, rule = hits[code].step, rules[code]
        no_later = [other for other in rule.suppressed_by if other in hits and hits[other].step <= step]
        earlier = [other for other in rule.suppressed_by_earlier if other in hits and hits[other].step < step]
        return not any(remains(other) for other in [*no_later, *earlier])

    return {code: hit for code, hit in hits.items() if remains(code)}


ADVANTAGE = "advantage/token_mean"
ADVANTAGE_ROWS = 8
PREFERRED = 0.03
"""Mean advantage per token. Above, long rollouts are preferred: correct ones sink because others are pulled up, which
is a slip in the reward and not lazy displacement. Where displacement collapses were found it was below 0.01."""


def not_preferred(rows: Rows) -> Truths:
    """[N]: where advantages do not prefer long rollouts, as far as the log shows."""
    return ~(rows.latest(ADVANTAGE, lambda values: trailing_mean(values, ADVANTAGE_ROWS)) > PREFERRED)


PRESERVE_LIKELIHOOD: Remedy = {
    "holdfast": 'Preserve correct rollouts: `loss.penalty.name = "llds"` or `"sapo"`, with '
    "`train.optimizer_steps_per_rollout` of 2 or more; raise `loss.penalty.coef` if it is on. A smaller `train.lr` "
    "helps as well. Where `sampling.top_p` or `sampling.top_k` truncate the sampler, turn on `sampling.keep_mask` "
    "first.",
    "trl": "Preserve correct rollouts: `with_penalties(GRPOTrainer, LLDS(coef=0.2))`, with `steps_per_generation` at "
    "least twice `gradient_accumulation_steps`. A smaller `learning_rate` helps as well. Where `top_p` or `top_k` "
    "truncate the sampler, undo that first.",
    "verl": "Preserve correct rollouts: `actor_rollout_ref.actor.policy_loss.loss_mode=holdfast_llds`, with "
    "`actor_rollout_ref.actor.ppo_mini_batch_size` at most half of `data.train_batch_size`. A smaller "
    "`actor_rollout_ref.actor.optim.lr` helps as well. Where `actor_rollout_ref.rollout.top_p` truncates the sampler, "
    "undo that first.",
    "unknown": "Preserve correct rollouts with a penalty on lost likelihood (LLDS, Search Agent Policy Optimization), "
    "or lower the learning rate or the number of optimizer steps per rollout batch. Where top-p or top-k truncate the "
    "sampler, undo that first.",
}

SMALLER_STEPS: Remedy = {
    "holdfast": "Divide `train.lr` by five or more, or lengthen `train.warmup`; fewer "
    "`train.optimizer_steps_per_rollout` and larger batches (`train.questions`) make a step smaller too.",
    "trl": "Divide `learning_rate` by five or more, or raise `warmup_steps`; a smaller `steps_per_generation` or "
    "`num_iterations` moves the policy less per rollout batch.",
    "verl": "Divide `actor_rollout_ref.actor.optim.lr` by five or more, or raise "
    "`actor_rollout_ref.actor.optim.lr_warmup_steps`; a larger `actor_rollout_ref.actor.ppo_mini_batch_size` moves the "
    "policy less per rollout batch.",
    "unknown": "Divide the learning rate by five or more, warm it up for longer, or take fewer optimizer steps per "
    "rollout batch.",
}
