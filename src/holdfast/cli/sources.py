"""Where a log comes from: a path, the name of a run, standard input, or the address of a service."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.runs import in_runs
from holdfast.cli.terminal import err, program
from holdfast.errors import ConfigError, DataError

if TYPE_CHECKING:
    from holdfast.diagnostics.log import Log

STDIN = "-"

LogsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="LOG…", help="Files, folders, names of runs in runs/, addresses of services; `-` for standard input."
    ),
]


def is_address(source: str) -> bool:
    """Whether it is the address of a run at a service, such as `wandb://entity/project/run`."""
    return "://" in source


def is_stream(source: str) -> bool:
    """Whether it is standard input or a named pipe, which can be read only once."""
    return source == STDIN or (not is_address(source) and Path(source).is_fifo())


def read_sources(sources: Sequence[str] | None, command: str) -> list[tuple[Log, Path | None]]:
    """Each log, and the path it came from; None where that is not a file.

    Without sources, reads what is piped in. Raises `ConfigError` if nothing is, and `DataError` for what cannot be
    read.
    """
    if sources:
        return [pair for source in sources for pair in _read(source)]
    hint = f"{program()} {command} runs/quickstart"
    if sys.stdin.isatty():
        raise ConfigError("no log is given", hint=hint)
    try:
        return _read(STDIN)
    except DataError as error:
        raise DataError(f"no log is given, and {error}", hint=hint) from None


def _read(source: str) -> list[tuple[Log, Path | None]]:
    from holdfast.diagnostics.readers import read_logs

    if source == STDIN and sys.stdin.isatty():
        err().print("Paste the log, then press Ctrl-D on an empty line.", style="dim")
    if is_stream(source) or is_address(source):
        return [(log, None) for log in read_logs(source)]
    path = Path(in_runs(source))
    return [(log, path) for log in read_logs(path)]
