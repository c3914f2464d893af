"""What commands that run jobs share: settings read once, a stop that leaves no process, and progress on the screen."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from holdfast.base.errors import ConfigError
from holdfast.cli.terminal import duration, err, is_live

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast_research.jobs import Failure, Progress


def shared_settings(words: Sequence[str], planned: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of a command line, by dotted name. Raises `ConfigError` for one that each run has a value of its own
    for: its place and seed, and those in `planned`.
    """
    from holdfast.recipe import Config
    from holdfast.recipe.overrides import parse_overrides

    settings = parse_overrides(words, Config)
    if taken := {"run.dir", "run.name", "run.seed", *planned} & set(settings):
        raise ConfigError(f"--{min(taken)}: this is set for each of the runs; use --out and --seeds")
    return settings


def need_training() -> None:
    """Raise `MissingExtra` once and at the start, not by every run or after hours of them."""
    from holdfast.base.errors import MissingExtra
    from holdfast.base.importing import missing_train_package

    if missing := missing_train_package():
        raise MissingExtra(missing, "train")


def print_failures(failures: Sequence[Failure]) -> None:
    """A line for each, with the path of its log."""
    for failure in failures:
        err().print(f"failed: {failure.job.name}: {failure.reason} (see {failure.log})", soft_wrap=True)


@contextmanager
def stopping(folder: Path) -> Iterator[None]:
    """A `kill` stops the runs too, and the screen says how to continue."""
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        code = 130 if isinstance(stop, KeyboardInterrupt) else 143
        err().print(f"Stopped. The same command continues; what is finished is in {folder}.", soft_wrap=True)
        raise typer.Exit(code) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def watching(console: Console) -> Iterator[Callable[[Progress], None]]:
    """Draws progress: a line that stays for each run that ends, and, on a terminal, one that moves below."""
    from rich.live import Live
    from rich.text import Text

    shown: set[str] = set()
    first = True
    live = Live(console=console, refresh_per_second=2, transient=True) if is_live(console) else None
    printed = time.monotonic()

    def watch(progress: Progress) -> None:
        nonlocal first, printed
        ended = [(name, "done") for name in progress.finished]
        ended += [(failure.job.name, f"FAILED: {failure.reason}") for failure in progress.failed]
        new = [(name, how) for name, how in ended if name not in shown]
        if first and len(new) > 1:
            console.print(f"{len(new)} finished before")
        else:
            for name, how in new:
                console.print(f"{name}: {how}", soft_wrap=True)
        first = False
        shown.update(name for name, _ in new)
        line = describe(progress)
        if live is not None:
            live.update(Text(line, "cyan"))
        elif new or time.monotonic() - printed > 60:
            printed = time.monotonic()
            console.print(line, soft_wrap=True)

    if live is None:
        yield watch
    else:
        with live:
            yield watch


def describe(progress: Progress) -> str:
    """The state of all runs, in one line."""
    running = "; ".join(f"{name}: step {step}" if step else name for name, step in progress.running.items())
    parts = [f"{progress.steps_done}/{progress.steps} steps", running]
    if progress.waiting:
        parts.append(f"{progress.waiting} waiting")
    if progress.left_s:
        parts.append(f"about {duration(progress.left_s)} of training left")
    return " · ".join(part for part in parts if part)
