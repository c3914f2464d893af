"""The `holdfast` command. Each subcommand has its own file and imports heavy packages only when it runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast import __version__
from holdfast.base.errors import HoldfastError
from holdfast.base.files import UNWRITABLE
from holdfast.cli import (
    ask,
    data,
    demo,
    diagnose,
    doctor,
    evaluate,
    index,
    launch,
    model,
    recipes,
    run_list,
    serve,
    train,
    watch,
)
from holdfast.cli.command import SettingsCommand
from holdfast.cli.plugins import PluginGroup
from holdfast.cli.terminal import HELP_OPTIONS, discard_stdout, err, out, print_error, survive_any_output

_ORDER: list[str] = []
"""The commands as the help lists them; panels come in the order of their first commands."""


class _Group(PluginGroup):
    """Prints a `HoldfastError` as a sentence and exits with code 2. Any other exception keeps its traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*_ORDER, *(name for name in super().list_commands(ctx) if name not in _ORDER)]

    def main(self, *args: Any, **kwargs: Any) -> Any:
        survive_any_output()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            print_error(error)
            raise typer.Exit(2) from None
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            if error.filename is None:  # of a file that was open, which standard output is
                discard_stdout()
            what = f"{error.filename} cannot be read or written" if error.filename else "the output cannot be written"
            print_error(HoldfastError(f"{what}: {UNWRITABLE[error.errno]}"))
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            err().print("Stopped.")
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings=HELP_OPTIONS,
)


def _version(asked: bool) -> None:
    if asked:
        out().print(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train LLM search agents with reinforcement learning, and find out why a run collapses.

    Start here:

      [cyan]holdfast diagnose train.log[/cyan]
          Find out from the log of any trainer why a run is failing and what to
          change. [cyan]holdfast watch[/cyan] does so while the run trains.

      [cyan]holdfast demo[/cyan]
          See a failing run diagnosed, in seconds and without training.

      [cyan]holdfast train[/cyan]
          Train a small search agent on one CPU core, in less than four minutes.

      [cyan]holdfast ask[/cyan]
          Ask the trained agent a question, and watch it search.

      [cyan]holdfast recipe show > my.toml[/cyan]
          Write a recipe with every setting explained. Edit the file, then run
          [cyan]holdfast train my.toml[/cyan].

    [cyan]holdfast COMMAND --help[/cyan] explains a command. Exit code 2 means an error.
    """


def _add(panel: str, name: str, command: Any, *, settings: bool = False, **context: Any) -> None:
    """Register a function, which takes `settings` of a recipe as options or not, or a group of commands."""
    _ORDER.append(name)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, rich_help_panel=panel)
    else:
        kind = SettingsCommand if settings else None
        app.command(name, cls=kind, rich_help_panel=panel, context_settings=HELP_OPTIONS | context)(command)


_add("Diagnose", "diagnose", diagnose.diagnose)
_add("Diagnose", "demo", demo.demo)
_add("Diagnose", "watch", watch.watch)
_add("Diagnose", "report", diagnose.report)
_add("Train", "train", train.train, settings=True)
_add("Train", "resume", train.resume, allow_extra_args=True, ignore_unknown_options=True)
_add("Train", "runs", run_list.runs)
_add("Train", "warm-start", train.warm_start, settings=True)
_add("Train", "ask", ask.ask, settings=True)
_add("Train", "model", model.app)
_add("Other trainers", "launch", launch.launch, settings=True)
_add("Other trainers", "doctor", doctor.app)
_add("Data and retrieval", "data", data.app)
_add("Data and retrieval", "index", index.app)
_add("Data and retrieval", "serve", serve.serve)
_add("Evaluate", "eval", evaluate.app)
_add("Recipes", "recipe", recipes.app)
