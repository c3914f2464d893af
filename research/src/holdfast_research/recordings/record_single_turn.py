"""Make a set of single-turn runs in TRL: train what is missing, pack the logs, decide what acted, write the manifest.

    pip install -c constraints.txt -e '.[train,trl]' -e research
    python -m holdfast_research.recordings.record_single_turn practice --dry-run
    python -m holdfast_research.recordings.record_single_turn practice --jobs 2

A finished run is not made again. `recordings.outcomes` decides whether a fault acted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from holdfast.base.collapse import halved
from holdfast_research.recordings.library import SINGLE_TURN, Recording, folder_of, keep_logs, write_manifest
from holdfast_research.recordings.outcomes import CAUSES, WINDOW, curve, outcome, series
from holdfast_research.recordings.record import versions
from holdfast_research.recordings.single_turn import Run, record


def runs_of(name: str) -> tuple[Run, ...]:
    """The plan of a set."""
    runs: tuple[Run, ...] = importlib.import_module(f"{__package__}.{name}").RUNS
    return runs


# ---- pack


def row_of(run: Run, split: str, work: Path) -> Recording:
    """The manifest's row of a finished run."""
    truth = json.loads((work / run.name / "truth.json").read_text(encoding="utf-8"))
    rewards, cause = series(truth, "reward"), outcome(run.cause, truth)
    fall = None if cause.startswith("healthy") else halved(curve(truth))
    return Recording(
        name=run.name,
        testbed=run.task,
        host="trl",
        split=split,
        cause=cause,
        also=tuple(cause for cause in run.also if CAUSES[cause].acted(truth)),
        seed=run.seed,
        steps=len(truth),
        start=0 if run.healthy else run.start,
        every=run.k,
        how=run.how,
        recipe=run.task,
        settings={
            "planned": run.cause,
            "logging_steps": run.every,
            "completions": run.questions * run.group,
            "engine": run.fault.startswith("engine"),
            "reward": [round(float(np.mean(part)), 3) for part in (rewards[:5], rewards[-WINDOW:])],
        },
        fall=None if fall is None else (fall.peak_step, fall.step),
    )


def _make(run: Run, work: Path) -> str:
    if (work / run.name / "truth.json").is_file():
        return f"{run.name}: made before"
    try:
        record(run, work)
    except Exception as error:  # the next run is made all the same
        return f"{run.name}: FAILED: {error!r}"
    return f"{run.name}: done"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SINGLE_TURN)
    parser.add_argument("--only", nargs="+", help="runs whose name contains one of these texts")
    parser.add_argument("--work", type=Path, default=Path("runs"), help="folder of the run folders")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--pack", action="store_true", help="train nothing: pack the finished runs")
    parser.add_argument("--dry-run", action="store_true", help="print what would be made")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    runs = [run for run in runs_of(options.set) if not options.only or any(text in run.name for text in options.only)]
    if options.dry_run:
        for run in runs:
            print(
                f"{run.name:28} {run.cause:20} {run.batches:4} batches, K {run.k}, logged every {run.every}: {run.how}"
            )
        return
    work = options.work / options.set
    work.mkdir(parents=True, exist_ok=True)
    if not options.pack:
        with get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:  # the imports take longer than a run
            for result in [pool.apply_async(_make, (run, work)) for run in runs]:
                print(result.get(), flush=True)
    folder = folder_of(options.set)
    folder.mkdir(parents=True, exist_ok=True)
    finished = [run for run in runs_of(options.set) if (work / run.name / "truth.json").is_file()]
    rows = [row_of(run, options.set, work) for run in finished]
    keep_logs(rows, work, folder)
    write_manifest(rows, versions(), folder)
    for row in rows:
        print(f"{row.name:28} {row.cause:24} {row.steps:4} batches, reward {row.settings['reward']}, fell {row.fall}")
    print(f"{len(rows)} packed, {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
