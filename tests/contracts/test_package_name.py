"""PyPI's `holdfast` is another project: no text may tell people to install it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from holdfast.errors import MissingExtra

ANOTHER_PROJECT = re.compile(
    r"(pip install|pipx run|pipx install|uvx|uv add|uv pip install)(?! --spec)[^\n\"]*?[ ']holdfast(?=[\s'\"`\[=<>~]|$)"
    r"|['\"`]holdfast\["
)
SUFFIXES = {".py", ".md", ".toml", ".sh", ".txt", ".cff", ".yml", ".yaml"}
FOLDERS = ("src", "tests", "docs", "examples", "benchmarks", "research", ".github")


def test_every_text_installs_holdfast_rl(root: Path) -> None:
    files = [path for path in root.glob("*") if path.suffix in SUFFIXES]
    files += [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in SUFFIXES]
    assert len(files) > 200
    wrong = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in files
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if ANOTHER_PROJECT.search(line)
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("pip install holdfast", True),
        ("pip install 'holdfast[trl]'", True),
        ("needs `holdfast[trl]`", True),
        ("uv pip install -U holdfast==0.1", True),
        ("pip install 'holdfast-rl[trl]'", False),
        ("pip install -e '.[train]' && holdfast-rl", False),
        ("pipx run --spec holdfast-rl holdfast diagnose", False),
    ],
)
def test_what_the_pattern_finds(line: str, wrong: bool) -> None:
    assert bool(ANOTHER_PROJECT.search(line)) is wrong


def test_extras_named_in_messages_exist(root: Path) -> None:
    extras = set(tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = {
        extra
        for path in (root / "src").rglob("*.py")
        for found in re.findall(r'MissingExtra\([^)]*?, ?"(\w+)"\)|holdfast-rl\[([\w,]+)\]', path.read_text())
        for extra in "".join(found).split(",")
    }
    assert {"train", "trl"} <= named <= extras
    assert "pip install 'holdfast-rl[train]'" in str(MissingExtra("torch", "train"))
