"""The `holdfast` command. Subcommands live in files of their own and import what is heavy only when they run."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast import __version__
from holdfast.cli import ask, train
from holdfast.cli.command import SettingsCommand
from holdfast.cli.terminal import complain, err, out, survive_any_encoding
from holdfast.errors import HoldfastError


class _Group(TyperGroup):
    """Turns what holdfast raises on purpose into a sentence and exit code 2. Everything else keeps its traceback."""

    def invoke(self, ctx: typer.Context) -> Any:
        survive_any_encoding()
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            complain(error)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            err().print("Stopped.")
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        out().print(f"holdfast {__version__}")
        raise typer.Exit


@app.callback(
    epilog="""[bold]Start here[/bold]

[cyan]holdfast train[/cyan]
A small search agent, trained on the bundled world: under ten minutes on two CPU cores.

[cyan]holdfast ask runs/quickstart "Who is the mentor of …?"[/cyan]
Watch the trained agent search and answer.

[cyan]holdfast train my.toml --train.steps 50 --dry-run[/cyan]
Your own model, questions and passages: every setting, explained, and nothing run.
"""
)
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train LLM search agents with reinforcement learning that does not collapse."""


app.command("train", cls=SettingsCommand)(train.train)
app.command("ask")(ask.ask)
