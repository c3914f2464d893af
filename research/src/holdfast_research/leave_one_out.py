"""What each principle of the rules changes: every log of every set, read with the principle and without it.

    python -m holdfast_research.leave_one_out [--others DIR …] [--keep NAME]

A principle is left out by giving its checks back what they did before, or by taking them out. A log is changed if its
findings or notes are other ones. It is better with the principle if a healthy run loses its finding, or a faulty one
gets one, or the first one names its cause. It also counts which codes decide anything: those that no log has could go.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from holdfast.base.errors import HoldfastError
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log, collapse, smoothed, trailing
from holdfast.diagnose.log.trailing import Truths, Values
from holdfast.diagnose.rules import RULES, grp001, kld001, tol002, trn001
from holdfast.diagnose.rules._parts import reward
from holdfast.diagnose.rules._parts.reward import has_risen
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal
from holdfast_research import public_logs, readings
from holdfast_research.head_to_head import right_codes
from holdfast_research.pages.diagnosis import table
from holdfast_research.recordings.library import FOLDER, SETS, folder_of, load, read_manifest
from holdfast_research.recordings.outcomes import UNPLANNED

Without = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A log, and what is true of it."""

    of: str
    healthy: bool
    right: frozenset[str]
    """Codes that name the cause; empty where it is not known."""
    logs: tuple[Log, ...]


# ---- principles


def _rules(change: Callable[[Rule], Rule], *codes: str) -> Without:
    return lambda: patch.dict(RULES, {code: change(RULES[code]) for code in codes or tuple(RULES)})


def _checks(change: Callable[[Check], Check | None]) -> Callable[[Rule], Rule]:
    """A rule with other checks, or without some."""
    return lambda rule: replace(rule, checks=tuple(new for check in rule.checks if (new := change(check)) is not None))


def _is(check: Check, signal: Callable[..., Any]) -> bool:
    return (check.signal.func if isinstance(check.signal, partial) else check.signal) is signal


def _dropped(signal: Callable[..., Any], code: str) -> Without:
    drop = lambda check: None if _is(check, signal) and check.level == "finding" else check  # noqa: E731
    return _rules(_checks(drop), code)


def _by_level(rows: Rows, kl: Values) -> Signal:
    """KLD001 by the KL itself, not by its rise."""
    high = kld001.stays_above(kl, kld001.RISE_NATS)
    return Signal(high & ~has_risen(rows), words=lambda: {"first": kl}, normal=~high)


@contextmanager
def _nothing_is_learned() -> Iterator[None]:
    never: Callable[..., Truths] = lambda rows, name="": np.zeros(len(rows.steps), bool)  # noqa: E731
    with ExitStack() as stack:
        for module in (grp001, reward, kld001):
            for name in {"has_risen", "shows_no_rise"} & vars(module).keys():
                value = never if name == "has_risen" else (lambda rows: ~never(rows))
                stack.enter_context(patch.object(module, name, value))
        yield


@contextmanager
def _no_floor() -> Iterator[None]:
    with patch.object(smoothed, "REMAINDER", 0.0), patch.object(trailing, "_ROUNDED", 0.0):
        yield


PRINCIPLES: Mapping[str, Without] = {
    "a KL is judged against its own first rows": _rules(
        _checks(lambda check: replace(check, signal=_by_level) if _is(check, kld001.leaves_start) else check),
        "KLD001",
    ),
    "a rule waits until it can know": _rules(_checks(lambda check: replace(check, min_rows=1))),
    "learning ends an alarm": _nothing_is_learned,
    "noise has a floor": _no_floor,
    "a trend over the whole run is a rise": lambda: patch.object(collapse, "TREND_ERRORS", 1e9),
    "truncation does not hide a lack of contrast that it does not explain": _rules(
        lambda rule: replace(rule, suppressed_by=(*rule.suppressed_by, "TRN001")), "GRP001"
    ),
    "few contrasts and no rise are a finding": _dropped(grp001.seldom_differ, "GRP001"),
    "half truncated and no rise are a finding": _dropped(trn001.half_are_truncated, "TRN001"),
    "results that vanish mean that the tool died": _dropped(tol002.results_are_missing, "TOL002"),
}


