"""What `holdfast diagnose` says about logs of public runs, beside what their authors measured.

    python -m holdfast_research.public_logs DIR                # a line for each log, and the counts
    python -m holdfast_research.public_logs DIR --keep NAME    # and a reading for the page: numbers and outcomes only

DIR has an `NN.txt` for each run, as its trainer wrote it, and beside it `NN.meta` with lines of `name: value`. The
`outcome` holds one word in capitals: HEALTHY, COLLAPSED, DEGRADED or UNSTABLE. Pasted rows of issue threads have no
such word but `expected`: where it begins with "no finding", nothing was wrong. Other threads are counted by whether
anything is said. The logs are others' data: they are read where they lie, and nothing of them is kept.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from holdfast.base.errors import HoldfastError
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.readers import read_logs
from holdfast_research import readings

Truth = Literal["healthy", "bad", "asked, healthy", "asked"]
"""Of whole logs by their outcome; "asked" of pasted rows, whose author asked what is wrong."""

BAD = ("COLLAPSED", "DEGRADED", "UNSTABLE")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicLog:
    """One log of a folder."""

    number: str
    path: Path
    truth: Truth
    outcome: str
    """The word in capitals; empty of pasted rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was said about one log."""

    number: str
    truth: Truth
    outcome: str
    rows: int
    """0 if it could not be read."""
    findings: tuple[str, ...] = ()
    """`CODE@step`, in the order of the report."""
    notes: tuple[str, ...] = ()
    problem: str = ""
    """Why it could not be read."""
    empty: bool = False
    """The file has no text at all: not counted."""


def logs_of(folder: Path) -> list[PublicLog]:
    """Every log with a `.meta` beside it, by number. Raises `HoldfastError` without any."""
    logs = [_log(meta) for meta in sorted(folder.glob("*.meta")) if meta.with_suffix(".txt").is_file()]
    if not logs:
        raise HoldfastError(f"{folder} holds no pair of NN.txt and NN.meta", hint="see the help of this command")
    return logs


def _log(meta: Path) -> PublicLog:
    lines = dict(re.findall(r"^(\w+): *(.*)$", meta.read_text(encoding="utf-8"), re.MULTILINE))
    word = re.search(rf"\b(HEALTHY|{'|'.join(BAD)})\b", lines.get("outcome", ""))
    outcome = word[1] if word else ""
    asked: Truth = "asked, healthy" if lines.get("expected", "").startswith("no finding") else "asked"
    truth: Truth = asked if not outcome else "bad" if outcome in BAD else "healthy"
    return PublicLog(number=meta.stem, path=meta.with_suffix(".txt"), truth=truth, outcome=outcome)


def judged(log: PublicLog) -> Reading:
    """The findings and notes of all runs in the file."""
    reading = Reading(number=log.number, truth=log.truth, outcome=log.outcome, rows=0)
    try:
        runs = read_logs(log.path)
    except HoldfastError as error:
        problem = str(error).split(". ")[0].replace(str(log.path), log.path.name)
        return replace(reading, problem=problem, empty=not log.path.read_text(errors="replace").strip())
    diagnoses = [diagnose(run) for run in runs]
    return replace(
        reading,
        rows=sum(len(run.steps) for run in runs),
        findings=tuple(f"{f.code}@{f.step}" for d in diagnoses for f in d.findings),
        notes=tuple(f"{f.code}@{f.step}" for d in diagnoses for f in d.notes),
    )


def counts(logs: Sequence[Reading]) -> dict[str, str]:
    """The numbers of the page."""
    full = [r for r in logs if not r.empty]
    of = {truth: [r for r in full if r.truth == truth] for truth in ("healthy", "bad", "asked, healthy", "asked")}

    def with_finding(some: Sequence[Reading]) -> str:
        return readings.share(sum(bool(r.findings) for r in some), len(some))

    def spoken(some: Sequence[Reading]) -> str:
        return readings.share(sum(bool(r.findings or r.notes) for r in some), len(some))

    return {
        "logs read as they are": f"{sum(r.rows > 0 for r in full)} of {len(full)}",
        "empty files": str(len(logs) - len(full)),
        "bad runs with a finding": with_finding(of["bad"]),
        "healthy runs with a finding": with_finding(of["healthy"]),
        "healthy runs with a note": readings.share(sum(bool(r.notes) for r in of["healthy"]), len(of["healthy"])),
        "pasted rows of healthy runs with a finding": with_finding(of["asked, healthy"]),
        "pasted rows of healthy runs with a finding or a note": spoken(of["asked, healthy"]),
        "other pasted rows with a finding or a note": spoken(of["asked"]),
    }


def line(reading: Reading) -> str:
    """One log in one line; `!!` where the rules or the reader did not do well."""
    well = bool(reading.rows) and (bool(reading.findings) == (reading.truth == "bad") or reading.truth == "asked")
    findings = " ".join(reading.findings) or "no finding"
    notes = f"; notes: {' '.join(reading.notes)}" if reading.notes else ""
    shown = reading.outcome or reading.truth
    text = findings + notes if reading.rows else reading.problem
    return f"{'  ' if well else '!!'} {reading.number:4} {shown:15} {reading.rows:6} rows  {text}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--keep", metavar="NAME", help="write research/data/readings/NAME.json")
    options = parser.parse_args()
    read = [judged(log) for log in logs_of(options.folder)]
    print("\n".join(line(reading) for reading in read), end="\n\n")
    for name, value in counts(read).items():
        print(f"{name:55} {value}")
    if options.keep:
        logs = [{k: v for k, v in asdict(reading).items() if k != "problem"} for reading in read]
        command = "python -m holdfast_research.public_logs DIR"
        print(readings.keep(options.keep, command, {"counts": counts(read), "logs": logs}))


if __name__ == "__main__":
    main()
