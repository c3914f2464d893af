"""holdfast beside other tools that judge such logs, on the same logs, each with its own defaults.

    python -m holdfast_research.head_to_head --tools DIR --public DIR --keep head_to_head

`--tools` is a folder with an environment for each tool, by its short name: DIR/rldoctor/bin/python. A tool that is not
there is left out, and the command says how to install it. The logs are the stock logs of TRL in the library of
recordings and of other sets of recordings, runs of a real model by TRL's names, a folder of public logs
(`public_logs`), and healthy runs of the null model.

Each tool is fed twice. `logged`: rows by the trainer's names, as the tool takes them from TRL (its callback, or the
state that the trainer saves). `mapped`: every series that measures the same thing under the name that the tool's rules
look for (`NAMES`), which is more than its documentation asks of a user. An alarm anywhere in a faulty run counts as
found, whenever it comes. `SAYS` has the causes that each kind of alarm names, read generously. The cause is first if an
alarm that the tool shows or sends first names it, of any severity.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from holdfast.base.errors import HoldfastError
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.readers import read_log
from holdfast.diagnose.readers.find import find_logs
from holdfast.diagnose.readers.text import Tally
from holdfast.hosts.trl import SERIES as TRL
from holdfast_research import null_model, other_tools, public_logs, readings
from holdfast_research.other_tools import COMMITS, DRIVERS, INSTALL, NAMES, OURS, RLDK, SAYS, SEVERE, SHORT
from holdfast_research.pages.diagnosis import RIGHT
from holdfast_research.recordings.library import FOLDER, REAL_MODEL, SETS, folder_of, load, read_manifest, unpack
from holdfast_research.recordings.outcomes import CAUSES, UNPLANNED

Row = dict[str, float]

FEEDS = {"logged": "as the trainer logs", "mapped": "names mapped by hand"}

NULL_CELLS = ((100, 8), (100, 64), (300, 8), (300, 64))
"""(rows, completions a row) of the null model's runs."""
IN_TRL = {name.host: name.ours for name in TRL if name.change == "x"} | {
    "reward_std": "reward/group_std",
    "frac_reward_zero_std": "frac_reward_zero_std",
}
"""TRL's name -> ours: a drawn log as TRL would write it."""

Alarm = tuple[str, str, int]
"""Its kind, its severity in the tool's words, and its place in the order in which the tool shows or sends alarms."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one tool said of every case, by name."""

    alarms: Mapping[str, Sequence[Alarm]]
    seconds: Mapping[str, float]
    """Of processor time, with what the tool reads and writes, without starting Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A log, and what is true of it."""

    name: str
    of: str
    """The set it belongs to."""
    healthy: bool
    cause: str
    """Empty where it is not known."""
    right: frozenset[str]
    """Our codes that name the cause."""
    log: Log
    rows: tuple[Row, ...]
    """By the trainer's names, with `step`."""
    path: Path | None = None
    """The file it was read from, unless that is a state that TRL saved."""


# ---- cases


def recorded(folder: Path, of: str) -> list[Case]:
    """The stock logs of TRL in a library of recordings; a run that fell by itself is neither healthy nor faulty."""
    cases = []
    for recording in read_manifest(folder):
        if recording.host != "trl" or recording.cause == UNPLANNED:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            state = json.loads(unpack(recording, Path(temporary), folder, stock=True).read_text(encoding="utf-8"))
        cases.append(
            Case(
                name=f"{of}/{recording.name}",
                of=of,
                healthy=recording.healthy,
                cause="" if recording.healthy else recording.cause,
                right=right_codes(recording.cause),
                log=load(recording, folder, stock=True),
                rows=tuple(_numbers(row) for row in state["log_history"]),
            )
        )
    return cases


def right_codes(cause: str) -> frozenset[str]:
    """Our codes that name a cause; none for a healthy run."""
    return CAUSES[cause].right if cause in CAUSES else RIGHT.get(cause, frozenset())


def of_a_real_model(of: str) -> list[Case]:
    """Runs of the local trainer with a real model, as TRL would have logged them."""
    folder = folder_of(of)
    logs = [(recording, load(recording, folder)) for recording in read_manifest(folder)]
    truth: dict[str, Any] = {"of": of, "cause": "", "right": frozenset()}
    return [
        Case(name=f"{of}/{recording.name}", healthy=recording.healthy, log=log, rows=mapped(log, IN_TRL), **truth)
        for recording, log in logs
    ]


def drawn(runs: int) -> list[Case]:
    """Healthy runs of the null model, so many of each of `NULL_CELLS`."""
    cases = []
    for rows, completions in NULL_CELLS:
        for seed in range(runs):
            log = null_model.log_of(null_model.drawn(rows, completions, seed))
            names = IN_TRL | {name: name for name in log.series if name.startswith("rewards/")}
            truth: dict[str, Any] = {"healthy": True, "cause": "", "right": frozenset()}
            cases.append(Case(name=log.name, of="null model", log=log, rows=mapped(log, names), **truth))
    return cases


