"""Finished runs that another experiment has made already: a control is the same run wherever it stands."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast import __version__
from holdfast.config import Config, load
from holdfast.errors import ConfigError
from holdfast.run_folder import CONFIG, RESULTS
from holdfast_research.runner import Job, comparable


def take_over(jobs: Sequence[Job], folder: Path) -> dict[Path, Job]:
    """Copy what experiments beside `folder` have finished with the very settings and seed of a job not begun yet.

    A run is a function of its settings and of the version of holdfast, so nothing is lost by not making it twice.

    Returns:
        Run folder it was copied from -> the job that has it now.
    """
    wanted = {_key(job.config): job for job in jobs if not job.folder.exists()}
    taken: dict[Path, Job] = {}
    for run in _finished_beside(folder) if wanted else ():
        try:
            job = wanted.pop(_key(load(run / CONFIG)), None)
        except ConfigError:  # of a version with other settings
            continue
        if job is not None:
            taken[run] = job
            part = job.folder.with_name(f".{job.folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(run, part)
            part.rename(job.folder)
    return taken


def _finished_beside(folder: Path) -> Iterator[Path]:
    for kind in ("runs", "sweep"):
        for results in sorted(folder.parent.glob(f"*/{kind}/*/{RESULTS}")):
            elsewhere = results.parent.parent.parent.resolve() != folder.resolve()
            half = results.parent.name.startswith(".")  # of another experiment that copies at this moment
            if elsewhere and not half and _version(results) == __version__:
                yield results.parent


def _version(results: Path) -> str | None:
    """What the run was made with; None of a file that is not a run's, which is nobody's business here."""
    try:
        found = json.loads(results.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found.get("made_by", {}).get("holdfast") if isinstance(found, dict) else None


def _key(config: Config) -> str:
    return json.dumps(comparable(config), sort_keys=True)
