"""How well the rules do on the library of recorded runs: collapses found in time, false alarms, the right code first.

    python -m holdfast_research.pages.diagnosis --each              # calibration: thresholds may be chosen here
    python -m holdfast_research.pages.diagnosis --split tuning      # and here, since the one reading as held-out runs
    python -m holdfast_research.pages.diagnosis --split held-out    # judged here; every reading is written down
    python -m holdfast_research.pages.diagnosis --page              # docs/diagnose_numbers.md, from the last readings

Counts are of runs, each with its Wilson interval at 95 %; copies are counted apart from the runs they were made of.
`RIGHT` says which codes are right for which cause. It was written before any held-out run was made.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from holdfast.collapse import FALLEN_ERRORS, Curve, Fall, halved
from holdfast.diagnostics.codes import CODES
from holdfast.diagnostics.diagnose import diagnose
from holdfast.diagnostics.log import Log, reward_curve
from holdfast_research.pages.diagnosis_page import page
from holdfast_research.paths import DOCS, REPOSITORY
from holdfast_research.recordings.library import FOLDER, Recording, copies, load, read_manifest

RIGHT: dict[str, frozenset[str]] = {
    "displacement": frozenset({"LLD001", "LLD002", "LLD003", "LLD004", "ISD001", "ENT001"}),
    "step-too-large": frozenset({"STP001", "GRD001"}),
    "non-finite": frozenset({"GRD002"}),
    "entropy-exhausted": frozenset({"ENT002"}),
    "dead-retriever": frozenset({"RET001"}),
    "empty-retriever": frozenset({"RET002"}),
    "masked-leak": frozenset({"MSK001"}),
    "answer-avoidance": frozenset({"RWD002"}),
    "sampler-mismatch": frozenset({"SMP001"}),
    "inert-penalty": frozenset({"PEN001"}),
    "no-contrast": frozenset({"GRP001"}),
    "truncation": frozenset({"TRN001"}),
}
READINGS = "readings.jsonl"
PAGE = DOCS / "diagnose_numbers.md"
STOCK = "stock log"
SET = 3
"""Which held-out set a reading is of: the first two are spent, and are the tuning side now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the rules say about one log, and what is true of it. Lengths are in rollout batches."""

    name: str
    host: str
    cause: str
    copy: str
    """Empty for the run itself."""
    healthy: bool
    fell: bool
    fall_length: float | None
    """From the reward's peak to half of it."""
    steep: float | None
    """From where nine tenths of the peak were last left, to there."""
    lead: float | None
    """From the first finding to there; None without a finding before it."""
    possible: float | None
    """From the fault's beginning to there: no finding could have come earlier."""
    early: bool
    """A finding before the fault began."""
    alarm: bool
    """A finding that names nothing the run has."""
    findings: tuple[tuple[str, int], ...]
    """(code, step), by step; those before the fault began left out."""
    right: bool
    """The first of them is a code for the cause."""
    silent: tuple[str, ...]
    """Codes about which the log cannot tell, as the rules say themselves."""
    symptom_only: bool
    """Nothing but RWD001 before the reward had lost half of its peak."""


def judge(recording: Recording, log: Log, copy: str = "", codes: frozenset[str] | None = None) -> Case:
    """The rules' verdict on a log of a run; `codes` are right for its cause, else those of `RIGHT`."""
    diagnosis = diagnose(log)
    findings = [(f.code, int(f.step)) for f in diagnosis.findings]
    begins, every = recording.start * recording.every, recording.every
    known = frozenset[str]().union(*(RIGHT.get(cause, frozenset()) for cause in recording.also))
    later = [f for f in findings if recording.healthy or f[1] > begins]
    curve = None if recording.healthy else reward_curve(log)
    fall = None if curve is None else halved(curve)
    before = [f for f in later if fall is not None and f[1] < fall.step]
    right = (RIGHT.get(recording.cause, frozenset()) if codes is None else codes) | known
    return Case(
        name=recording.name,
        host=recording.host,
        cause=recording.cause,
        copy=copy,
        healthy=recording.healthy,
        fell=fall is not None,
        fall_length=None if fall is None else (fall.step - fall.peak_step) / every,
        steep=None if curve is None or fall is None else (fall.step - _last_high(curve, fall)) / every,
        lead=(fall.step - before[0][1]) / every if fall is not None and before else None,
        possible=None if fall is None else (fall.step - begins) / every,
        early=not recording.healthy and any(f not in later and f[0] not in known for f in findings),
        alarm=recording.healthy and any(code not in known for code, _ in findings),
        findings=tuple(later),
        right=bool(later) and later[0][0] in right,
        silent=tuple(c.code for c in diagnosis.cannot_tell),
        symptom_only=bool(before) and all(code == "RWD001" for code, _ in before),
    )


