"""How well the rules do on the library of recorded runs: found in time, the right code first, healthy runs left alone.

    python -m holdfast_research.pages.diagnosis --each               # a line for every run
    python -m holdfast_research.pages.diagnosis --testbeds           # each testbed, and leaving it out
    python -m holdfast_research.pages.diagnosis --testbeds --keep    # and keep the reading for the page

A testbed is one recipe, world and model. A rule that only fits a testbed fails when that one is left out. So how strict
the rules are, a factor on every threshold in standard errors, is chosen again on all other testbeds, and judged on the
one that had no part in it. Counts are of runs, with Wilson intervals at 95 %.
`RIGHT` says which codes are right for which cause. It was written before any held-out run was made; `SMP002` and
`SMP003`, which say the same as `SMP001` of other series, came later.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from holdfast.diagnose.diagnose import diagnose, missing_of
from holdfast.diagnose.finding import Diagnosis
from holdfast.diagnose.log import Log
from holdfast.diagnose.rules import RULES
from holdfast_research import readings
from holdfast_research.recordings.library import Recording, load, read_manifest

RIGHT: dict[str, frozenset[str]] = {
    "displacement": frozenset({"LLD001", "LLD002", "LLD003", "LLD004", "ISD001", "ENT001"}),
    "step-too-large": frozenset({"STP001", "GRD001"}),
    "non-finite": frozenset({"GRD002"}),
    "entropy-exhausted": frozenset({"ENT002"}),
    "dead-retriever": frozenset({"RET001"}),
    "empty-retriever": frozenset({"RET002"}),
    "masked-leak": frozenset({"MSK001"}),
    "answer-avoidance": frozenset({"RWD002"}),
    "sampler-mismatch": frozenset({"SMP001", "SMP002", "SMP003"}),
    "inert-penalty": frozenset({"PEN001"}),
    "no-contrast": frozenset({"GRP001"}),
    "truncation": frozenset({"TRN001"}),
}
FACTORS = (0.64, 0.8, 1.0, 1.25, 1.5625)
"""How strict the rules may be: a fifth fewer standard errors or a quarter more, and that once again. 1 is shipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the rules say about one log, and what is true of it. Lengths are in rollout batches."""

    name: str
    testbed: str
    host: str
    cause: str
    stock: bool
    """Whether the log is TRL's own, without the series of the observer."""
    healthy: bool
    fell: bool
    """The reward lost half of its peak, as it was measured when the run was recorded."""
    lead: float | None
    """From the first finding to the step at which half of the peak is lost; None without a finding before it."""
    early: bool
    """A finding before the fault began."""
    alarm: bool
    """A finding that names nothing the run has."""
    findings: tuple[tuple[str, int], ...]
    """(code, step), by step; those before the fault began left out."""
    right: bool
    """The first of them is a code for the cause."""
    silent: tuple[str, ...]
    """Codes whose series the log lacks."""


def judge(
    recording: Recording,
    log: Log,
    stock: bool = False,
    codes: frozenset[str] | None = None,
    diagnosis: Diagnosis | None = None,
) -> Case:
    """The rules' verdict on a log of a run; `codes` are right for its cause, else those of `RIGHT`.

    `diagnosis` is given where the log was diagnosed already.
    """
    diagnosis = diagnosis or diagnose(log)
    findings = [(f.code, int(f.certain)) for f in diagnosis.findings]
    begins, every = recording.start * recording.every, recording.every
    known = frozenset[str]().union(*(RIGHT.get(cause, frozenset()) for cause in recording.also))
    later = [f for f in findings if recording.healthy or f[1] > begins]
    half = recording.fall[1] if recording.fall and recording.fall[1] <= log.last_step else None
    before = [f for f in later if half is not None and f[1] < half]
    right = (RIGHT.get(recording.cause, frozenset()) if codes is None else codes) | known
    return Case(
        name=recording.name,
        testbed=recording.testbed,
        host=recording.host,
        cause=recording.cause,
        stock=stock,
        healthy=recording.healthy,
        fell=half is not None,
        lead=(half - before[0][1]) / every if half is not None and before else None,
        early=not recording.healthy and any(f not in later and f[0] not in known for f in findings),
        alarm=recording.healthy and any(code not in known for code, _ in findings),
        findings=tuple(later),
        right=bool(later) and later[0][0] in right,
        silent=tuple(code for code, rule in RULES.items() if missing_of(log, rule)),
    )


# ---- numbers


def share(cases: Sequence[Case], true: Callable[[Case], bool]) -> str:
    """`19 of 20, 0.95 (0.76 to 0.99)`."""
    return readings.share(sum(true(case) for case in cases), len(cases))


@dataclass(frozen=True, slots=True)
class Goal:
    """One of the numbers to reach."""

    name: str
    among: Callable[[Case], bool]
    true: Callable[[Case], bool]
    level: float
    at_most: bool = False

    def miss(self, cases: Sequence[Case]) -> float:
        """How far the share is from what is wanted; 0 if it is reached."""
        some = [case for case in cases if self.among(case)]
        if not some:
            return 0.0
        reached = sum(self.true(case) for case in some) / len(some)
        return max(0.0, reached - self.level if self.at_most else self.level - reached)

    def says(self, cases: Sequence[Case]) -> str:
        """The share of some cases, as text."""
        return share([case for case in cases if self.among(case)], self.true)


def _can_tell(case: Case) -> bool:
    """Whether the log of a faulty run has the series of a code for its cause."""
    return not case.healthy and (case.right or not RIGHT[case.cause] <= set(case.silent))


