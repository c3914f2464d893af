"""Make the library of recorded runs: train what is missing, pack the logs, measure the falls, write the manifest.

    pip install -c constraints.txt -e '.[train,trl]'
    python -m holdfast_research.recordings.record --dry-run
    python -m holdfast_research.recordings.record --only rambler- --jobs 2
    python -m holdfast_research.recordings.record --pack

A finished run is not made again, so a stopped recording continues. Every run has one thread. All runs take hours: those
of the collapse and quickstart recipes five to ten minutes each, the others half a minute.
"""

from __future__ import annotations

import argparse
import os
import platform
import tomllib
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from holdfast.recipe import Config
from holdfast_research.recordings.library import (
    FOLDER,
    MANIFEST,
    Recording,
    keep_logs,
    measured,
    read_manifest,
    write_manifest,
)
from holdfast_research.recordings.plan import TOYS, Planned
from holdfast_research.recordings.runs import everything

_PLACE = {"run": ("name", "dir", "threads", "device"), "model": ("path",)}  # settings of this machine
_DONE = "done"


def make(planned: Planned, work: Path) -> str:
    """Train one run, unless it is finished; its name."""
    folder = work / planned.name
    if not (folder / _DONE).is_file():
        host = "echo" if planned.testbed.recipe in TOYS else "trl" if planned.testbed.host == "trl" else "local"
        import_module(f"{__package__}.{host}").record(planned, folder)
        (folder / _DONE).touch()
    return planned.name


def pack(runs: Iterable[Planned], work: Path, folder: Path = FOLDER) -> list[Recording]:
    """Pack the logs of those that are finished; their rows of the manifest, without falls."""
    rows = [_row(run, work) for run in runs if (work / run.name / _DONE).is_file()]
    keep_logs(rows, work, folder)
    return rows


def _row(planned: Planned, work: Path) -> Recording:
    testbed, arm = planned.testbed, planned.arm
    resolved = tomllib.loads((work / planned.name / "config.toml").read_text(encoding="utf-8"))
    optimizer_steps = resolved.get("train", {}).get("optimizer_steps_per_rollout", 10)
    return Recording(
        name=planned.name,
        testbed=testbed.name,
        host=testbed.host,
        split=testbed.split,
        cause=arm.cause,
        also=arm.also,
        seed=planned.seed,
        steps=planned.length,
        start=arm.start,
        how=arm.how,
        recipe=testbed.recipe,
        settings=changed(resolved),
        every=optimizer_steps if testbed.host == "trl" else 1,
    )


def changed(resolved: dict[str, Any]) -> dict[str, Any]:
    """The settings of a resolved recipe that differ from the defaults, without those of this machine."""

    def differing(values: Any, default: Any) -> Any:
        pairs = {k: (v, default.get(k)) for k, v in values.items()}
        return {
            k: differing(v, d) if isinstance(v, dict) and isinstance(d, dict) else v
            for k, (v, d) in pairs.items()
            if v != d
        }

    for section, names in _PLACE.items():
        for name in names:
            resolved.get(section, {}).pop(name, None)
    return {k: v for k, v in differing(resolved, Config().model_dump(mode="json")).items() if v}


def versions() -> dict[str, str]:
    """Name -> version of what a log depends on."""
    installed = {"python": platform.python_version()}
    for name in ("holdfast", "numpy", "torch", "transformers", "trl", "accelerate"):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def update(recordings: list[Recording], folder: Path = FOLDER) -> None:
    """Write the manifest with these rows added, each in the place of the one of its name.

    Labels are the plan's, and falls are measured again, whenever a run was made.
    """
    rows = {r.name: r for r in (*(read_manifest(folder) if (folder / MANIFEST).is_file() else ()), *recordings)}
    labelled = [
        measured(
            replace(rows[p.name], split=p.testbed.split, cause=p.arm.cause, also=p.arm.also, how=p.arm.how), folder
        )
        for p in everything()
        if p.name in rows
    ]
    write_manifest(labelled, versions(), folder)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="runs whose name contains one of these texts")
    parser.add_argument("--work", type=Path, default=Path("runs/recordings"), help="folder of the run folders")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--train-only", action="store_true", help="pack nothing")
    parser.add_argument("--pack", action="store_true", help="train nothing: pack the finished runs")
    parser.add_argument("--dry-run", action="store_true", help="print what would be made")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    chosen = [p for p in everything() if not options.only or any(text in p.name for text in options.only)]
    if options.dry_run:
        for p in chosen:
            state = "made" if (options.work / p.name / _DONE).is_file() else "missing"
            print(f"{p.testbed.split:12} {p.name:34} {p.arm.cause:20} {state}")
        return
    options.work.mkdir(parents=True, exist_ok=True)
    if not options.pack:
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            futures = {p.name: pool.submit(make, p, options.work) for p in chosen}
            for name, future in futures.items():
                error = future.exception()
                print(f"{name}: {'done' if error is None else f'FAILED: {error!r}'}", flush=True)
    if options.train_only:
        return
    FOLDER.mkdir(exist_ok=True)
    rows = pack(chosen, options.work)
    update(rows)
    size = sum(path.stat().st_size for path in FOLDER.iterdir())
    print(f"{len(rows)} packed; the library is {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
