"""Make the library of recorded runs: train what is missing, pack the logs, measure the falls, write the manifest.

    pip install -c constraints.txt -e '.[train,trl]'
    python -m holdfast_research.recordings.record --dry-run
    python -m holdfast_research.recordings.record --only rambler- --jobs 2
    python -m holdfast_research.recordings.record --pack

A run that is there is not made again, so a stopped recording continues where it was. Every run has one thread. All of
it, warm starts included, takes hours: the runs of the collapse and quickstart recipes, five to ten minutes each; every
other run takes half a minute.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tomllib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from holdfast.config import Config
from holdfast_research.recordings.library import (
    FOLDER,
    LOGS,
    MANIFEST,
    Recording,
    log_file,
    measured,
    packed,
    read_manifest,
    write_manifest,
)
from holdfast_research.recordings.plan import TOYS, Planned
from holdfast_research.recordings.runs import everything

_OWN = {"run": ("name", "dir", "threads", "device"), "model": ("path",)}  # of this machine, and nobody else's business
_DONE = "done"


def make(planned: Planned, work: Path) -> str:
    """Train one run, unless it is there."""
    folder = work / planned.name
    if not (folder / _DONE).is_file():
        if planned.organism.host == "trl":
            record = import_module(f"{__package__}.{'echo' if planned.organism.recipe in TOYS else 'trl'}").record
        else:
            record = import_module(f"{__package__}.local").record
        record(planned, folder)
        (folder / _DONE).touch()
    return planned.name


def pack(planned: Planned, work: Path, folder: Path) -> Recording | None:
    """The packed log and the manifest's row; None while the run is not made."""
    made = work / planned.name
    log = made / LOGS[planned.organism.host]
    if not (made / _DONE).is_file():
        return None
    own = planned.organism
    resolved = tomllib.loads((made / "config.toml").read_text(encoding="utf-8"))
    optimizer_steps = resolved.get("train", {}).get("optimizer_steps_per_rollout", 10)
    recording = Recording(
        name=planned.name,
        organism=own.name,
        host=own.host,
        split=own.split,
        cause=planned.cause,
        also=planned.also,
        seed=planned.seed,
        steps=planned.length,
        start=planned.start,
        how=planned.how,
        recipe=own.recipe,
        settings=_changed(resolved),
        every=optimizer_steps if own.host == "trl" else 1,
    )
    log_file(recording, folder).write_bytes(packed(log, own.host))
    return measured(recording, folder)


def _changed(resolved: dict[str, Any]) -> dict[str, Any]:
    """What a resolved recipe has that is no default."""

    def differing(own: Any, default: Any) -> Any:
        pairs = {k: (v, default.get(k)) for k, v in own.items()}
        return {
            k: differing(v, d) if isinstance(v, dict) and isinstance(d, dict) else v
            for k, (v, d) in pairs.items()
            if v != d
        }

    for section, names in _OWN.items():
        for name in names:
            resolved.get(section, {}).pop(name, None)
    return {k: v for k, v in differing(resolved, Config().model_dump(mode="json")).items() if v}


def versions() -> dict[str, str]:
    """Of everything a log depends on."""
    found = {"python": platform.python_version()}
    for name in ("holdfast", "numpy", "torch", "transformers", "trl", "accelerate"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def update(recordings: list[Recording], folder: Path = FOLDER) -> None:
    """Write the manifest with these rows added, or in the place of those of their names."""
    known = {r.name: r for r in read_manifest(folder)} if (folder / MANIFEST).is_file() else {}
    planned = {p.name: p for p in everything()}
    rows = {n: r for n, r in {**known, **{r.name: r for r in recordings}}.items() if n in planned}
    # A label is the plan's and a fall is the present definition's, whenever the run was made.
    labelled = [
        measured(replace(r, split=planned[n].organism.split, **_labels(planned[n])), folder) for n, r in rows.items()
    ]
    write_manifest(labelled, versions(), folder)


def _labels(planned: Planned) -> dict[str, Any]:
    return {"cause": planned.cause, "also": planned.also, "how": planned.how}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="runs whose name contains one of these texts")
    parser.add_argument("--work", type=Path, default=Path("runs/recordings"), help="folder of the run folders")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--train-only", action="store_true", help="pack nothing")
    parser.add_argument("--pack", action="store_true", help="train nothing: pack what is there")
    parser.add_argument("--dry-run", action="store_true", help="say what would be made")
    own = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    wanted = [p for p in everything() if not own.only or any(text in p.name for text in own.only)]
    if own.dry_run:
        for p in wanted:
            there = "made" if (own.work / p.name / _DONE).is_file() else "missing"
            print(f"{p.organism.split:12} {p.name:34} {p.cause:20} {there}")
        return
    own.work.mkdir(parents=True, exist_ok=True)
    if not own.pack:
        with ProcessPoolExecutor(own.jobs, mp_context=get_context("spawn")) as pool:
            futures = {p.name: pool.submit(make, p, own.work) for p in wanted}
            for name, future in futures.items():
                error = future.exception()
                print(f"{name}: {'done' if error is None else f'FAILED: {error!r}'}", flush=True)
                sys.stdout.flush()
    if own.train_only:
        return
    FOLDER.mkdir(exist_ok=True)
    rows = [row for p in wanted if (row := pack(p, own.work, FOLDER)) is not None]
    update(rows)
    size = sum(path.stat().st_size for path in FOLDER.iterdir())
    print(f"{len(rows)} packed; the library is {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
