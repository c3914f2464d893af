"""`holdfast runs`: the runs in a folder, a line for each, from what they stored."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from holdfast.base.errors import ConfigError, DataError
from holdfast.base.files import is_locked
from holdfast.base.intervals import half_width
from holdfast.base.jsonl import BadField, json_object
from holdfast.base.run_folder import CONFIG, FINDINGS, KEPT, METRICS, RESULTS, is_finished, is_run, recipe_name
from holdfast.cli.runs import ROOT
from holdfast.cli.terminal import ABSENT, echo, err, out, program
from holdfast.diagnose.finding import judged
from holdfast.diagnose.log.smoothed import WINDOW
from holdfast.diagnose.readers.text import clean
from holdfast.recipe.overrides import read_toml
from holdfast.train.summary import read_summary

_TAIL = 1 << 18
"""Bytes at the end of metrics.jsonl that are read for the last steps. A step has a few thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run folder says of itself."""

    name: str
    folder: str
    recipe: str | None
    """As the command line named it; None if the run was started otherwise."""
    state: Literal["running", "stopped", "finished"]
    steps: int
    planned: int | None
    reward: float | None
    """Mean of the last steps, as in the curves of a report; None before the first."""
    reward_half_width: float | None
    """Half of its 95 % interval over those steps; None of fewer than two."""
    when: datetime
    """When the run last wrote a step or its results."""
    verdict: str
    """As on the page of the run, such as `fell at 40`; of a stage, what it was."""
    finding: str | None
    """The first one, with its step."""


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with runs in it, or one run.")] = ROOT,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects instead of a table.")] = False,
) -> None:
    """List the runs in a folder, the most recently active first.

    [cyan]holdfast runs[/cyan]

    [cyan]holdfast runs --json[/cyan]

    A row shows the steps made and planned, the reward, the verdict of
    [cyan]holdfast diagnose[/cyan] on the run so far, and the first finding. The reward is the
    mean of the last five steps, with its 95 % interval over them (±). Folders that
    are not runs, or are damaged, are named and left out.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}", hint=f"to train a run: {program()} train")
    listed: list[Run] = []
    for path in [folder] if is_run(folder) else sorted(path for path in folder.glob("[!.]*") if path.is_dir()):
        try:
            listed.append(read_run(path))
        except DataError as error:
            err().print(f"left out: {error}")
    listed.sort(key=lambda run: run.when, reverse=True)
    if as_json:
        echo(json.dumps([asdict(run) for run in listed], indent=1, default=datetime.isoformat) + "\n")
        return
    lines = [("run", "recipe", "state", "steps", "reward", "written", "verdict"), *map(_cells, listed)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    console = out()
    for line in lines:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        console.print(text, no_wrap=True, overflow="ellipsis", soft_wrap=not console.is_terminal)


def _cells(run: Run) -> tuple[str, ...]:
    steps = f"{run.steps}/{ABSENT if run.planned is None else run.planned}"
    reward = ABSENT if run.reward is None else f"{run.reward:.3f}"
    reward += "" if run.reward_half_width is None else f" ±{run.reward_half_width:.3f}"
    when = f"{run.when.astimezone():%Y-%m-%d %H:%M}"
    return (
        run.name,
        run.recipe or ABSENT,
        run.state,
        steps,
        reward,
        when,
        "; ".join(filter(None, [run.verdict, run.finding])),
    )


def read_run(folder: Path) -> Run:
    """A run from its files. Raises `DataError` for a folder that is not a run, or is damaged."""
    if not is_run(folder):
        raise DataError(f"{folder} is not a run: it has no {CONFIG}")
    try:
        return _read(folder)
    except (ConfigError, OSError) as error:
        raise DataError(str(error)) from None


def _read(folder: Path) -> Run:
    named, train = recipe_name(folder), read_toml(folder / CONFIG).get("train")
    planned = train.get("steps") if isinstance(train, dict) else None
    steps, rewards = _last_steps(folder / METRICS)
    stage = _stage(folder)
    ended = stage is not None or _has_ended(folder, planned if type(planned) is int else 0)
    verdict, finding = _diagnosis(folder / FINDINGS)
    written = max(path.stat().st_mtime for name in (CONFIG, METRICS, RESULTS) if (path := folder / name).exists())
    return Run(
        name=clean(folder.resolve().name),
        folder=str(folder),
        recipe=None if named is None else clean(named),
        state="running" if is_locked(folder / CONFIG) else "finished" if ended else "stopped",
        steps=steps,
        planned=planned if type(planned) is int else None,
        reward=sum(rewards) / len(rewards) if rewards else None,
        reward_half_width=half_width(rewards),
        when=datetime.fromtimestamp(int(written), UTC),
        verdict=clean(stage or verdict),
        finding=None if finding is None else clean(finding),
    )


def _last_steps(path: Path) -> tuple[int, list[float]]:
    """The last step of metrics.jsonl, 0 if there is none, and the last rewards, as many as the running mean is over."""
    if not path.exists():
        return 0, []
    with path.open("rb") as file:
        start = max(file.seek(0, 2) - _TAIL, 0)
        file.seek(start)
        lines = file.read().split(b"\n")[start > 0 : -1]  # the last one is empty, or still being written
    steps, rewards = 0, list[float]()
    for line in reversed(lines):
        row = _object(line, path)
        step, reward = row.get("step"), row.get("reward/mean")
        if type(step) is not int:
            raise DataError(f"{path} is damaged: a row has no step")
        steps = max(steps, step)
        if isinstance(reward, float) and isfinite(reward):
            rewards.append(reward)
        if len(rewards) == WINDOW:
            break
    return steps, rewards


def _stage(folder: Path) -> str | None:
    """What kind of stage a folder is, if it is one that has ended."""
    if not is_finished(folder, stage=True):
        return None
    return "rejection sampling" if (folder / KEPT).exists() else "warm start"


def _has_ended(folder: Path, planned: int) -> bool:
    """Whether a run has results and made its steps; `train.steps` may have been raised afterwards."""
    if not is_finished(folder):
        return False
    summary = read_summary(folder)
    if summary is None or type(summary.steps) is not int:
        raise DataError(f"{folder / RESULTS} is damaged")
    return summary.steps >= planned


def _diagnosis(path: Path) -> tuple[str, str | None]:
    """(verdict, first finding) of findings.json."""
    if not path.exists():
        return ABSENT, None
    try:
        found = _object(path.read_bytes(), path)
        findings = (one for one in found["findings"] if one["level"] == "finding")
        first = next((f"{one['code']} at {one['step']}" for one in findings), None)
        return judged(found["verdict"]["word"], found["fall_began"], found["back_step"]), first
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path} is damaged: it has no verdict, or no list of findings") from None


def _object(text: bytes, path: Path) -> dict[str, Any]:
    try:
        return json_object(text)
    except BadField as bad:
        raise DataError(f"{path} is damaged: {bad.field} {bad.reason}") from None
