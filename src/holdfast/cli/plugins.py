"""Commands that other packages add: entry points of the group `holdfast.commands`, each a Typer app or a function."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from holdfast.base.errors import ConfigError

GROUP = "holdfast.commands"
PANEL = "Research (in a clone)"


class PluginGroup(TyperGroup):
    """A group that looks plug-ins up only for a name it does not have, and to list its commands in --help."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands of the group, then those of plug-ins by name."""
        names = super().list_commands(ctx)
        return [*names, *sorted({point.name for point in entry_points(group=GROUP)} - set(names))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of the group, else that of a plug-in; None if neither has it."""
        command = super().get_command(ctx, cmd_name)
        if command is None:
            for point in entry_points(group=GROUP, name=cmd_name):
                return command_of(cmd_name, _load(point))
        return command


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

    unusable.context_settings = {"allow_extra_args": True, "ignore_unknown_options": True}  # type: ignore[attr-defined]
    return unusable
