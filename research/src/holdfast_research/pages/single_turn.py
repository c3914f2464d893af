"""How well the rules do on a set of runs: found, found in time, right cause first, healthy with a finding.

    python -m holdfast_research.pages.single_turn practice --each --json /tmp/practice.json
    python -m holdfast_research.pages.single_turn fourth       # held out: read once, after the rules are frozen
    python -m holdfast_research.pages.single_turn real-model --each

Every run is judged in several views. Of a run in TRL, `observed` is its log, and `stock` leaves out what the observer
adds. `every 4` and `every 10` are what `logging_steps` 4 and 10 would have written of the stock log of a run that
logged every step. Of a run of the local trainer, `whole` is its log, and `every 10` has one row in ten.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.base.run_folder import METRICS
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log
from holdfast.diagnose.readers import read_log
from holdfast_research.pages.diagnosis import Case, judge
from holdfast_research.readings import wilson
from holdfast_research.recordings.library import SETS, Recording, folder_of, read_manifest, unpack
from holdfast_research.recordings.outcomes import CAUSES, UNPLANNED

OBSERVED, STOCK, WHOLE = "observed", "stock", "whole"
ROW_IN = 10
"""Of the local trainer's rows, which are of one step each, `every 10` keeps the last of so many."""
THINNED = (4, 10)
"""Values of `logging_steps` that a log of every step is thinned to."""
_LAST = ("step", "epoch", "learning_rate", "grad_norm", "num_tokens")
"""What TRL logs of the last step of a row; the others are means over its steps."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the rules say about one view of a run."""

    name: str
    view: str
    cause: str
    healthy: bool
    can_tell: bool
    """Whether this view has what it takes to see the cause."""
    fell: bool
    has_finding: bool
    """A faulty run: a finding after the fault began. A healthy one: any finding."""
    in_time: bool
    """A finding before half of the reward was lost."""
    right: bool
    """The first of the findings names the cause."""
    early: bool
    """A faulty run: a finding before the fault began."""
    findings: tuple[tuple[str, int], ...]
    """(code, step), by step."""
    notes: tuple[tuple[str, int], ...]


def relogged(history: Sequence[Row], every: int) -> list[Row]:
    """The rows that `logging_steps = every` would have written, of those of every step."""
    groups: dict[int, list[Row]] = {}
    for row in history:
        if "loss" in row and row["step"] >= 1:
            groups.setdefault(math.ceil(row["step"] / every), []).append(row)
    return [_joined(rows) for rows in groups.values() if rows[-1]["step"] % every == 0]


def _joined(rows: Sequence[Row]) -> Row:
    """One row of several. Rows between rollout batches lack some series."""
    names = dict.fromkeys(name for row in rows for name in row)
    known = {name: [row[name] for row in rows if row.get(name) is not None] for name in names}
    return {
        name: (values[-1] if name in _LAST else _mean(values)) if values else None for name, values in known.items()
    }


def _mean(values: Sequence[float]) -> float | None:
    """TRL's: without NaN."""
    numbers = [value for value in values if not math.isnan(value)]
    return sum(numbers) / len(numbers) if numbers else None


def views(recording: Recording, folder: Path) -> dict[str, Log]:
    """The log of a run as different users would have it."""
    with tempfile.TemporaryDirectory() as temporary:
        if recording.host == "holdfast":
            run = unpack(recording, Path(temporary), folder)
            logs = {WHOLE: read_log(run)}
            rows = (run / METRICS).read_text(encoding="utf-8").splitlines(keepends=True)
            (run / METRICS).write_text("".join(rows[ROW_IN - 1 :: ROW_IN]), encoding="utf-8")
            return logs | {f"every {ROW_IN}": read_log(run)}
        logs = {OBSERVED: read_log(unpack(recording, Path(temporary), folder))}
        path = unpack(recording, Path(temporary), folder, stock=True)
        logs[STOCK] = read_log(path)
        state = json.loads(path.read_text(encoding="utf-8"))
        history = state["log_history"]
        for every in THINNED if recording.settings["logging_steps"] == 1 else ():
            path.write_text(json.dumps({**state, "log_history": relogged(history, every)}), encoding="utf-8")
            logs[f"every {every}"] = read_log(path)
    return logs


def can_tell(recording: Recording, name: str, log: Log) -> bool:
    """Whether a view has the series that show the cause, and a row of the time after the fault began."""
    if log.last_step <= recording.start * recording.every:
        return False  # the run ended before the next row was due
    if name == OBSERVED or recording.healthy or CAUSES[recording.cause].stock:
        return True
    return bool(recording.settings["engine"]) and recording.cause == "sampler-mismatch"


def view(recording: Recording, name: str, log: Log) -> View:
    """The rules' verdict on one view."""
    right = frozenset[str]().union(*(CAUSES[c].right for c in (recording.cause, *recording.also) if c in CAUSES))
    diagnosis = diagnose(log)
    case: Case = judge(recording, log, codes=right, diagnosis=diagnosis)
    return View(
        name=recording.name,
        view=name,
        cause=recording.cause,
        healthy=recording.healthy,
        can_tell=can_tell(recording, name, log),
        fell=recording.fall is not None,
        has_finding=bool(case.findings),
        in_time=recording.fall is not None and any(step < recording.fall[1] for _, step in case.findings),
        right=case.right,
        early=case.early,
        findings=case.findings,
        notes=tuple((note.code, int(note.certain)) for note in diagnosis.notes),
    )


