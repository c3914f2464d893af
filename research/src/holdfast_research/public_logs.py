"""What `holdfast diagnose` says about logs of public runs, beside what their authors measured.

    python -m holdfast_research.public_logs DIR                # a line for each log, and the counts
    python -m holdfast_research.public_logs DIR --keep         # and a reading for the page: numbers and outcomes only

DIR has an `NN.txt` for each run, as its trainer wrote it, and beside it `NN.meta` with lines of `name: value`. The
`outcome` holds one word in capitals: HEALTHY, COLLAPSED, DEGRADED or UNSTABLE. Pasted rows of issue threads have no
such word but `expected`: where it begins with "no finding", nothing was wrong. Other threads are counted by whether
anything is said.

Or DIR has a `LABELS.txt`, and an `NN.*` for each of its lines `NN | bad=0 kind=flat accept-first=[CODES] … | …`. The
codes are right as the first finding, also of a run that is not bad. Any other finding of such a run is false. Of kind
`learned` are runs whose exit code should be 0. Where only a person knows which series is the reward,
`--name NN:reward=SERIES` says so.

The logs are others' data: they are read where they lie, and nothing of them is kept.
"""

from __future__ import annotations

import argparse
import gzip
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from holdfast.base.errors import HoldfastError
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log, reward_curve
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
    """The word in capitals, or the kind of a labelled log; empty of pasted rows."""
    right: frozenset[str] = frozenset()
    """Codes that are right as the first finding, where they are labelled."""
    names: Mapping[str, str] = field(default_factory=dict)
    """As `--name`: "reward" -> a series of the log."""


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
    has_reward: bool = False
    labelled: bool = False
    """Whether codes are labelled as right."""
    right: bool = False
    """Whether the first finding is one of them."""
    ok: bool = True
    """Whether the exit code is 0."""
    empty: bool = False
    """The file has no text at all: not counted."""


@contextmanager
def logs_of(folder: Path, names: Mapping[str, Mapping[str, str]] | None = None) -> Iterator[list[PublicLog]]:
    """Every log that is labelled, by number; what has to be unpacked lies in a temporary folder meanwhile.

    `names` are those of a log by number. Raises `HoldfastError` without any log.
    """
    with tempfile.TemporaryDirectory() as unpacked:
        if (labels := folder / "LABELS.txt").is_file():
            lines = labels.read_text(encoding="utf-8").splitlines()
            logs = [_labelled(line, folder, Path(unpacked)) for line in lines if re.match(r"\d+ \|", line)]
        else:
            logs = [_log(meta) for meta in sorted(folder.glob("*.meta")) if meta.with_suffix(".txt").is_file()]
        if not logs:
            raise HoldfastError(f"{folder} holds no pair of NN.txt and NN.meta", hint="see the help of this command")
        yield [replace(log, names=(names or {}).get(log.number, {})) for log in logs]


