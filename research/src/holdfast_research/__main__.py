"""`python -m holdfast_research`: `holdfast` with the commands of this package, installed or not."""

from __future__ import annotations

from typing import Any

from typer.main import get_command

from holdfast.cli.main import app, command_of
from holdfast_research.commands import baseline, reproduce, study_probe, table

COMMANDS = {
    "reproduce": reproduce.app,
    "table": table.app,
    "baseline": baseline.app,
    "study-probe": study_probe.app,
}


def program() -> Any:
    """The command `holdfast`, with those of this package."""
    group: Any = get_command(app)
    for name, plugin in COMMANDS.items():
        group.add_command(command_of(name, plugin), name)
    return group


if __name__ == "__main__":
    program()(prog_name="holdfast")