def all_views(recordings: Iterable[Recording], folder: Path) -> list[View]:
    """Every view of every run; a run that fell though nothing was planned is left out."""
    return [
        view(recording, name, log)
        for recording in recordings
        if recording.cause != UNPLANNED
        for name, log in views(recording, folder).items()
    ]


# ---- numbers


@dataclass(frozen=True, slots=True)
class Share:
    """`hits` of `of`."""

    hits: int
    of: int

    def __str__(self) -> str:
        if not self.of:
            return "none"
        low, high = wilson(self.hits, self.of)
        return f"{self.hits} of {self.of}, {self.hits / self.of:.2f} ({low:.2f} to {high:.2f})"


def _share(some: Sequence[View], true: Callable[[View], bool]) -> Share:
    return Share(sum(true(v) for v in some), len(some))


def numbers(some: Sequence[View]) -> dict[str, Share]:
    """The headline of the views of one kind."""
    faulty = [v for v in some if not v.healthy]
    return {
        "found by the end": _share(faulty, lambda v: v.has_finding),
        "found before half of the reward was lost": _share([v for v in faulty if v.fell], lambda v: v.in_time),
        "right cause first": _share(faulty, lambda v: v.right),
        "right cause first, where the log can tell": _share([v for v in faulty if v.can_tell], lambda v: v.right),
        "a finding before the fault began": _share(faulty, lambda v: v.early),
        "healthy with a finding": _share([v for v in some if v.healthy], lambda v: v.has_finding),
    }


def by_view(all_of_them: Sequence[View]) -> dict[str, list[View]]:
    """View -> its verdicts, in the order in which the views are made."""
    return {name: [v for v in all_of_them if v.view == name] for name in dict.fromkeys(v.view for v in all_of_them)}


def table(all_of_them: Sequence[View]) -> str:
    """Markdown: the headline of every view, then a row for every cause."""
    groups = by_view(all_of_them)
    headlines = {name: numbers(some) for name, some in groups.items()}
    lines = [f"| | {' | '.join(groups)} |", "|---" * (len(groups) + 1) + "|"]
    for row in next(iter(headlines.values())):
        lines.append(f"| {row} | {' | '.join(str(headline[row]) for headline in headlines.values())} |")
    lines += ["", f"| cause | {' | '.join(f'{name}: runs, found, right, first codes' for name in groups)} |"]
    lines.append("|---" * (len(groups) + 1) + "|")
    for cause in sorted({v.cause for v in all_of_them}):
        cells = [_cell([v for v in some if v.cause == cause]) for some in groups.values()]
        lines.append(f"| {cause} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(some: Sequence[View]) -> str:
    firsts = [v.findings[0][0] if v.findings else "nothing" for v in some]
    counted = ", ".join(f"{code} {firsts.count(code)}" for code in sorted(set(firsts)))
    right = "" if all(v.healthy for v in some) else str(sum(v.right for v in some))
    return f"{len(some)}, {sum(v.has_finding for v in some)}, {right}, {counted}" if some else ""


def each(all_of_them: Sequence[View]) -> str:
    """A line for every view. `!!` where the rules did not do well."""
    return "\n".join(_line(v) for v in all_of_them)


def _line(v: View) -> str:
    well = not v.has_finding if v.healthy else v.right and not v.early
    marks = {"fell": v.fell, "in time": v.in_time, "EARLY": v.early, "cannot tell": not v.can_tell}
    marked = ", ".join(mark for mark, true in marks.items() if true)
    return f"{'  ' if well else '!!'} {v.name:24} {v.view:8} {v.cause:22} {marked:22} {said(v.findings, v.notes)}"


def said(findings: Iterable[Sequence[Any]], notes: Iterable[Sequence[Any]]) -> str:
    """`RWD001@12; notes: ZER001@1`."""
    found, noted = (" ".join(f"{code}@{step}" for code, step in some) for some in (findings, notes))
    return (found or "no finding") + (f"; notes: {noted}" if noted else "")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--each", action="store_true", help="a line for every view of every run")
    parser.add_argument("--only", default="", help="runs whose name contains this; not for the held-out set")
    parser.add_argument("--json", type=Path, help="write numbers and every verdict there")
    options = parser.parse_args()
    if options.only and options.set != "practice":
        parser.error("--only: a held-out set is read whole, and once")
    folder = folder_of(options.set)
    verdicts = all_views([r for r in read_manifest(folder) if options.only in r.name], folder)
    print(each(verdicts) if options.each else table(verdicts))
    if options.json:
        headline = {
            name: {row: asdict(s) for row, s in numbers(some).items()} for name, some in by_view(verdicts).items()
        }
        text = json.dumps({"numbers": headline, "views": [asdict(v) for v in verdicts]}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
