"""What the tests of the page on why agents collapse share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast_research.jobs import TrainingJob
from holdfast_research.pages.claims import kept_runs
from holdfast_research.pages.kept_runs import KEPT, restore
from holdfast_research.pages.why import PAGE
from holdfast_research.plan import load_plan
from holdfast_research.series import RunSeries, summarise

TEXT = PAGE.read_text(encoding="utf-8")
SAID = " ".join(TEXT.split())
"""Without line breaks, where tests look for sentences."""


def kept(experiment: str) -> Mapping[str, tuple[RunSeries, ...]]:
    return {arm: tuple(runs) for arm, runs in kept_runs(experiment, KEPT).items()}


def finished(name: str, folder: Path) -> list[TrainingJob]:
    """The kept runs of an experiment, put into a folder."""
    restore(name, folder / name)
    return [job for job in load_plan(folder / name).jobs(folder / name) if job.folder.exists()]


def scores(runs: tuple[RunSeries, ...], *, greedy: bool = False) -> list[float]:
    """Test EM of each run, in the order of seeds."""
    ends = [summarise(run) for run in sorted(runs, key=lambda run: run.seed)]
    return [end.greedy_after if greedy else end.em_after for end in ends]
