"""Where a log comes from: a path, the name of a run, standard input, or the address of a service."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from holdfast.cli.runs import in_runs
from holdfast.cli.terminal import err, program
from holdfast.errors import ConfigError, DataError

if TYPE_CHECKING:
    from holdfast.diagnostics.log import Log

STDIN = "-"
PIPED = "standard input"
"""The name of a log that came through a pipe."""

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
    if not sys.stdin.isatty():
        with spool() as path:
            _fill(path, STDIN)
            if path.stat().st_size:
                return [(log, None) for log in read_spooled(path)]
    raise ConfigError("no log is given", hint=f"{program()} {command} runs/quickstart")


def _read(source: str) -> list[tuple[Log, Path | None]]:
    from holdfast.diagnostics.readers import read_logs

    if is_stream(source):
        if source == STDIN and sys.stdin.isatty():
            err().print("Paste the log, then press Ctrl-D on an empty line.", style="dim")
        with spool() as path:
            _fill(path, source)
            return [(log, None) for log in read_spooled(path)]
    if is_address(source):
        return [(log, None) for log in read_logs(source)]
    path = Path(in_runs(source))
    return [(log, path) for log in read_logs(path)]


def _fill(path: Path, source: str) -> None:
    with stream_of(source) as stream, path.open("wb") as file:
        shutil.copyfileobj(stream, file)


@contextmanager
def stream_of(source: str) -> Iterator[IO[bytes]]:
    """The bytes of standard input or of a named pipe."""
    if source == STDIN:
        yield sys.stdin.buffer
    else:
        with Path(source).open("rb", buffering=0) as stream:
            yield stream


@contextmanager
def spool() -> Iterator[Path]:
    """A temporary file for what comes through a pipe, because a log is read twice. It is deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        yield Path(folder) / PIPED


def read_spooled(path: Path) -> tuple[Log, ...]:
    """The logs in a spooled file. Errors name the pipe, not the file."""
    from holdfast.diagnostics.readers import read_logs

    try:
        return read_logs(path)
    except DataError as error:
        raise DataError(str(error).replace(str(path), PIPED), hint=error.hint) from None
