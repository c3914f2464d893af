"""The site's page of commands: the help of each, those that the research package adds included."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from holdfast.cli.main import PANEL
from holdfast_research.__main__ import program

HEAD = f"""\
# Commands

Every command of `holdfast`, with its options: what `--help` prints.

```sh
holdfast diagnose --help
```

The last commands, "{PANEL}", come with the research package: `pip install -e research`. Where the
usage says `[--section.key value]`, every [setting](settings.md) is an option too. Exit code 2 means an error.
"""
MARKUP = re.compile(r"\[/?(?:cyan|bold|dim)\]")
EXAMPLE = re.compile(r"\[cyan\](.*?)\[/cyan\](?: {2,}(\S.*))?", re.S)


def prose(text: str) -> str:
    """A help text as Markdown: what is coloured becomes code, and what looks like an HTML tag stays text."""
    return re.sub(r"\[cyan\](.*?)\[/cyan\]", r"`\1`", text).replace("<", "&lt;")


def body(text: str) -> Iterator[str]:
    """The paragraphs of a help text; neighbouring examples become one block of code."""
    examples: list[tuple[str, str | None]] = []
    for paragraph in [*text.split("\n\n"), ""]:
        # What a command does stands behind it, or in the line below it.
        lines = re.sub(r"(\[/cyan\])\n +(?!\[)", r"\1  ", paragraph).splitlines()
        matches = [EXAMPLE.fullmatch(line.strip()) for line in lines]
        if matches and all(matches):
            examples += [(match[1], match[2]) for match in matches if match]
            continue
        if examples:
            yield from ("```sh", *commented(examples), "```", "")
            examples = []
        if "\n  " in f"\n{paragraph}":  # a table of its own
            yield from ("```text", MARKUP.sub("", paragraph), "```", "")
        elif paragraph:
            yield from (prose(paragraph), "")


def commented(examples: list[tuple[str, str | None]]) -> Iterator[str]:
    """Commands and what they do, in two columns."""
    width = max(len(command) for command, _ in examples)
    for command, comment in examples:
        yield f"{command:{width}}    # {comment}" if comment else command


def cell(text: str) -> str:
    """The text as a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def options(command: Any, context: Any) -> Iterator[str]:
    """A table of the arguments and options, that of --help left out."""
    rows = [parameter.get_help_record(context) for parameter in command.get_params(context) if parameter.name != "help"]
    if rows := [row for row in rows if row]:
        yield from ("| argument or option | meaning |", "|---|---|")
        for name, meaning in rows:
            name = re.sub(r" <(?:str|path|list\[\w+\]|trl\|verl)>$", "", name).replace("<int range>", "N")
            yield f"| `{cell(name.replace('<float range>', 'N'))}` | {cell(prose(in_signs(meaning)))} |"
        yield ""


def in_signs(meaning: str) -> str:
    """A help text with its bounds as signs.

    >>> in_signs("Port.  [default: 8000; 0<=x<=65535]"), in_signs("Time.  [x>=0.1]")
    ('Port.  [default: 8000; 0 to 65535]', 'Time.  [≥ 0.1]')
    """
    meaning = re.sub(r"([\d.]+)<=x<=([\d.]+)\]$", r"\1 to \2]", meaning)
    return re.sub(r"x>=([\d.]+)\]$", r"≥ \1]", meaning)


def usage(command: Any, context: Any) -> str:
    """The line that --help begins with."""
    pieces = " ".join(command.collect_usage_pieces(context))
    return f"{context.command_path} " + re.sub(r"{([^}|]+?)(?:\.\.\.)?}", r"\1", pieces).replace("...]...", "]...")


def part(command: Any, context: Any, level: int) -> Iterator[str]:
    """A command and those in it."""
    yield from (f"{'#' * level} {context.command_path}", "")
    if not hasattr(command, "commands"):
        yield from ("```text", usage(command, context), "```", "")
    yield from body(command.help or "")
    yield from options(command, context)
    for inner, inside in children(command, context):
        yield from part(inner, inside, level + 1)


def children(command: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """The commands in a command, each with its context."""
    for name in command.list_commands(context) if hasattr(command, "commands") else ():
        _, inner, _ = command.resolve_command(context, [name])  # as a call does, which imports its file
        yield inner, inner.context_class(inner, info_name=name, parent=context)


def page() -> str:
    """The text of the page."""
    group = program()
    lines = [HEAD]
    panel = ""
    for command, context in children(group, group.context_class(group, info_name="holdfast")):
        if command.rich_help_panel != panel:
            panel = command.rich_help_panel
            lines += [f"## {panel}", ""]
        lines += part(command, context, 3)
    return "\n".join(lines).rstrip("\n") + "\n"
