"""A command that takes every setting of a recipe as an option: `--section.key value`."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import Any

from typer.core import TyperCommand


def split(arguments: Sequence[str], own: Collection[str]) -> tuple[list[str], list[str]]:
    """Arguments that are settings, and the rest in order.

    Whatever starts with `--` and is not one of the command's `own` options is a setting, and the word behind it, unless
    that starts with `--` too, is its value. A true-or-false setting takes a word only if it is a truth value.

    >>> split(["my.toml", "--train.steps", "5", "--dry-run", "--run.name=x"], {"--dry-run"})
    (['--train.steps', '5', '--run.name=x'], ['my.toml', '--dry-run'])
    """
    settings: list[str] = []
    rest: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if not word.startswith("--") or name in own:
            rest.append(word)
            continue
        settings.append(word)
        if not equals and words and not words[0].startswith("--") and (not _is_flag(name) or _is_truth(words[0])):
            settings.append(words.pop(0))
    return settings, rest


class SettingsCommand(TyperCommand):
    """Leaves settings in `ctx.meta["settings"]`, unread, and lists the useful ones in its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {option for parameter in self.get_params(ctx) for option in getattr(parameter, "opts", ())}
        settings, rest = split(args, own)
        for word in settings:
            if word.startswith("--"):  # not a value
                _refuse_misspelt_option(word.partition("=")[0], own)
        ctx.meta["settings"] = settings
        return super().parse_args(ctx, rest)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[--section.key value]..."]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        _print_settings()


def _is_flag(option: str) -> bool:
    from holdfast.config import Config
    from holdfast.section import setting

    info = setting(Config, option.removeprefix("--").replace("-", "_"))
    return info is not None and info.annotation is bool


def _is_truth(word: str) -> bool:
    from holdfast.settings import TRUTH

    return word.lower() in TRUTH


def _refuse_misspelt_option(name: str, own: Collection[str]) -> None:
    """`--dryrun` is nearer to an option of the command than to any setting."""
    from holdfast.errors import ConfigError

    if "." not in name and (near := difflib.get_close_matches(name, own, n=1, cutoff=0.75)):
        raise ConfigError(f"there is no option {name}; did you mean {near[0]}?")


def _print_settings() -> None:
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.describe import USEFUL, default_of
    from holdfast.cli.terminal import out

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    for name, meaning in USEFUL.items():
        table.add_row(f"--{name}", Text.assemble(meaning, (f" [{default_of(name)}]", "dim")))
    note = Text("[in brackets: the default]  train --dry-run prints every setting, explained.", style="dim")
    panel = Panel(Group(table, note), title="Settings", title_align="left", border_style="dim")
    out().print(panel, soft_wrap=False)