def _last_high(curve: Curve, fall: Fall) -> int:
    """The last step before the fall's end at which less than a tenth of the peak was lost."""
    high = curve.steps[~curve.short.has_lost(0.1, FALLEN_ERRORS) & (curve.steps < fall.step)]
    return int(high[-1]) if len(high) else fall.peak_step


def cases_of(recordings: Iterable[Recording], folder: Path = FOLDER) -> list[Case]:
    """Every run, its copies, and of TRL's runs the stock logs."""
    cases = []
    for recording in recordings:
        log = load(recording, folder)
        cases.append(judge(recording, log))
        cases += [judge(recording, copied, kind) for kind, copied in copies(log, recording.name).items()]
        if recording.host == "trl":
            cases.append(judge(recording, load(recording, folder, stock=True), STOCK))
    return cases


# ---- numbers


def wilson(hits: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """The interval of a share at 95 %.

    >>> [round(x, 3) for x in wilson(19, 20)]
    [0.764, 0.991]
    """
    if not of:
        return 0.0, 1.0
    share, square = hits / of, z * z
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = z * ((share * (1 - share) + square / (4 * of)) / of) ** 0.5 / (1 + square / of)
    return max(0.0, middle - half), min(1.0, middle + half)


def share(cases: Sequence[Case], true: Callable[[Case], bool]) -> str:
    """`19 of 20, 0.95 (0.76 to 0.99)`."""
    hits = sum(true(case) for case in cases)
    if not cases:
        return "none"
    low, high = wilson(hits, len(cases))
    return f"{hits} of {len(cases)}, {hits / len(cases):.2f} ({low:.2f} to {high:.2f})"


def numbers(cases: Sequence[Case]) -> dict[str, str]:
    """The headline of some cases."""
    fell = [c for c in cases if c.fell]
    healthy = [c for c in cases if c.healthy]
    faulty = [c for c in cases if not c.healthy]
    warned = [c for c in faulty if c.findings]
    leads, falls = [c.lead or 0.0 for c in fell], [c.fall_length or 0.0 for c in fell]
    shares = [(c.lead or 0.0) / max(c.possible or 1.0, 1.0) for c in fell]
    return {
        "collapses found before half of the peak was lost": share(fell, lambda c: c.lead is not None),
        "the same, by another code than RWD001": share(fell, lambda c: c.lead is not None and not c.symptom_only),
        "lead, median of all collapses (rollout batches)": f"{median(leads):g}" if fell else "none",
        "length of the fall, median (rollout batches)": f"{median(falls):g}" if fell else "none",
        "length of the fall from nine tenths of the peak, median": f"{median(c.steep or 0.0 for c in fell):g}"
        if fell
        else "none",
        "lead as a share of the longest possible, median": f"{median(shares):.2f}" if fell else "none",
        "lead at least as long as the fall": share(fell, lambda c: (c.lead or 0.0) >= (c.fall_length or 0.0)),
        "lead at least as long as the fall from nine tenths": share(
            fell, lambda c: (c.lead or 0.0) >= (c.steep or 0.0)
        ),
        "false alarms among healthy runs": share(healthy, lambda c: c.alarm),
        "findings before a fault began": share(faulty, lambda c: c.early),
        "right code first, of faulty runs with a finding": share(warned, lambda c: c.right),
        "right code first, where the log can tell": share([c for c in faulty if _can_tell(c)], lambda c: c.right),
        "right code first, of all faulty runs": share(faulty, lambda c: c.right),
    }


def by(cases: Sequence[Case], key: Callable[[Case], str]) -> str:
    """A row for every value of `key`."""
    lines = [
        "| | runs | fell | found before half | false alarms | right code first | first codes |",
        "|---|---|---|---|---|---|---|",
    ]
    for value in sorted({key(c) for c in cases}):
        group = [c for c in cases if key(c) == value]
        fell, healthy = [c for c in group if c.fell], [c for c in group if c.healthy]
        faulty = [c for c in group if not c.healthy]
        firsts = [c.findings[0][0] if c.findings else "nothing" for c in group]
        counted = ", ".join(f"{code} {firsts.count(code)}" for code in sorted(set(firsts)))
        timely = f"{sum(c.lead is not None for c in fell)} of {len(fell)}" if fell else ""
        alarms = f"{sum(c.alarm for c in healthy)} of {len(healthy)}" if healthy else ""
        right = f"{sum(c.right for c in faulty)} of {len(faulty)}" if faulty else ""
        lines.append(f"| {value} | {len(group)} | {len(fell)} | {timely} | {alarms} | {right} | {counted} |")
    return "\n".join(lines)


def _can_tell(case: Case) -> bool:
    """Whether the log has what it takes to see the cause, by the rules' own word."""
    return case.right or not RIGHT[case.cause] <= set(case.silent)


def telling(cases: Sequence[Case]) -> str:
    """For each code, the number of logs of each kind that can tell whether it applies."""
    kinds = {
        "local trainer": [c for c in cases if c.host == "holdfast" and not c.copy],
        "TRL, with the observer": [c for c in cases if c.host == "trl" and not c.copy],
        "TRL, stock log": [c for c in cases if c.copy == STOCK],
    }
    lines = [f"| code | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for code in sorted(CODES):
        counts = [f"{sum(code not in c.silent for c in logs)} of {len(logs)}" for logs in kinds.values()]
        lines.append(f"| {code} | {' | '.join(counts)} |")
    return "\n".join(lines)


def summary(cases: Sequence[Case]) -> str:
    """Markdown of one split."""
    runs, stock = [c for c in cases if not c.copy], [c for c in cases if c.copy == STOCK]
    observed = [c for c in runs if c.host == "trl"]
    copied = [c for c in cases if c.copy not in ("", STOCK)]
    columns = {"runs": runs, "copies": copied, "TRL, with the observer": observed, "TRL, stock logs": stock}
    tables = {name: numbers(some) for name, some in columns.items() if some}
    lines = [f"| | {' | '.join(tables)} |", "|---" * (len(tables) + 1) + "|"]
    lines += [f"| {row} | {' | '.join(t[row] for t in tables.values())} |" for row in next(iter(tables.values()))]
    sections = {
        "By cause": by(runs, lambda c: c.cause),
        "By host": by(runs, lambda c: c.host),
        "Copies": by(copied, lambda c: c.copy),
        "TRL's stock logs, by cause": by(stock, lambda c: c.cause) if stock else "",
        "Logs in which each question can be answered, or does not arise": telling(cases),
    }
    return "\n\n".join(["\n".join(lines), *(f"### {name}\n\n{text}" for name, text in sections.items() if text)])


def each(cases: Sequence[Case]) -> str:
    """A line for every run: what it is, how it went, what was found. `!!` where the rules did not do well."""
    return "\n".join(_line(case) for case in cases if not case.copy)


def _line(c: Case) -> str:
    well = not c.alarm if c.healthy else c.right and (not c.fell or c.lead is not None) and not c.early
    fell = f"fell in {c.fall_length:g}, lead {c.lead or 0:g}" if c.fell else ""
    findings = " ".join(f"{code}@{step}" for code, step in c.findings)
    return f"{'  ' if well else '!!'} {c.name:30} {c.cause:20} {fell:22} {'EARLY ' if c.early else ''}{findings}"


# ---- readings


def commit() -> str:
    """The last commit that changed the rules."""
    git = ["git", "log", "-1", "--format=%h", "--", "src/holdfast/diagnostics"]
    return subprocess.run(git, cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()


def readings() -> list[dict[str, Any]]:
    """What was written down, oldest first."""
    path = FOLDER / READINGS
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def write_down(split: str, cases: Sequence[Case], note: str) -> None:
    """Add this reading to the list: every one of held-out, the last one of the others."""
    row = {"split": split, "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}", "rules": commit(), "note": note, "set": SET}
    runs = [c for c in cases if not c.copy]
    row |= {"runs": len(runs), "numbers": numbers(runs), "text": summary(cases)}
    kept = [old for old in readings() if old["split"] == "held-out" or old["split"] != split]
    text = "".join(json.dumps(reading) + "\n" for reading in [*kept, row])
    (FOLDER / READINGS).write_text(text, encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("calibration", "tuning", "held-out"), default="calibration")
    parser.add_argument("--each", action="store_true", help="a line for every run")
    parser.add_argument("--only", help="runs whose name contains this, never of held-out; not written down")
    parser.add_argument("--note", default="", help="what changed since the last reading")
    parser.add_argument("--json", type=Path, help="write every case there")
    parser.add_argument("--page", action="store_true", help=f"only write {PAGE.name}")
    options = parser.parse_args()
    if not options.page:
        split = "calibration" if options.only and options.split == "held-out" else options.split
        chosen = [r for r in read_manifest() if r.split == split and (options.only or "") in r.name]
        cases = cases_of(chosen)
        print(each(cases) if options.each else summary(cases))
        if not options.only:
            write_down(split, cases, options.note)
        if options.json:
            options.json.write_text(json.dumps([asdict(c) for c in cases], indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(readings(), RIGHT), encoding="utf-8")


if __name__ == "__main__":
    main()
