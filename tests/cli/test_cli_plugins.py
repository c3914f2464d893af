"""Commands that other packages add to `holdfast`, by entry points."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from holdfast.cli import plugins
from holdfast.cli.main import app

ROOT = Path(__file__).parents[2]
MODULE = """
import typer

group = typer.Typer(add_completion=False, help="A group of commands.")


@group.command("greet")
def greet(name: str) -> None:
    print(f"hello {name}")


@group.command("leave")
def leave() -> None:
    print("bye")


def alone(count: int = 1) -> None:
    \"\"\"One command.\"\"\"
    print("alone " * count)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with two commands, and one whose module is missing."""
    (tmp_path / "toy_commands.py").write_text(MODULE)
    info = tmp_path / "toy_commands-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-commands\nVersion: 1\n")
    points = ("toys = toy_commands:group", "alone = toy_commands:alone", "broken = no_such_module:app")
    (info / "entry_points.txt").write_text("\n".join(["[holdfast.commands]", *points]))
    monkeypatch.syspath_prepend(tmp_path)


def holdfast(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.mark.usefixtures("installed")
def test_a_group_and_a_function_are_commands() -> None:
    assert holdfast("toys", "greet", "Mora") == "hello Mora"
    assert holdfast("alone", "--count", "2") == "alone alone"
    assert "cannot be loaded" in holdfast("broken", code=2)


@pytest.mark.usefixtures("installed")
def test_help_lists_them_in_a_panel() -> None:
    text = holdfast("--help")
    panel = text[text.index(plugins.PANEL) :]
    assert "toys A group of commands." in panel.replace("│ ", "") and "alone One command." in panel.replace("│ ", "")


def test_nothing_is_looked_up_for_a_command_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda **_: pytest.fail("looked up"))
    holdfast("diagnose", "--help")


def test_the_entry_points_of_the_study_can_be_loaded() -> None:
    text = (ROOT / "research" / "pyproject.toml").read_text(encoding="utf-8")
    commands = tomllib.loads(text)["project"]["entry-points"][plugins.GROUP]
    assert list(commands) == ["reproduce", "table", "baseline", "study-probe"]
    for name, value in commands.items():
        assert isinstance(EntryPoint(name, value, plugins.GROUP).load(), typer.Typer)
    code = "import sys; sys.modules.update(torch=None); from holdfast_research.__main__ import program"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
