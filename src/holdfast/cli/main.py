"""The `holdfast` command: the table of its subcommands, each in a file that is imported when the command is called."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from holdfast import __version__
from holdfast.base.errors import ConfigError, HoldfastError
from holdfast.base.files import UNWRITABLE
from holdfast.cli.command import SettingsCommand
from holdfast.cli.terminal import HELP_OPTIONS, discard_stdout, err, out, print_error, survive_any_output


class Entry(NamedTuple):
    """A command, before its file is imported."""

    panel: str
    place: str
    """`module:name` in `holdfast.cli`, of a function or of a group of commands."""
    does: str
    """The first sentence of its help."""
    settings: bool = False
    """Whether it takes every setting of a recipe as an option."""
    context: dict[str, Any] = {}  # noqa: RUF012


_ANY: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}
COMMANDS = {
    "diagnose": Entry("Diagnose", "diagnose:diagnose", "Find out from a log why a run is failing and what to change."),
    "demo": Entry("Diagnose", "demo:demo", "See a failing run diagnosed, in seconds and without training."),
    "watch": Entry("Diagnose", "watch:watch", "Follow a run while it trains, and report findings as they come."),
    "report": Entry("Diagnose", "diagnose:report", "Write a web page with curves, findings and sampled rollouts."),
    "train": Entry("Train", "train:train", "Train a search agent with reinforcement learning.", settings=True),
    "resume": Entry("Train", "train:resume", "Continue a run from its newest checkpoint.", context=_ANY),
    "runs": Entry("Train", "run_list:runs", "List the runs in a folder, the most recently active first."),
    "warm-start": Entry(
        "Train", "train:warm_start", "Run only the warm start of a recipe, and save the model.", settings=True
    ),
    "ask": Entry("Train", "ask:ask", "Ask an agent a question, and watch it search and answer.", settings=True),
    "init": Entry("Train", "init:init", "Write a recipe that fits your documents, your questions and your model."),
    "model": Entry("Train", "model:app", "Get a small pretrained model."),
    "launch": Entry("Other trainers", "launch:launch", "Translate a recipe into files for TRL or verl.", settings=True),
    "doctor": Entry("Other trainers", "doctor:app", "Check that holdfast works with the installed TRL or verl."),
    "data": Entry(
        "Data and retrieval", "data:app", "List, prepare, check and convert question sets; write demonstrations."
    ),
    "index": Entry("Data and retrieval", "index:app", "Check a corpus, build a search index of it, or search it."),
    "serve": Entry(
        "Data and retrieval",
        "serve:serve",
        "Serve an index to trainers, or a trained agent to any OpenAI client.",
        settings=True,
    ),
    "eval": Entry("Evaluate", "evaluate:app", "Evaluate a model on questions, or compare two evaluations."),
    "recipe": Entry("Recipes", "recipes:app", "List the bundled recipes, or explain every setting of one."),
}
"""In the order of the help; panels come in the order of their first commands."""


def command_named(name: str) -> Any:
    """A command, its file imported."""
    entry = COMMANDS[name]
    module, _, attribute = entry.place.partition(":")
    value = getattr(import_module(f"holdfast.cli.{module}"), attribute)
    if isinstance(value, typer.Typer):
        command: Any = get_group(value)
    else:
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        kind = SettingsCommand if entry.settings else None
        alone.command(name, cls=kind, context_settings=HELP_OPTIONS | entry.context)(value)
        command = get_command(alone)
    command.name, command.rich_help_panel = name, entry.panel
    return command


# ---- commands that other packages add: entry points of the group `holdfast.commands`, each a Typer app or a function

GROUP = "holdfast.commands"
PANEL = "Research (in a clone)"


def command_of(name: str, value: Any) -> Any:
    """A Typer app or a function as the command `name`, in the help panel of plug-ins."""
    app = value
    if not isinstance(value, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command(name, context_settings=getattr(value, "context_settings", None))(value)
    command: Any = get_command(app)
    command.name, command.rich_help_panel = name, PANEL
    return command


def _load(point: EntryPoint) -> Any:
    """What the entry point names. If it cannot be loaded: a command that raises `ConfigError`, so that --help works."""
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        package = point.dist.name if point.dist else point.value
        message = f"the command {point.name} is in {package}, which cannot be loaded: {error}"

    def unusable() -> None:
        """Cannot be loaded."""
        raise ConfigError(message)

    unusable.context_settings = _ANY  # type: ignore[attr-defined]
    return unusable


class _Group(TyperGroup):
    """Prints a `HoldfastError` as a sentence and exits with code 2. Any other exception keeps its traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Ours, then those of plug-ins by name."""
        return [*COMMANDS, *sorted({point.name for point in entry_points(group=GROUP)} - set(COMMANDS))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """For the list in --help, a line of it, for which no file is imported. Plug-ins are asked for a name that is
        not ours; None if there is none."""
        if cmd_name in COMMANDS:
            entry = COMMANDS[cmd_name]
            return TyperCommand(cmd_name, help=entry.does, rich_help_panel=entry.panel)
        for point in entry_points(group=GROUP, name=cmd_name):
            return command_of(cmd_name, _load(point))
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command_named(name) if name in COMMANDS else command, rest

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
