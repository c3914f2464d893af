from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import __version__
from holdfast.cli.describe import USEFUL, default_of
from holdfast.config import setting_names

Run = Callable[..., Any]


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


def test_useful_settings_exist() -> None:
    assert set(USEFUL) <= set(setting_names())


@pytest.mark.parametrize("name", setting_names())
def test_every_setting_is_described(name: str) -> None:
    from holdfast.config import Config
    from holdfast.settings import setting

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

    heavy = {"torch", "transformers", "tokenizers", "bm25s", "numpy"}
    assert not loaded("--help") & {*heavy, "pydantic"}
    assert not loaded("train", "--help") & heavy
    assert not loaded("train", "--dry-run") & heavy
    assert not loaded("recipe", "show") & heavy
