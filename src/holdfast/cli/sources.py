"""Where a log comes from: a path, the name of a run, standard input, or the address of a service; and which file may be
its page."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TextIO

import typer

from holdfast.base.errors import ConfigError, DataError
from holdfast.base.files import is_pipe
from holdfast.cli.runs import in_runs
from holdfast.cli.terminal import err, program
from holdfast.diagnose.log import Log
from holdfast.diagnose.readers import read_logs
from holdfast.diagnose.readers.services import is_address

STDIN = "-"

LogsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="LOG…",
        help="Files, folders, names of runs in runs/, or addresses such as wandb://…; `-` is standard input.",
    ),
]

NameOption = Annotated[
    list[str] | None,
    typer.Option(
        "--name",
        metavar="OURS=THEIRS",
        help="What a metric of the log is, such as reward=MY_SCORE; may be given several times.",
    ),
]


def given_names(options: Sequence[str] | None) -> dict[str, str]:
    """`reward=MY_SCORE` as {"reward": "MY_SCORE"}. Raises `ConfigError` for anything else."""
    pairs = [option.partition("=") for option in options or ()]
    for ours, equals, name in pairs:
        if not (ours and equals and name):
            raise ConfigError(
                f"--name {ours}{equals}{name} names no metric; write, for example, --name reward=MY_SCORE"
            )
    return {ours.strip(): name.strip() for ours, _, name in pairs}


def is_stream(source: str) -> bool:
    """Whether it is standard input or a named pipe, which can be read only once."""
    return source == STDIN or is_pipe(source)


def path_of(source: str) -> Path | None:
    """The file or folder that is meant, perhaps by the name of a run; None for a stream or the address of a service."""
    return None if is_stream(source) or is_address(source) else Path(in_runs(source))


def stdin() -> TextIO:
    """Standard input. Raises `ConfigError` if it is closed, as it may be in a job that nobody watches."""
    if sys.stdin is None:
        raise ConfigError("standard input is closed, so no log can be read from it; name a log")
    return sys.stdin


def read_sources(
    sources: Sequence[str] | None, command: str, names: Sequence[str] | None = None
) -> list[tuple[Log, Path | None]]:
    """Each log, and the path it came from; None where that is not a file or a folder. `names` as `--name` gives them.

    Without sources, reads what is piped in. Raises `ConfigError` if nothing is, and `DataError` for what cannot be
    read.
    """
    given = given_names(names)
    if sources:
        return [pair for source in sources for pair in _read(source, given)]
    example = f"{program()} {command} runs/quickstart"
    if stdin().isatty():
        raise ConfigError("no log is given", hint=f"{example}; or, to see an example: {program()} demo")
    try:
        return _read(STDIN, given)
    except DataError as error:
        raise DataError(
            str(error),
            hint=f"no log was named, so holdfast read standard input. To name a log: {example}. To see an example: "
            f"{program()} demo",
        ) from None


def _read(source: str, given: Mapping[str, str]) -> list[tuple[Log, Path | None]]:
    if source == STDIN and stdin().isatty():
        err().print("Paste the log, then press Ctrl-D on an empty line.", style="dim")
    path = path_of(source)
    return [(log, path) for log in read_logs(path or source, given)]


def check_page(page: Path, sources: Sequence[str] | None, option: str) -> None:
    """Raises `ConfigError` if the page would replace a log or another file."""
    from holdfast.diagnose.report import is_replaceable

    paths = [path for source in sources or () if (path := path_of(source)) is not None]
    if any(path.resolve() == page.resolve() for path in paths):
        raise ConfigError(f"{option} {page}: the page would replace the log that it reports on; give another name")
    if not is_replaceable(page):
        raise ConfigError(f"{option} {page}: this file exists and is not a holdfast report; give another name")
