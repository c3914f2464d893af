from __future__ import annotations

import pickle
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from holdfast.cli import main
from holdfast.cli.main import COMMANDS, app, command_named

from .conftest import printed


def test_the_list_of_commands_says_what_their_own_help_says() -> None:
    for name, entry in COMMANDS.items():
        said, panel = command_named(name).help.partition("\n\n")[0], command_named(name).rich_help_panel
        assert (" ".join(said.split()), panel) == (entry.does, entry.panel)


def test_an_error_has_its_hint_on_a_line_of_its_own_and_in_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    from holdfast.base.errors import ConfigError
    from holdfast.cli.terminal import print_error

    error = ConfigError("it does not work", hint="holdfast recipe list")
    print_error(error)
    assert capsys.readouterr().err == "error: it does not work\nhint: holdfast recipe list\n"
    assert str(error) == "it does not work"
    assert error.__notes__ == ["hint: holdfast recipe list"]
    assert pickle.loads(pickle.dumps(error)).hint == error.hint


# ---- commands that other packages add to `holdfast`


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


@pytest.mark.usefixtures("installed")
def test_a_group_and_a_function_are_commands() -> None:
    assert printed("toys", "greet", "Mora") == "hello Mora"
    assert printed("alone", "--count", "2") == "alone alone"
    assert "cannot be loaded" in printed("broken", code=2)


@pytest.mark.usefixtures("installed")
def test_help_lists_them_in_a_panel() -> None:
    text = printed("--help")
    panel = text[text.index(main.PANEL) :]
    assert "toys A group of commands." in panel and "alone One command." in panel


def test_the_entry_points_of_the_study_can_be_loaded() -> None:
    text = (ROOT / "research" / "pyproject.toml").read_text(encoding="utf-8")
    commands = tomllib.loads(text)["project"]["entry-points"][main.GROUP]
    assert list(commands) == ["reproduce", "table", "baseline", "study-probe"]
    for name, value in commands.items():
        assert isinstance(EntryPoint(name, value, main.GROUP).load(), typer.Typer)
    code = "import sys; sys.modules.update(torch=None); from holdfast_research.__main__ import program"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# ---- completion


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("holdfast ru", ["runs"]),
        ("holdfast --install-c", ["--install-completion"]),
        ("holdfast train fl", ["flaky"]),
        ("holdfast train m", ["my.toml"]),
        ("holdfast train my.toml --loss.penalty.coef 0.5 --dry", ["--dry-run"]),
        ("holdfast train my.toml --loss.penalty.coef 0.5 --loss.penalty.g", ["--loss.penalty.gate"]),
        ("holdfast train --loss.penalty.coef=0.5 m", ["my.toml"]),
        ("holdfast train --retrieval.corpus m", []),  # files, which the shell completes by itself
        ("holdfast train --no.such 1 --loss.penalty.g", ["--loss.penalty.gate"]),
        ("holdfast resume m", ["mine"]),
        ("holdfast eval run m", ["mine"]),
    ],
)
def test_a_shell_completes(line: str, offered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.toml").touch()
    (tmp_path / "my.toml").touch()
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    done = CliRunner().invoke(app, [], env={"_HOLDFAST_COMPLETE": "complete_bash", **words}, prog_name="holdfast")
    assert done.output.split() == offered