# ---- logs


def recorded(name: str) -> Iterator[Case]:
    """Each recording of a set, and of TRL the stock log too."""
    folder = FOLDER if name == "own" else folder_of(name)
    for recording in read_manifest(folder):
        if recording.cause == UNPLANNED:
            continue
        right = frozenset() if recording.healthy else right_codes(recording.cause)
        for stock in (False, True) if recording.host == "trl" else (False,):
            log = load(recording, folder, stock=stock)
            yield Case(of=name, healthy=recording.healthy, right=right, logs=(log,))


def of_others(folder: Path, name: str) -> Iterator[Case]:
    """The logs of a folder as `public_logs` takes it, whose outcome is known."""
    with public_logs.logs_of(folder) as logs:
        for log in logs:
            if log.truth not in ("healthy", "bad"):
                continue
            try:
                yield Case(of=name, healthy=log.truth == "healthy", right=log.right, logs=public_logs.read(log))
            except HoldfastError:
                continue  # public_logs counts what cannot be read


# ---- verdicts


def said(case: Case) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """(how good, findings, notes). A healthy run: 1 without a finding. A faulty one: 1 with one, 2 with the right one
    first."""
    every = [diagnose(log) for log in case.logs]
    findings = tuple(f.code for d in every for f in d.findings)
    first_is_right = bool(findings) and findings[0] in case.right
    good = int(not findings or first_is_right) if case.healthy else bool(findings) + first_is_right
    return good, findings, tuple(f.code for d in every for f in d.notes)


def compared(cases: Iterator[Case]) -> tuple[dict[str, dict[str, dict[str, int]]], dict[str, dict[str, int]]]:
    """Principle -> set -> how many logs it changes, betters and worsens; code -> set -> logs with it."""
    effects: dict[str, dict[str, dict[str, int]]] = {name: {} for name in PRINCIPLES}
    codes: dict[str, Counter[str]] = {code: Counter() for code in RULES}
    for case in cases:
        good, *found = said(case)
        for code in {code for part in found for code in part}:
            codes[code][case.of] += 1
        for name, without in PRINCIPLES.items():
            with without():
                before, *then = said(case)
            row = effects[name].setdefault(case.of, {"logs": 0, "changed": 0, "better": 0, "worse": 0})
            row["logs"] += 1
            row["changed"] += then != found
            row["better"] += good > before
            row["worse"] += good < before
    return effects, {code: dict(counts) for code, counts in codes.items()}


def shown(effects: Mapping[str, Mapping[str, Mapping[str, int]]]) -> str:
    """Markdown: a row for each principle, a column for each set."""
    return table(
        {
            name: {of: f"{row['changed']}; +{row['better']} −{row['worse']}" for of, row in sets.items()}
            for name, sets in effects.items()
        }
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", choices=("own", *SETS), nargs="*", default=["own", *SETS], help="recordings")
    parser.add_argument(
        "--others", type=Path, nargs="*", default=[], metavar="DIR", help="folders of logs, as public_logs takes them"
    )
    parser.add_argument("--keep", metavar="NAME", help="write research/data/readings/NAME.json")
    options = parser.parse_args()

    def cases() -> Iterator[Case]:
        for name in options.sets:
            yield from recorded(name)
        for folder in options.others:
            yield from of_others(folder, "strangers" if (folder / "LABELS.txt").is_file() else "public")

    effects, codes = compared(cases())
    print(shown(effects))
    silent: Sequence[str] = [code for code, counts in codes.items() if not counts]
    print(f"\nIn no log: {', '.join(silent) or 'none'}")
    if options.keep:
        command = "python -m holdfast_research.leave_one_out --others DIR …"
        print(readings.keep(options.keep, command, {"effects": effects, "codes": codes}))


if __name__ == "__main__":
    main()
