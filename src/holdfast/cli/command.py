"""A command that takes every setting of a recipe as an option: `--section.key value`.

The sections of a recipe are imported where they are asked for: plug-ins use this class, and --help imports plug-ins.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from holdfast.base.errors import ConfigError
from holdfast.cli.terminal import out


def split(arguments: Sequence[str], options: Collection[str]) -> tuple[list[str], list[str]]:
    """(settings with their values, all other arguments), each in order.

    A word that starts with `--` and is not one of the command's `options` is a setting, and so is `--unset`. Raises
    `ConfigError` for a setting that does not exist.

    >>> split(["my.toml", "--train.steps", "5", "--dry-run", "--run.name=x"], {"--dry-run"})
    (['--train.steps', '5', '--run.name=x'], ['my.toml', '--dry-run'])
    """
    settings: list[str] = []
    rest: list[str] = []
    words = list(arguments)
    while words:
        name = words[0].partition("=")[0]
        if not name.startswith("--") or name in options:
            rest.append(words.pop(0))
            continue
        is_setting = "." in name or name == "--unset"
        if not is_setting and (near := difflib.get_close_matches(name, options, n=1, cutoff=0.75)):
            raise ConfigError(f"there is no option {name}; did you mean {near[0]}?")
        from holdfast.recipe import Config
        from holdfast.recipe.overrides import split_overrides

        _, _, used = next(split_overrides(words, Config))
        settings += used
        del words[: len(used)]
    return settings, rest


class SettingsCommand(TyperCommand):
    """A command that also accepts settings: it puts them into `ctx.meta["settings"]`, as a list of words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the settings out of the arguments. Raises `ConfigError` for an unknown one."""
        options = {
            option
            for parameter in self.get_params(ctx)
            for option in (*getattr(parameter, "opts", ()), *getattr(parameter, "secondary_opts", ()))
        }
        try:
            ctx.meta["settings"], rest = split(args, options)
        except ConfigError:
            if not ctx.resilient_parsing:
                raise
            ctx.meta["settings"], rest = None, []  # a shell completes a line that ends in a setting without its value
        return super().parse_args(ctx, rest)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The options that begin like this, then the settings."""
        from holdfast.recipe import setting_names

        found = [f"--{name}" for name in setting_names() if f"--{name}".startswith(incomplete) and incomplete > "--"]
        return [*super().shell_complete(ctx, incomplete), *(SimpleNamespace(value=n, help=None) for n in found)]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line, with the form of a setting."""
        return [*super().collect_usage_pieces(ctx), "[--section.key value]..."]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help text, then a table of the settings that are changed first."""
        super().format_help(ctx, formatter)
        _print_settings()


def _print_settings() -> None:
    from holdfast.cli.describe import USEFUL, default_of

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    for name, meaning in USEFUL.items():
        table.add_row(f"--{name}", Text.assemble(meaning, (f" [{default_of(name)}]", "dim")))
    table.add_row("--unset KEY", "remove a setting from the recipe")
    note = Text("[default, if the recipe sets no value]  All settings: holdfast recipe show", style="dim")
    panel = Panel(Group(table, note), title="Settings", title_align="left", border_style="dim")
    out().print(panel, soft_wrap=False)
