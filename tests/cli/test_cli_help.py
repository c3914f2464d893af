from __future__ import annotations

import pickle
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from holdfast import __version__
from holdfast.cli import plugins
from holdfast.cli.describe import USEFUL, default_of
from holdfast.cli.main import app
from holdfast.recipe import setting_names

from .conftest import printed

Run = Callable[..., Any]
RESEARCH = {"table", "reproduce", "baseline", "study-probe"}
"""Commands that are not the library's."""


def test_help_teaches_what_exists(holdfast: Run) -> None:
    text = holdfast("--help").stdout
    for command in ("holdfast train", "holdfast ask", "holdfast recipe show > my.toml"):
        assert f" {command} " in text
    assert holdfast("-h").stdout == text
    assert max(map(len, text.splitlines())) <= 80


def test_no_arguments_show_the_help(holdfast: Run) -> None:
    assert "Start here" in holdfast(code=2).output


def test_help_of_train_lists_useful_settings_on_one_line_each(holdfast: Run) -> None:
    lines = holdfast("train", "--help").stdout.splitlines()
    for name, meaning in USEFUL.items():
        (line,) = (line for line in lines if line.startswith(f"│ --{name} "))
        assert f"{meaning} [{default_of(name)}]" in line
    assert any("holdfast recipe show" in line for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", setting_names())
def test_every_setting_is_described(name: str) -> None:
    from holdfast.recipe import Config
    from holdfast.recipe.settings import setting

    info = setting(Config, name)
    assert info is not None
    assert info.description, f"{name} has no docstring: `holdfast recipe show` would print it unexplained"


def test_version(holdfast: Run) -> None:
    assert holdfast("--version").stdout == f"holdfast {__version__}\n"


def test_help_loads_neither_torch_nor_a_schema() -> None:
    # The first thing a newcomer types must answer at once. `train --help` lists settings, so it may load the schema.
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom holdfast.cli.main import app\n"
        "assert CliRunner().invoke(app, sys.argv[1:]).exit_code == 0\nprint(*sys.modules, sep='\\n')"
    )

    def loaded(*arguments: str) -> set[str]:
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    heavy = {"torch", "transformers", "tokenizers", "Stemmer", "numpy"}
    hosts = {"trl", "verl", "ray", "vllm", "faiss", "fastapi", "peft"}
    ours = {"holdfast.evaluate", "holdfast.agent", "holdfast.recipe"}
    assert not loaded("--help") & {*heavy, *hosts, *ours, "pydantic"}
    assert not loaded("train", "--help") & heavy
    assert not loaded("train", "--dry-run") & (heavy - {"numpy"})
    assert not loaded("recipe", "show") & heavy


def _commands() -> list[tuple[str, ...]]:
    from typer.main import get_command

    def below(command: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        inner = getattr(command, "commands", {})
        return [path, *(leaf for name, child in inner.items() for leaf in below(child, (*path, name)))]

    return [path for path in below(get_command(app), ()) if path and path[0] not in RESEARCH]


def _command(path: tuple[str, ...]) -> Any:
    from typer.main import get_command

    command: Any = get_command(app)
    for name in path:
        command = command.commands[name]
    return command


@pytest.mark.parametrize("path", _commands(), ids=" ".join)
def test_every_help_says_what_it_does_with_an_example_and_fits(path: tuple[str, ...], holdfast: Run) -> None:
    text = re.sub(r"\[/?cyan\]", "", _command(path).help)
    first, _, rest = text.partition("\n\n")
    assert first.endswith(".") and first.count(". ") <= 1, "the first paragraph is a sentence"
    assert f"holdfast {path[0]}" in text or path[-1] == "list", "there is no example"
    body = [line for line in rest.splitlines() if "holdfast " not in line]
    assert max(map(len, body), default=0) <= 78, "a longer line would wrap twice"
    assert max(map(len, holdfast(*path, "--help").stdout.splitlines())) <= 80


@pytest.mark.parametrize("path", _commands(), ids=" ".join)
def test_every_option_is_explained(path: tuple[str, ...]) -> None:
    for parameter in _command(path).params:
        assert parameter.help and parameter.help.endswith((".", "…")), parameter.name


def test_the_methods_named_in_the_help_are_those_that_exist() -> None:
    from holdfast.cli.evaluate import METHOD_NAMES
    from holdfast.evaluate.methods import METHODS

    assert tuple(METHODS) == METHOD_NAMES


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
    panel = text[text.index(plugins.PANEL) :]
    assert "toys A group of commands." in panel and "alone One command." in panel


def test_nothing_is_looked_up_for_a_command_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda **_: pytest.fail("looked up"))
    printed("diagnose", "--help")


def test_the_entry_points_of_the_study_can_be_loaded() -> None:
    text = (ROOT / "research" / "pyproject.toml").read_text(encoding="utf-8")
    commands = tomllib.loads(text)["project"]["entry-points"][plugins.GROUP]
    assert list(commands) == ["reproduce", "table", "baseline", "study-probe"]
    for name, value in commands.items():
        assert isinstance(EntryPoint(name, value, plugins.GROUP).load(), typer.Typer)
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