def public(folder: Path) -> list[Case]:
    """The public logs whose outcome was measured or labelled, and that can be read."""
    with public_logs.logs_of(folder) as logs:
        of = f"{len(logs)} {public_logs.STRANGERS}" if (folder / "LABELS.txt").is_file() else "public"
        return [case for log in logs if (case := _public(log, of, folder)) is not None]


def _public(log: public_logs.PublicLog, of: str, folder: Path) -> Case | None:
    if log.truth not in ("healthy", "bad"):
        return None
    try:
        read = read_log(log.path)
    except HoldfastError as problem:
        print(f"left out: {str(problem).split('. ')[0]}", file=sys.stderr)
        return None
    truth: dict[str, Any] = {"healthy": log.truth == "healthy", "cause": "", "right": frozenset()}
    rows, path = raw_rows(log.path), log.path if log.path.parent == folder else None  # unpacked for now
    return Case(name=f"{of}/{log.number}", of=of, log=read, rows=rows, path=path, **truth)


def raw_rows(path: Path) -> tuple[Row, ...]:
    """The rows of a log by the names of its trainer."""
    (file,) = find_logs(path)
    run = next(run for run in file.reader.read(file, Tally(path)) if run.columns)
    steps = run.columns.steps()
    rows: list[Row] = [{"step": int(step)} for step in steps]
    for name, (numbers, values) in run.columns.arrays().items():
        for number, value in zip(numbers, values, strict=True):
            rows[number][name] = float(value)
    return tuple(row for row in rows if len(row) > 1)


def _numbers(row: Mapping[str, Any]) -> Row:
    return {name: value for name, value in row.items() if isinstance(value, int | float)}


def mapped(log: Log, names: Mapping[str, str]) -> tuple[Row, ...]:
    """The rows of a log with our series under the names of a tool."""
    rows: dict[int, Row] = {int(step): {"step": int(step)} for step in log.steps}
    known = _by_any_name(log)
    for theirs, ours in names.items():
        series = known.get(ours)
        if series is not None:
            for step, value in zip(series.steps, series.values, strict=True):
                rows[int(step)][theirs] = float(value)
    return tuple(row for row in rows.values() if len(row) > 1)


def _by_any_name(log: Log) -> Mapping[str, Series]:
    """The series of a log, with those that it has under another name or as the complement."""
    known = dict(log.series)
    if "reward/std" in known:
        known.setdefault("reward/group_std", known["reward/std"])
    mixed = known.get("rollout/mixed_group_fraction")
    if mixed is not None:
        known.setdefault("frac_reward_zero_std", Series(mixed.steps, 1 - mixed.values))
    return known


# ---- alarms