GOALS = (
    Goal("collapses found before half of the peak was lost", lambda c: c.fell, lambda c: c.lead is not None, 0.95),
    Goal("right code first, where the log can tell", _can_tell, lambda c: c.right, 0.9),
    Goal("healthy runs with a finding", lambda c: c.healthy, lambda c: c.alarm, 0.05, at_most=True),
)
ALSO = (
    Goal("faulty runs with a finding", lambda c: not c.healthy, lambda c: bool(c.findings), 0.95),
    Goal(
        "right code first, of faulty runs with a finding",
        lambda c: not c.healthy and bool(c.findings),
        lambda c: c.right,
        0.9,
    ),
    Goal("right code first, of all faulty runs", lambda c: not c.healthy, lambda c: c.right, 0.9),
    Goal("findings before a fault began", lambda c: not c.healthy, lambda c: c.early, 0.05, at_most=True),
)


def numbers(cases: Sequence[Case]) -> dict[str, str]:
    """The headline of some cases."""
    leads = [case.lead or 0.0 for case in cases if case.fell]
    lead = f"{median(leads):g}" if leads else "none"
    shares = {goal.name: goal.says(cases) for goal in (*GOALS, *ALSO)}
    return shares | {"lead to half of the peak, median of all collapses (rollout batches)": lead}


# ---- leaving a testbed out


@contextmanager
def strictness(factor: float) -> Iterator[int]:
    """All thresholds in standard errors (constants of holdfast called `…_ERRORS`) times a factor; yields how many."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "holdfast"]
    places = [(m, k, v) for m in modules for k, v in vars(m).items() if k.endswith("_ERRORS") and isinstance(v, float)]
    try:
        for module, name, value in places:
            setattr(module, name, value * factor)
        yield len(places)
    finally:
        for module, name, value in places:
            setattr(module, name, value)


def at_factors(recordings: Sequence[Recording]) -> dict[float, list[Case]]:
    """Factor -> the cases of all runs and of TRL's stock logs."""
    logs = [(recording, load(recording), False) for recording in recordings]
    logs += [(r, load(r, stock=True), True) for r in recordings if r.host == "trl"]
    result: dict[float, list[Case]] = {}
    for factor in FACTORS:
        with strictness(factor):
            diagnoses = [diagnose(log) for _, log, _ in logs]
        result[factor] = [judge(r, log, stock, diagnosis=d) for (r, log, stock), d in zip(logs, diagnoses, strict=True)]
    return result


def best_factor(cases: Mapping[float, Sequence[Case]]) -> float:
    """The factor that misses the goals by least in all; the nearest to 1 of several."""
    return min(cases, key=lambda f: (sum(goal.miss(cases[f]) for goal in GOALS), max(f, 1 / f)))


def left_out(cases: Mapping[float, Sequence[Case]]) -> dict[str, tuple[float, list[Case]]]:
    """Testbed -> the factor chosen on all others, and the cases of this one at that factor."""
    result = {}
    for testbed in sorted({case.testbed for case in cases[1.0]}):
        factor = best_factor({f: [c for c in some if c.testbed != testbed] for f, some in cases.items()})
        result[testbed] = (factor, [c for c in cases[factor] if c.testbed == testbed])
    return result


def by_testbed(recordings: Sequence[Recording]) -> dict[str, Any]:
    """The reading of own recordings: pooled, by testbed, and at other factors."""
    cases = at_factors(recordings)
    runs = {factor: [c for c in some if not c.stock] for factor, some in cases.items()}
    stock = {factor: [c for c in some if c.stock] for factor, some in cases.items()}
    out, out_stock = left_out(runs), left_out(stock)
    return {
        "runs": len(runs[1.0]),
        "pooled": {
            "each testbed left out": numbers([c for _, some in out.values() for c in some]),
            "rules as shipped": numbers(runs[1.0]),
            "TRL's stock logs, each testbed left out": numbers([c for _, some in out_stock.values() for c in some]),
            "TRL's stock logs, rules as shipped": numbers(stock[1.0]),
        },
        "testbeds": {
            testbed: {"host": some[0].host, "factor": factor} | {goal.name: goal.says(some) for goal in GOALS}
            for testbed, (factor, some) in out.items()
        },
        "factors": {str(f): {goal.name: goal.says(some) for goal in GOALS} for f, some in runs.items()},
    }


# ---- tables


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: a row for each key, a column for each number."""
    columns = list(next(iter(rows.values())))
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    return "\n".join(lines + [f"| {name} | {' | '.join(map(str, row.values()))} |" for name, row in rows.items()])


def each(cases: Sequence[Case]) -> str:
    """A line for every run: what it is, how it went, what was found. `!!` where the rules did not do well."""
    return "\n".join(map(_line, cases))


def _line(c: Case) -> str:
    well = not c.alarm if c.healthy else c.right and (not c.fell or c.lead is not None) and not c.early
    fell = f"fell, lead {c.lead or 0:g}" if c.fell else ""
    findings = " ".join(f"{code}@{step}" for code, step in c.findings)
    return f"{'  ' if well else '!!'} {c.name:30} {c.cause:20} {fell:16} {'EARLY ' if c.early else ''}{findings}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    todo = parser.add_mutually_exclusive_group(required=True)
    todo.add_argument("--each", action="store_true", help="a line for every run")
    todo.add_argument("--testbeds", action="store_true", help="tables by testbed")
    parser.add_argument("--keep", action="store_true", help="with --testbeds: write the reading of the page")
    options = parser.parse_args()
    if options.each:
        print(each([judge(recording, load(recording)) for recording in read_manifest()]))
        return
    reading = by_testbed(read_manifest())
    print("\n\n".join(table(reading[part]) for part in ("pooled", "testbeds", "factors")))
    if options.keep:
        print(readings.keep("own_recordings", "python -m holdfast_research.pages.diagnosis --testbeds", reading))


if __name__ == "__main__":
    main()