def _labelled(line: str, folder: Path, unpacked: Path) -> PublicLog:
    number, label, _ = (part.strip() for part in line.split("|", 2))
    path = next(folder.glob(f"{number}.*"))
    if path.name.endswith(".wandb.gz"):
        (unpacked / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        path = unpacked / path.stem
    if path.name.endswith(".tar.gz"):
        shutil.unpack_archive(path, unpacked / number, filter="data")
        path = unpacked / number
    found = re.fullmatch(r"bad=([01]) kind=(\w+) accept-first=\[(.*?)\].*", label)
    if found is None:
        raise HoldfastError(f"the label of log {number} is not bad=0|1 kind=WORD accept-first=[CODES]: {label}")
    right = frozenset(found[3].replace(",", " ").split())
    truth: Truth = "bad" if found[1] == "1" else "healthy"
    return PublicLog(number=number, path=path, truth=truth, outcome=found[2], right=right)


def _log(meta: Path) -> PublicLog:
    lines = dict(re.findall(r"^(\w+): *(.*)$", meta.read_text(encoding="utf-8"), re.MULTILINE))
    word = re.search(rf"\b(HEALTHY|{'|'.join(BAD)})\b", lines.get("outcome", ""))
    outcome = word[1] if word else ""
    asked: Truth = "asked, healthy" if lines.get("expected", "").startswith("no finding") else "asked"
    truth: Truth = asked if not outcome else "bad" if outcome in BAD else "healthy"
    return PublicLog(number=meta.stem, path=meta.with_suffix(".txt"), truth=truth, outcome=outcome)


def read(log: PublicLog) -> tuple[Log, ...]:
    """All runs in the file."""
    return read_logs(log.path, log.names)


def judged(log: PublicLog) -> Reading:
    """The findings and notes of all runs in the file."""
    reading = Reading(number=log.number, truth=log.truth, outcome=log.outcome, rows=0)
    try:
        runs = read(log)
    except HoldfastError as error:
        problem = str(error).split(". ")[0].replace(str(log.path), log.path.name)
        return replace(reading, problem=problem, empty=not log.path.read_text(errors="replace").strip())
    diagnoses = [diagnose(run) for run in runs]
    first = next((f.code for d in diagnoses for f in d.findings), "")
    return replace(
        reading,
        rows=sum(len(run.steps) for run in runs),
        findings=tuple(f"{f.code}@{f.step}" for d in diagnoses for f in d.findings),
        notes=tuple(f"{f.code}@{f.step}" for d in diagnoses for f in d.notes),
        has_reward=any(reward_curve(run) is not None for run in runs),
        labelled=bool(log.right),
        right=first in log.right,
        ok=all(d.is_ok for d in diagnoses),
    )


def counts(logs: Sequence[Reading]) -> dict[str, str]:
    """The numbers of the page, of whole logs; and what is said of pasted rows, where there are any."""
    full = [reading for reading in logs if not reading.empty]
    bad, others = ([r for r in full if r.truth == truth] for truth in ("bad", "healthy"))
    learned = [reading for reading in others if reading.outcome == "learned"]
    asked = [reading for reading in full if reading.truth.startswith("asked")]

    def share(some: Sequence[Reading], is_so: Callable[[Reading], bool]) -> str:
        return readings.share(sum(map(is_so, some)), len(some))

    numbers = {
        READ: f"{sum(r.has_reward for r in (*bad, *others))} of {len(bad) + len(others)}",
        FOUND: share(bad, lambda r: bool(r.findings)),
        FIRST: share([r for r in bad if r.labelled], lambda r: r.right),
        FALSE: share(others, lambda r: bool(r.findings) and not r.right),
        EXIT: share(learned, lambda r: not r.ok),
        "other runs with a note": share(others, lambda r: bool(r.notes)),
    }
    sound = [reading for reading in asked if reading.truth == "asked, healthy"]
    pasted = {
        "pasted rows of sound runs with a finding": share(sound, lambda r: bool(r.findings)),
        "pasted rows with a finding or a note": share(asked, lambda r: bool(r.findings or r.notes)),
    }
    return numbers | (pasted if asked else {})


STRANGERS = "strangers"
"""What the page calls a collection with labels, after its number of logs."""
READ, FOUND, FIRST, FALSE, EXIT = (
    "logs with a reward read",
    "bad runs with a finding",
    "bad runs with the right finding first",
    "other runs with a false finding",
    "runs that learned, with exit code 1",
)


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
    parser.add_argument(
        "--keep",
        action="store_true",
        help="write research/data/readings/public_logs.json, or strangers_N.json of N labels",
    )
    parser.add_argument("--name", action="append", default=[], metavar="NN:reward=SERIES", help="of one log")
    options = parser.parse_args()
    names: dict[str, dict[str, str]] = {}
    for given in options.name:
        number, ours, theirs = re.split("[:=]", given, maxsplit=2)
        names.setdefault(number, {})[ours] = theirs
    with logs_of(options.folder, names) as found:
        said = [judged(log) for log in found]
    numbers = counts(said)
    print("\n".join(line(reading) for reading in said), end="\n\n")
    for name, value in numbers.items():
        print(f"{name:55} {value}")
    if options.keep:
        logs = [{k: v for k, v in asdict(reading).items() if k != "problem"} for reading in said]
        command = " ".join(
            ["python -m holdfast_research.public_logs DIR", *(f"--name {name}" for name in options.name)]
        )
        name = f"{STRANGERS}_{len(logs)}" if (options.folder / "LABELS.txt").is_file() else "public_logs"
        print(readings.keep(name, command, {"counts": numbers, "logs": logs}))


if __name__ == "__main__":
    main()