def of_tool(tool: str, python: Path, cases: Sequence[Case]) -> dict[str, Any]:
    """What its driver answers. Raises `HoldfastError` if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "cases.jsonl", Path(folder) / "alarms.json"
        lines = [{"name": c.name, "logged": c.rows, "mapped": mapped(c.log, NAMES[tool])} for c in cases]
        given.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        script = Path(other_tools.__file__).parent / DRIVERS[tool]
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run([python, script, given, answer], cwd=folder, env=alone, capture_output=True, text=True)
        if done.returncode:
            raise HoldfastError(f"{tool} failed under {python}: {done.stderr[-500:]}", hint=INSTALL[tool])
        return dict(json.loads(answer.read_text(encoding="utf-8")))


def of_ours(cases: Iterable[Case]) -> Said:
    """Our findings and then notes: (code, level, place)."""
    alarms, seconds = {}, {}
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            begun = time.process_time()
            read_log(case.path or _state(case, Path(folder)))
            diagnosis = diagnose(case.log)  # which has all that was recorded, also of drawn runs
            seconds[case.name] = time.process_time() - begun
        alarms[case.name] = [(f.code, str(f.level), k) for k, f in enumerate((*diagnosis.findings, *diagnosis.notes))]
    return Said(alarms, seconds)


def _state(case: Case, folder: Path) -> Path:
    """The rows, in the file that TRL saves."""
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({"log_history": case.rows}), encoding="utf-8")
    return path


def counted(tool: str, cases: Sequence[Case], said: Said) -> dict[str, str]:
    """The numbers of one tool on one set."""

    def names(case: Case, kind: str) -> bool:
        return kind in case.right if tool == OURS else case.cause in SAYS[tool].get(kind, frozenset())

    def having(some: Sequence[Case], true: Callable[[Case, Alarm], bool]) -> str:
        return readings.share(sum(any(true(case, a) for a in said.alarms[case.name]) for case in some), len(some))

    def serious(case: Case, alarm: Alarm) -> bool:
        return alarm[1] in SEVERE[tool]

    def first(case: Case, alarm: Alarm) -> bool:
        return names(case, alarm[0]) and alarm[2] == min(place for _, _, place in said.alarms[case.name])

    healthy, faulty = [c for c in cases if c.healthy], [c for c in cases if not c.healthy]
    known = [c for c in faulty if c.cause]
    return {
        "found, serious": having(faulty, serious),
        "healthy, serious": having(healthy, serious),
        "found, any": having(faulty, lambda _, alarm: True),
        "healthy, any": having(healthy, lambda _, alarm: True),
        "cause first": having(known, first),
        "cause anywhere": having(known, lambda case, alarm: names(case, alarm[0])),
        "ms a log": f"{1000 * median(said.seconds[case.name] for case in cases):.3g}",
    }


def compared(cases: Sequence[Case], pythons: Mapping[str, Path]) -> dict[str, Any]:
    """Set -> tool -> numbers; the versions of the tools; and for each kind of alarm how many runs have it."""
    with ThreadPoolExecutor() as pool:
        running = {tool: pool.submit(of_tool, tool, python, cases) for tool, python in pythons.items()}
        answers = {tool: future.result() for tool, future in running.items()}
    said = {OURS: of_ours(cases)}
    for tool, answer in answers.items():
        for feed, how in FEEDS.items():
            alarms, seconds = (
                {name: by_feed[feed] for name, by_feed in answer[part].items()} for part in ("alarms", "seconds")
            )
            said[f"{tool}, {how}"] = Said(alarms, seconds)
    sets = {of: [c for c in cases if c.of == of] for of in dict.fromkeys(c.of for c in cases)}
    return {
        "versions": {
            tool: f"{answer['version']}, commit {COMMITS[tool]}" if tool in COMMITS else answer["version"]
            for tool, answer in answers.items()
        },
        "printed rows that rldk reads": {
            of: f"{sum(answers[RLDK]['printed'][c.name] > 0 for c in some)} of {len(some)} logs"
            for of, some in sets.items()
            if RLDK in answers
        },
        "sets": {
            of: {who: counted(who.split(",")[0], some, s) for who, s in said.items()} for of, some in sets.items()
        },
        "kinds": {who: _kinds(cases, s.alarms) for who, s in said.items()},
    }


def _kinds(cases: Sequence[Case], alarms: Mapping[str, Sequence[Alarm]]) -> dict[str, dict[str, int]]:
    """For each kind of alarm the healthy and the faulty runs that have it."""
    result: dict[str, dict[str, int]] = {}
    for case in cases:
        for kind in {kind for kind, _, _ in alarms[case.name]}:
            row = result.setdefault(kind, {"healthy": 0, "faulty": 0})
            row["healthy" if case.healthy else "faulty"] += 1
    return dict(sorted(result.items()))


def table(result: Mapping[str, Any]) -> str:
    """Markdown: for each set a row for each tool."""
    parts = []
    for of, tools in result["sets"].items():
        columns = list(next(iter(tools.values())))
        parts.append(f"**{of}**\n\n| | {' | '.join(columns)} |\n" + "|---" * (len(columns) + 1) + "|")
        parts[-1] += "".join(f"\n| {who} | {' | '.join(numbers.values())} |" for who, numbers in tools.items())
    return "\n\n".join(parts)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=Path, metavar="DIR", help="a folder with an environment for each tool")
    parser.add_argument(
        "--public", type=Path, nargs="*", default=[], metavar="DIR", help="folders of logs, as public_logs takes them"
    )
    parser.add_argument("--sets", choices=("own", *SETS), nargs="*", default=["own", *SETS], help="recordings")
    parser.add_argument("--null", type=int, default=40, metavar="N", help="so many drawn healthy runs of each kind")
    parser.add_argument("--keep", metavar="NAME", help="write research/data/readings/NAME.json")
    options = parser.parse_args()
    pythons = {}
    for tool, short in SHORT.items() if options.tools else ():
        python = options.tools.absolute() / short / "bin" / "python"
        if python.exists():
            pythons[tool] = python
    for tool in sorted(SHORT.keys() - pythons):
        print(f"{tool} is left out. To have it: {INSTALL[tool]}", file=sys.stderr)
    cases = []
    for name in options.sets:
        folder = FOLDER if name == "own" else folder_of(name)
        cases += of_a_real_model(name) if name == REAL_MODEL else recorded(folder, name)
    cases += drawn(options.null)
    for folder in options.public:
        cases += public(folder)
    result = compared(cases, pythons)
    print(table(result))
    if options.keep:
        command = " ".join(["python -m holdfast_research.head_to_head --tools DIR --sets", *options.sets])
        command += f" --null {options.null}{' --public' * bool(options.public)}{' DIR' * len(options.public)}"
        print(readings.keep(options.keep, command, result))


if __name__ == "__main__":
    main()
