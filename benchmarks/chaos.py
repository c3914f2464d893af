"""Attack holdfast: stop, damage, starve and feed garbage, and compare what is left with a run that nothing happened to.

    make chaos                                       # everything, 15 minutes at most
    make chaos ARGS="--only stops --seed 7"          # one group, other random moments
    make chaos ARGS="--only 'killed 3' --keep out"   # one case, whose folders stay

Groups:
    stops     SIGKILL at 20 random moments, SIGTERM and SIGINT; each run is resumed until it is done
    damage    flipped, cut, emptied and missing files of a run, and of a cached warm start
    disks     no room for a file, a full disk, a folder that is read-only
    pairs     two processes that want one run folder
    searches  a retriever that misbehaves, under searches and under a training run; a server under malformed requests
    inputs    broken logs, recipes, questions and passages

A case holds when no byte differs (times left out), nothing is a traceback, no row or answer is lost, and every command
ends as it should: finished, or refused in a sentence. A case that was not reached is never counted as held. Exit code
1 if any case did not hold. Needs Linux or macOS.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import chaos_inputs
import chaos_runs
from chaos_kit import COUNTS, Bench, Case, Outcome, OutOfTime
from chaos_runs import Runs
from measuring import table, write_json

GROUPS: dict[str, Callable[[Bench, Runs], list[Case]]] = {
    "stops": chaos_runs.stops,
    "damage": chaos_runs.damage,
    "disks": chaos_runs.disks,
    "pairs": chaos_runs.pairs,
    "searches": chaos_inputs.searches,
    "inputs": chaos_inputs.inputs,
}
HEADER = ("group", "cases", "differing bytes", "tracebacks", "lost", "wrong ends", "not reached", "seconds")


def chosen(bench: Bench, only: Sequence[str]) -> dict[str, list[Case]]:
    """The cases by group; with `only`, those of these groups, and these cases."""
    runs = Runs(bench)
    cases = {group: make(bench, runs) for group, make in GROUPS.items()}
    names = [*cases, *(name for of in cases.values() for name, _ in of)]
    if unknown := [name for name in only if name not in names]:
        raise SystemExit(f"--only {unknown[0]}: there is no such group or case; give one of: {', '.join(names)}")
    if not only:
        return cases
    found = {group: of if group in only else [case for case in of if case[0] in only] for group, of in cases.items()}
    return {group: of for group, of in found.items() if of}


def attack(bench: Bench, case: Case) -> Outcome | None:
    """What comes of a case; None if time was up before its end."""
    try:
        if bench.left() <= 0:
            return None
        with bench.nothing_left_running():
            return case[1]()
    except OutOfTime:
        return None
    except Exception:
        return Outcome(wrong=1, said=f"the case itself failed: {traceback.format_exc()}")


Outcomes = dict[str, dict[str, tuple[Outcome | None, float]]]
"""Outcome and seconds of every case, by group."""


def campaign(bench: Bench, cases: dict[str, list[Case]], at_once: int = 1) -> Outcomes:
    """Do every case, so many at a time. Prints a line for each."""
    total, done = sum(map(len, cases.values())), itertools.count(1)
    outcomes: Outcomes = {group: {} for group in cases}

    def do(group: str, case: Case) -> None:
        began = time.monotonic()
        outcome = attack(bench, case)
        seconds = time.monotonic() - began
        outcomes[group][case[0]] = outcome, seconds
        state = "not reached" if outcome is None else "held" if outcome.held else "DID NOT HOLD"
        said = f": {outcome.said}" if outcome is not None and outcome.said else ""
        print(f"{next(done)}/{total}  {group}: {case[0]}  {state} in {seconds:.0f} s{said}", flush=True)

    with ThreadPoolExecutor(at_once) as pool:
        for future in [pool.submit(do, group, case) for group, of in cases.items() for case in of]:
            future.result()
    return outcomes


def summary(outcomes: Outcomes) -> list[list[int | str]]:
    """The rows of the table: a row for each group, and their sum."""
    rows: list[list[int | str]] = []
    everything = {f"{group} {name}": outcome for group, of in outcomes.items() for name, outcome in of.items()}
    for group, of in [*outcomes.items(), ("all", everything)]:
        reached = [outcome for outcome, _ in of.values() if outcome is not None]
        counts = [sum(getattr(outcome, name) for outcome in reached) for name in COUNTS]
        seconds = sum(seconds for _, seconds in of.values())
        rows.append([group, len(of), *counts, len(of) - len(reached), f"{seconds:.0f}"])
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of all random moments, damages and inputs")
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="a group or a case; again for more")
    parser.add_argument("--minutes", type=float, default=15.0, help="cases that are not reached by then are named")
    parser.add_argument("--at-once", type=int, default=2, help="cases at a time; about one for each core")
    parser.add_argument("--small", action="store_true", help="a few of each, to try this script")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="work there, and leave everything")
    parser.add_argument("--json", metavar="FILE", help="write every outcome there")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "cache", ignore_errors=True)  # of a campaign before
    bench = Bench(folder.resolve(), options.seed, began + 60 * options.minutes, options.small)
    outcomes = campaign(bench, chosen(bench, options.only), options.at_once)

    rows = summary(outcomes)
    print(f"\n{table(HEADER, rows)}")
    missed = [
        f"{group}: {name}" for group, of in outcomes.items() for name, (outcome, _) in of.items() if outcome is None
    ]
    if missed:
        print(f"Not reached in {options.minutes:g} minutes: {', '.join(missed)}")
    held = all(outcome is None or outcome.held for of in outcomes.values() for outcome, _ in of.values())
    minutes = (time.monotonic() - began) / 60
    verdict = "Everything that was reached held" if held else "DID NOT HOLD"
    print(f"{verdict} at seed {options.seed}, in {minutes:.1f} minutes.")
    kept = {
        group: {name: asdict(outcome) | {"seconds": took} if outcome else None for name, (outcome, took) in of.items()}
        for group, of in outcomes.items()
    }
    write_json(options.json, {"seed": options.seed, "minutes": minutes, "cases": kept})
    if not held or options.keep:
        print(f"The folders of the cases are in {folder}")
    else:
        shutil.rmtree(folder)
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
