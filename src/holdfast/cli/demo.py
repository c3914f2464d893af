"""`holdfast demo`: two logs that come with holdfast, diagnosed like your own."""

from __future__ import annotations

import gzip
import os
import shlex
import shutil
import sys
import webbrowser
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from holdfast.base.errors import ConfigError
from holdfast.base.files import write_whole
from holdfast.cli.findings import paragraph, show
from holdfast.cli.terminal import is_live, out, program
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import Diagnosis
from holdfast.diagnose.log import Log
from holdfast.diagnose.readers import read_log
from holdfast.diagnose.report import is_replaceable, reported, write_report
from holdfast.hosts import PENALTY, words

RUNS = ("failing", "stabilised")
"""Names of the logs, of their folders, and of the example scripts of such runs, which begin with `trl_`."""
_LOG = "trainer_state.json"
_PAGE = "report.html"


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to put the logs and the page; made if needed.")
    ] = Path("holdfast-demo"),
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the page in a browser.")] = False,
) -> None:
    """See a failing run diagnosed, in seconds and without training.

    [cyan]holdfast demo[/cyan]

    Two logs come with holdfast: a TRL run that collapsed, and the same run with
    one line changed. The demo copies them into a folder and diagnoses them as it
    would diagnose your own. A page with curves and findings opens in the browser,
    if there is one.
    """
    console = out()
    paths = _copy_logs(folder)
    paragraph(console, _INTRODUCTION)
    runs = [(log, diagnose(log)) for log in map(read_log, paths)]
    for path, (log, diagnosis) in zip(paths, runs, strict=True):
        console.print()
        console.print(Text(f"$ {program()} diagnose {shlex.quote(str(path.parent))}", "bold cyan"), soft_wrap=True)
        show(console, log, diagnosis, verbose=False)
    console.print()
    paragraph(console, _ADVICE)
    page = _write_page(folder, *runs[0])
    console.print(f"Its curves and findings: {page}", soft_wrap=True)
    if not no_open and _has_display(console):
        webbrowser.open(page.resolve().as_uri())
    _next(console, folder)


_INTRODUCTION = (
    "Two runs of TRL's GRPOTrainer train a tiny search agent, from the same initial checkpoint and with the same "
    "seed. The first run is plain GRPO. The second adds one line, the penalty LLDS. Two more seeds gave the same "
    "result."
)
_ADVICE = "Act on the first finding of the failing run: later ones are often its consequences."


def _copy_logs(folder: Path) -> list[Path]:
    """The logs, each in a folder that names its run. Raises `ConfigError` rather than replace another file."""
    paths = []
    for name in RUNS:
        packed = files("holdfast.diagnose").joinpath("sample", f"{name}.json.gz").read_bytes()
        content, path = gzip.decompress(packed).decode(), folder / name / _LOG
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                write_whole(path, content)
            elif path.read_bytes() != content.encode():
                raise _path_is_taken(path)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise _path_is_taken(path) from None
        paths.append(path)
    return paths


def _write_page(folder: Path, log: Log, diagnosis: Diagnosis) -> Path:
    """The page of a run. Raises `ConfigError` rather than replace a file that is not a report."""
    page = folder / _PAGE
    if not is_replaceable(page):
        raise _path_is_taken(page)
    return write_report(page, [reported(log, diagnosis)])


def _path_is_taken(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} cannot be written: another file is there, and the demo does not replace it",
        hint=f"{program()} demo ANOTHER-FOLDER",
    )


def _has_display(console: Console) -> bool:
    """Whether someone at this machine can see a window. False in CI, in a pipe and over SSH."""
    if not is_live(console) or "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _next(console: Console, folder: Path) -> None:
    name, runs = program(), " ".join(shlex.quote(str(folder / run)) for run in RUNS)
    passing = Path(sys.argv[0]).name == "holdfast-rl" and shutil.which("holdfast") is None  # as by `pipx run`
    keep = [("Keep the command", "pip install holdfast-rl")] if passing else []
    console.print()
    console.print(Text("Next", "bold"))
    for title, command in (
        *keep,
        ("Diagnose your own log, from any trainer", f"{name} diagnose train.log"),
        ("Watch a run while it trains", f"python train.py 2>&1 | {name} watch -"),
        ("Draw these two runs on one page", f"{name} report {runs} --out both.html"),
        (
            "Use the penalty in TRL (pip install 'holdfast-rl[trl]')",
            "from holdfast.adapters.trl import LLDS, with_penalties\n    trainer = "
            f"{words('trl', PENALTY)[0]}(...)\n    # in GRPOConfig, steps_per_generation must be at least twice\n    "
            "# gradient_accumulation_steps",
        ),
        (
            "Use it in verl (pip install 'holdfast-rl[verl]')",
            "\n    ".join(words("verl", PENALTY)),
        ),
        ("Train such an agent here, in minutes (pip install 'holdfast-rl[train]')", f"{name} train"),
    ):
        console.print(Text(f"  {title}", "dim"), soft_wrap=True)
        console.print(Text(f"    {command}", "cyan"), soft_wrap=True)  # never wrapped, because people copy it
