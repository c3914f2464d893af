"""Make a set of single-turn runs in TRL: train what is missing, pack the logs, decide what acted, write the manifest.

    pip install -c constraints.txt -e '.[train,trl]' -e research
    python -m holdfast_research.recordings.record_single_turn practice --dry-run
    python -m holdfast_research.recordings.record_single_turn practice --jobs 2

A finished run is not made again. Whether a fault acted is decided here, by what the recorder saw of every rollout batch
(rewards, truncation, contrast within groups), never by what the rules say. `ACTED` was written before any run was made.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.collapse import curve_of, halved
from holdfast_research.paths import RESEARCH
from holdfast_research.recordings.library import Recording, log_file, packed, write_manifest
from holdfast_research.recordings.record import versions
from holdfast_research.recordings.single_turn import Run, record

SETS = ("practice", "fourth")
_WINDOW = 10
"""Rollout batches in a mean."""
_UNTOUCHED = "healthy-without-effect"

Truth = Sequence[dict[str, Any]]


def runs_of(name: str) -> tuple[Run, ...]:
    """The plan of a set."""
    runs: tuple[Run, ...] = importlib.import_module(f"{__package__}.{name}").RUNS
    return runs


def folder_of(name: str) -> Path:
    """Where the packed logs of a set are."""
    return RESEARCH / "data" / f"recordings-{name}"


# ---- did the fault act?


def lost(values: Sequence[float]) -> float:
    """The share of the range that the last batches have lost from the highest mean before; the range includes 0.

    >>> round(lost([0.5] * 20 + [0.25] * 10), 2)
    0.5
    """
    finite = np.array([v for v in values if np.isfinite(v)])
    means = np.convolve(finite, np.ones(_WINDOW) / _WINDOW, "valid") if len(finite) >= _WINDOW else finite
    peak = max(float(means.max()), float(finite[:3].mean()))
    width = max(peak, 0.0) - min(float(finite.min()), 0.0)
    return (peak - float(finite[-_WINDOW:].mean())) / width if width else 0.0


def _series(truth: Truth, name: str) -> list[float]:
    return [float(row[name]) for row in truth]


def _lost_third(truth: Truth) -> bool:
    return lost(_series(truth, "reward")) >= 1 / 3


def _lost_quarter(truth: Truth) -> bool:
    return lost(_series(truth, "reward")) >= 1 / 4


def _traded(truth: Truth) -> bool:
    """The first reward function's mean fell while the reward rose."""
    rewards, true = _series(truth, "reward"), [float(row["parts"][0]) for row in truth]
    return lost(true) >= 1 / 4 and np.mean(rewards[-_WINDOW:]) > np.mean(rewards[:_WINDOW])


def _truncated(truth: Truth) -> bool:
    return float(np.mean(_series(truth, "truncated")[-_WINDOW:])) >= 0.3


def _exhausted(truth: Truth) -> bool:
    """Groups stopped to differ before the task was solved."""
    contrast, rewards = _series(truth, "contrast"), _series(truth, "reward")
    ended = float(np.mean(contrast[-2 * _WINDOW :]))
    return ended <= min(0.25, float(np.mean(contrast[:_WINDOW])) / 2) and float(np.mean(rewards[-_WINDOW:])) < 0.9


ACTED: dict[str, Callable[[Truth], bool]] = {
    # Cause: whether it came about. A cause that is not here is a defect of the script whatever it does.
    "step-too-large": _lost_third,
    "kl-exploded": _lost_third,
    "entropy-surge": _lost_quarter,
    "hacking": _traded,
    "truncation": _truncated,
    "entropy-exhausted": _exhausted,
}


def cause_of(run: Run, truth: Truth) -> str:
    """The plan's cause, or that of a healthy run if the fault had no effect."""
    return run.cause if ACTED.get(run.cause, bool)(truth) else _UNTOUCHED


# ---- pack


def pack(run: Run, split: str, work: Path) -> Recording:
    """Pack the log of a finished run; the manifest's row."""
    truth = json.loads((work / run.name / "truth.json").read_text(encoding="utf-8"))
    steps, rewards = [row["step"] for row in truth], _series(truth, "reward")
    finite = [(step, reward) for step, reward in zip(steps, rewards, strict=True) if np.isfinite(reward)]
    fall = None if run.healthy else halved(curve_of([r for _, r in finite], [s for s, _ in finite]))
    recording = Recording(
        name=run.name,
        testbed=run.task,
        host="trl",
        split=split,
        cause=cause_of(run, truth),
        also=run.also,
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
            "reward": [round(float(np.mean(part)), 3) for part in (rewards[:5], rewards[-_WINDOW:])],
        },
        fall=None if fall is None else (fall.peak_step, fall.step),
    )
    log_file(recording, folder_of(split)).write_bytes(packed(work / run.name / "trainer_state.json", "trl"))
    return recording


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
    parser.add_argument("set", choices=SETS)
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
            print(f"{run.name:28} {run.cause:20} {run.batches:4} batches, K {run.k}, logged every {run.every}: {run.how}")
        return
    work = options.work / options.set
    work.mkdir(parents=True, exist_ok=True)
    if not options.pack:
        with get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:  # the imports take longer than a run
            for result in [pool.apply_async(_make, (run, work)) for run in runs]:
                print(result.get(), flush=True)
    folder = folder_of(options.set)
    folder.mkdir(parents=True, exist_ok=True)
    made = [run for run in runs_of(options.set) if (work / run.name / "truth.json").is_file()]
    rows = [pack(run, options.set, work) for run in made]
    write_manifest(rows, versions(), folder)
    for row in rows:
        print(f"{row.name:28} {row.cause:24} {row.steps:4} batches, reward {row.settings['reward']}, fell {row.fall}")
    print(f"{len(rows)} packed, {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
