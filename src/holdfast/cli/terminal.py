"""The one console that prints what others wrote, durations, and a status line while heavy packages load.

Importing it loads no torch.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from holdfast.base.errors import HoldfastError, MissingExtra
from holdfast.base.importing import TRAIN_PACKAGES

ABSENT = "–"

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
"""Context settings of every command."""


def completes_value(ctx: Any) -> bool:
    """Whether a shell completes the value of a setting, which is neither a recipe nor a run."""
    return ctx.meta.get("settings", ()) is None


# C0 but for tabs and newlines, DEL, C1, and what turns the direction of a line around (UAX #9).
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""A text whose control characters a terminal shows instead of obeying them.

    The escapes are those of JSON and TOML, in whose strings they mean the same character.

    >>> printable("a\x1b[2Jb\u202e\n")
    'a\\u001b[2Jb\\u202e\n'
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class SafeConsole(Console):
    """A console on which texts from logs, models, passages and file names move no cursor and set no title."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As of `Console`, which passes everything through here: a table's cells too, but colours only later."""
        for segment in super().render(renderable, options):
            plain = segment.control is None and _CONTROL.search(segment.text) is not None
            yield Segment(printable(segment.text), segment.style) if plain else segment


def out() -> Console:
    """Standard output. Numbers and paths are not coloured, and `[brackets]` are not markup."""
    return SafeConsole(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    """Standard error."""
    return SafeConsole(stderr=True, highlight=False, markup=False, soft_wrap=not sys.stderr.isatty())


def echo(text: str) -> None:
    """Print JSON or Markdown to standard output as it is, but `printable`."""
    typer.echo(printable(text), nl=False)


def waiting(sentence: str) -> AbstractContextManager[object]:
    """Shows on a terminal what is being done, until it is done. Nothing else may be printed meanwhile."""
    return err().status(Text(sentence)) if is_live(out()) else nullcontext()


def is_live(console: Console) -> bool:
    """True when a display may be redrawn in place: a real terminal, not CI."""
    return console.is_terminal and not console.is_dumb_terminal and sys.stdout.isatty() and "CI" not in os.environ


class _SafeFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def survive_any_output() -> None:
    """Print nothing where an output is closed (`>&-`), a question mark for what the terminal cannot show, and warnings
    as on a `SafeConsole`."""
    if logging.lastResort is not None:  # which prints the warnings of a program that sets up no logging
        logging.lastResort.setFormatter(_SafeFormatter())
    for handle in range(3):
        try:
            os.fstat(handle)
        except OSError:  # the next file opened would take its place, and be printed into
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def discard_stdout() -> None:
    """Drop what standard output still holds if it cannot be written: it must not fail again when the program ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error(error: HoldfastError) -> None:
    """Print an error, and its hint on a line of its own."""
    err().print(Text.assemble(("error: ", "bold red"), str(error)))
    if error.hint is not None:
        err().print(Text.assemble(("hint: ", "bold cyan"), error.hint), soft_wrap=True)


@contextmanager
def train_extra(status: str) -> Iterator[None]:
    """Show a status line during the imports inside. Raises `MissingExtra` when a [train] package is missing."""
    console = err()
    try:
        with console.status(status) if is_live(console) else nullcontext():
            if find_spec("transformers") is not None:  # BM25 needs none
                from transformers.utils import logging

                logging.disable_progress_bar()  # for reading and writing weights; downloads keep theirs
            yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in TRAIN_PACKAGES:
            raise
        raise MissingExtra(TRAIN_PACKAGES[package], "train") from None


def program() -> str:
    """The command that runs this program: `holdfast`, or its path if the shell would not find it."""
    script, on_path = Path(sys.argv[0]), shutil.which("holdfast")
    if script.name != "holdfast" or (on_path and Path(on_path).resolve() == script.resolve()):
        return "holdfast"
    script, folder = script.absolute(), Path.cwd()
    return shlex.quote(str(script.relative_to(folder) if script.is_relative_to(folder) else script))


def duration(seconds: float) -> str:
    """Seconds as text, rounded.

    >>> [duration(s) for s in (0.04, 7.26, 59.6, 83, 3599.7, 3700)]
    ['0.0 s', '7.3 s', '1 min 00 s', '1 min 23 s', '1 h 00 min', '1 h 01 min']
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = whole // 60
    return f"{minutes // 60} h {minutes % 60:02d} min"
