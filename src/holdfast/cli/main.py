"""The `holdfast` command. Subcommands live in files of their own and import what is heavy only when they run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast import __version__
from holdfast.cli import ask, data, diagnose, doctor, evaluate, index, launch, probe, serve, train
from holdfast.cli.command import SettingsCommand
from holdfast.cli.plugins import PluginGroup
from holdfast.cli.terminal import complain, err, out, survive_any_encoding
from holdfast.errors import HoldfastError
from holdfast.files import UNWRITABLE


class _Group(PluginGroup):
    """Turns what holdfast raises on purpose into a sentence and exit code 2. Everything else keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        survive_any_encoding()
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            complain(error)
            raise typer.Exit(2) from None
        except OSError as error:
            if error.errno not in UNWRITABLE or error.filename is None:
                raise
            complain(HoldfastError(f"{error.filename} cannot be read or written: {UNWRITABLE[error.errno]}"))
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            err().print("Stopped.")
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        out().print(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train LLM search agents with reinforcement learning that does not collapse.

    Start here:

      [cyan]holdfast train[/cyan]
          trains a small search agent on a CPU core, in about six minutes

      [cyan]holdfast ask[/cyan]
          lets you ask it something, and shows how it searches and answers

      [cyan]holdfast train --dry-run > my.toml[/cyan]
          writes a recipe with every setting explained: make it yours, and run
          it with [cyan]holdfast train my.toml[/cyan]

      [cyan]holdfast diagnose PATH[/cyan]
          says why a run is dying, from its log: holdfast's, TRL's, verl's, W&B's
    """


app.command("train", cls=SettingsCommand)(train.train)
app.command("ask")(ask.ask)
app.command("diagnose")(diagnose.diagnose)
app.command("eval", cls=SettingsCommand)(evaluate.evaluate)
app.add_typer(index.app, name="index")
app.command("serve")(serve.serve)
app.add_typer(data.app, name="data", rich_help_panel="Papers")
app.command("probe", cls=SettingsCommand, rich_help_panel="Papers")(probe.probe)
app.command("launch", cls=SettingsCommand, rich_help_panel="Other trainers")(launch.launch)
app.add_typer(doctor.app, name="doctor", rich_help_panel="Other trainers")
