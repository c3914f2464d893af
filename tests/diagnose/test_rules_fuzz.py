"""Anything may stand in a log: no rule fails on it or warns, and what it said of a step stays, whatever comes later.

The numbers of a series are drawn from its name and that of the rule, so a new rule changes no other rule's logs.
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.cli.watch import Follower
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import Finding, as_json, headline, to_text
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.log.batches import joined
from holdfast.diagnose.monitor import Monitor
from holdfast.diagnose.rules import RULES
from holdfast.diagnose.rules.rule import Hit, Rule
from holdfast.recipe import Guard as GuardSettings
from holdfast.train.guard import Guard
from holdfast.train.listener import Listener, StepResult

from .cases import CASES

MakeLog = Callable[..., Log]
NAMES = sorted(
    {name for rule in RULES.values() for names in rule.needs for name in names}
    | {name for rule in RULES.values() for check in rule.checks for name in check.series}
    | {"advantage/token_mean", "loss/kl", "rewards/one/mean", "rewards/format/mean", "eval/math/score", "ratio/max"}
)
OF_THE_WHOLE_LOG = {"GRP001", "RWD004", "RWD005", "STL001", "TRN002", "ZER001"}
"""Codes with a note on the log so far, which the newest row decides."""


def draws(*words: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(" ".join(map(str, words)).encode()))


def wild(draw: np.random.Generator, rows: int) -> np.ndarray:
    """Numbers of any size, and what is no number."""
    values = draw.normal(0, 1, rows) * 10.0 ** draw.choice([-300, -9, 0, 1, 9, 150, 307])
    values += draw.choice([0, 0, 1, -1, 1e6])
    odd = draw.random(rows) < draw.choice([0, 0.1, 1.0])
    values[odd] = draw.choice([np.nan, np.inf, -np.inf, 0.0, 1e308, -1e308], odd.sum())
    return values


def eventful(draw: np.random.Generator, rows: int) -> np.ndarray:
    """Levels as metrics have them, which change a few times, with or without noise."""
    levels = np.array([-1.0, 0.0, 0.0, 0.02, 0.1, 0.3, 0.5, 0.9, 1.0, 1.0])
    if draw.random() < 0.2:
        values = draw.choice(levels, rows)
    else:
        values = np.repeat(draw.choice(levels, 5), np.diff([0, *np.sort(draw.integers(0, rows + 1, 4)), rows]))
    values += draw.normal(0, draw.choice([0, 0, 0.01, 0.1]), rows)
    values *= draw.choice([1, 1, 1, 1, 10, 100, -1, -0.1, 0.01])
    odd = draw.random(rows) < draw.choice([0, 0, 0, 0.1])
    return np.where(odd, draw.choice([np.nan, np.nan, np.inf, 1e308], rows), values)


def log_of(series: dict[str, Series], host: str) -> Log:
    steps = np.unique(np.concatenate([np.empty(0, np.int64), *(one.steps for one in series.values())]))
    settings = {"steps_per_generation": 4, "num_iterations": 1, "gradient_accumulation_steps": 1}
    return Log(format="wandb", host=host, name="any", series=series, steps=steps, settings=settings)  # type: ignore[arg-type]


def random_log(code: str, case: int) -> Log:
    """For a rule: short or long, with jumps of the step, series that are sparse, begin late or end early."""
    draw = draws(code, case)
    rows = int(draw.choice([6, 15, 40, 60]))
    steps = np.cumsum(draw.choice([1, 1, 1, 2, 30], rows) if draw.random() < 0.4 else np.ones(rows, np.int64))
    series = {}
    for name in NAMES:
        own = draws(code, case, name)
        keep = own.random(rows) >= own.choice([0, 0, 0, 0.1, 0.5, 0.9])
        keep[: own.choice([0, 0, 0, rows // 3])] = keep[rows - own.choice([0, 0, 0, rows // 3]) :] = False
        if keep.any() and own.random() < 0.9:
            series[name] = Series(steps[keep], eventful(own, int(keep.sum())))
    return log_of(series, str(draw.choice(["holdfast", "trl", "verl", "unknown"])))


def damaged(log: Log, code: str, case: int) -> Log:
    """A log with holes, noise, and series that begin late, end early or are not there at all."""
    series = {}
    for name, one in log.series.items():
        draw, rows = draws(code, case, name), len(one)
        keep = draw.random(rows) >= draw.choice([0, 0, 0.1, 0.5])
        keep[: draw.choice([0, 0, 0, 0, rows // 3])] = keep[rows - draw.choice([0, 0, 0, 0, rows // 2]) :] = False
        values = one.values * np.where(draw.random(rows) < draw.choice([0, 0, 0.1, 0.3]), draw.normal(1, 1, rows), 1)
        if keep.any() and draw.random() < 0.9:
            series[name] = Series(one.steps[keep], values[keep])
    return log_of(series, log.host)


def logs_of(code: str, numbers: range, make_log: MakeLog) -> Iterator[Log]:
    """By turns random ones, and the runs made for the code, damaged."""
    made = CASES.get(code, [])
    for number in numbers:
        if number % 2 or not made:
            yield random_log(code, number)
        else:
            host = ("holdfast", "trl", "unknown")[number // 2 % 3]
            changes = made[number // 2 % len(made)][0]
            yield damaged(make_log(**{"host": host} | changes), code, number)


def only_reasons(rule: Rule) -> Rule:
    return replace(rule, checks=tuple(check for check in rule.checks if check.level == "reason"))


def broken(rule: Rule, log: Log) -> str:
    """How a rule breaks its word as the log grows by a row; empty if it does not.

    What was found stays as it was until it is over, and begins at no step but the newest. So does a note. A reason is
    what the reasons alone say: it shows where no finding holds, and keeps the times of those before.
    """
    reasons = only_reasons(rule)
    before: Hit | None = None
    for step in log.steps.tolist():
        part = log.until(step)
        rows = rule.rows(part, joined(part))
        now = rule.find(rows)
        known = () if now is None else now.spans
        until = tuple(
            (begun, back if back is not None and back < step else None) for begun, back in known if begun < step
        )
        if until != (() if before is None else before.spans):
            return f"at {step} the past is {until}: {before}, {now}"
        if now is not None and now.level == "reason":
            alone = reasons.find(rows)
            if alone is None or repr(now) != repr(replace(alone, spans=known)) or None in dict(known).values():
                return f"at {step} a reason is not what the reasons alone say: {alone}, {now}"
        elif now is not None and known and (now.step, now.level == "finding") != (known[-1][0], known[-1][1] is None):
            return f"at {step} a finding is not what was found last: {now}"
        if rule.code not in OF_THE_WHOLE_LOG and not known:
            if now is None and before is not None:
                return f"at {step} it is gone: {before}"
            if now is not None and now.step not in (step, None if before is None else before.step):
                return f"at {step} it moved: {before}, {now}"
        both = now is not None and before is not None and (now.step, now.level) == (before.step, "finding")
        if both and repr(replace(before, spans=())) != repr(replace(now, spans=())):
            return f"at {step} it says something else: {before}, {now}"
        before = now
    return ""


@pytest.mark.parametrize("numbers", [range(2), pytest.param(range(2, 60), marks=pytest.mark.long)], ids=["few", "many"])
@pytest.mark.parametrize("code", RULES)
def test_later_rows_change_nothing(make_log: MakeLog, code: str, numbers: range) -> None:
    for log in logs_of(code, numbers, make_log):
        for rule in (RULES[code], only_reasons(RULES[code])):
            assert not rule.checks or not broken(rule, log)


ROW = np.arange(1, 31)
SPARSE = Series(np.array([1, 5, 8, 12, 20, 28]), np.array([0.2, 0.9, 0.1, 0.1, 0.0, 0.0]))


def rows(values: float | np.ndarray, first: int = 1) -> Series:
    return Series(ROW[first - 1 :], np.broadcast_to(values, 30)[first - 1 :].astype(float))


LATE: dict[str, tuple[str, str, dict[str, Series]]] = {
    "rewards while the first five are not complete": (
        "TRN001",
        "holdfast",
        {
            "rollout/truncated_fraction": Series(np.arange(1, 181), np.ones(180)),
            "reward/mean": Series(np.array([1, 75, 86, 103, 180]), np.array([0.0, 1.0, -1.0, -1.0, 1.0])),
        },
    ),
    "rewards that had not risen yet": (
        "KLD001",
        "holdfast",
        {"kl/reference": rows(np.where(ROW < 12, 0.05, 2.0)), "reward/mean": SPARSE},
    ),
    "a better reward": (
        "ISD001",
        "holdfast",
        {
            "ratio/log_product": rows(-0.6),
            "eval/em": rows(np.where(ROW < 12, 0.8, 0.1) + 0.01 * np.sin(ROW)),
            "reward/mean": rows(0.5, first=25),
        },
    ),
    "a learning rate above 0": (
        "SMP003",
        "verl",
        {"sampler/logprob_abs_gap": rows(0.01 * ROW), "lr": rows(np.where(ROW < 25, 0.0, 1e-6))},
    ),
    "the number of optimizer steps": (
        "ENT003",
        "trl",
        {
            "reward/mean": Series(ROW[::4], np.full(8, 0.5)),
            "entropy/mean": rows(6.0),
            "optimizer_steps_per_rollout": rows(4.0, first=4),
        },
    ),
    "the observer": (
        "OBS001",
        "trl",
        {
            "reward/mean": rows(0.5),
            "rollout/mixed_group_fraction": rows(0.5),
            "likelihood/incorrect": rows(-1.0),
            "optimizer_steps_per_rollout": rows(1.0, first=13),
        },
    ),
    "another check, while the first one ends": (
        "RET001",
        "holdfast",
        {
            "retrieval/error_fraction": rows(np.where(ROW < 4, 0.9, 0.0)),
            "rollout/failed_fraction": rows(np.where(ROW > 2, 0.9, 0.0)),
        },
    ),
}
"""What comes late -> a rule whose step it moved once, a host, and the series."""


@pytest.mark.parametrize("what", LATE)
def test_what_comes_late_moves_no_step(what: str) -> None:
    code, host, series = LATE[what]
    log = log_of(series, host)
    assert RULES[code].find(RULES[code].rows(log, joined(log))) is not None
    assert not broken(RULES[code], log)


class Heard(Listener):
    """The findings of the newest row."""

    def __init__(self) -> None:
        self.new: list[tuple[str, int]] = []

    def finding(self, finding: Finding) -> None:
        self.new.append((finding.code, finding.certain))


@pytest.mark.parametrize(
    "case", [number if number < 2 else pytest.param(number, marks=pytest.mark.long) for number in range(40)]
)
def test_guard_and_watch_and_diagnose_name_the_same_step(case: int, make_log: MakeLog, tmp_path: Path) -> None:
    """That of the row at which it was found, while the log grows row by row; so for codes that hide one another."""
    code = sorted(CASES)[case * 11 % len(CASES)]
    log = damaged(make_log(**CASES[code][0][0]), code, case) if case % 3 else random_log("all", case)
    heard, told = Heard(), Heard()
    follower = Follower(heard, lambda finding, log: None, live=None)
    guard = Guard(GuardSettings(), tmp_path, recipe=dict(log.settings), on_finding=told.finding)
    monitor = Monitor(host=log.host, name=log.name, settings=log.settings)
    ever: set[tuple[str, int]] = set()
    for step in log.steps.tolist():
        part = log.until(step)
        row = {name: float(one.values[-1]) for name, one in part.series.items() if one.steps[-1] == step}
        heard.new, told.new = [], []
        follower.take((part,))
        new = [(finding.code, finding.certain) for finding in monitor.observe(step, row)]
        if log.host == "holdfast":
            guard.step(StepResult(step=step, metrics=row))
            assert told.new == new
        assert heard.new == new and all(begun == step for _, begun in new)
        ever |= set(new)
        assert {
            (finding.code, finding.certain) for finding in diagnose(part).findings if not finding.by_verdict
        } <= ever


@pytest.mark.parametrize("seed", [*range(40), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(40, 150))])
def test_anything(seed: int) -> None:
    series = {}
    for name in NAMES:
        draw = draws(seed, name)
        rows = int(draw.choice([0, 1, 2, 3, 7, 40]))
        if draw.random() < 0.8:
            series[name] = Series(np.sort(draw.choice(200, rows, replace=False)).astype(np.int64), wild(draw, rows))
    log = log_of(series, ("unknown", "trl")[seed % 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diagnosis = diagnose(log)
        json.loads(to_text(as_json(log, diagnosis)))
        assert headline(log, diagnosis)
