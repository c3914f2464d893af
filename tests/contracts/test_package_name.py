"""PyPI's `holdfast` is another project: no text may tell people to install it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from holdfast.base.errors import MissingExtra

ANOTHER_PROJECT = re.compile(
    r"(pip install|pipx run|pipx install|uvx|uv add|uv pip install)(?! --spec)[^\n\"]*?[ ']holdfast(?=[\s'\"`\[=<>~]|$)"
    r"|['\"`]holdfast\["
)
SUFFIXES = {".py", ".md", ".toml", ".sh", ".txt", ".cff", ".yml", ".yaml", ".ipynb"}
FOLDERS = ("src", "tests", "docs", "examples", "benchmarks", "research", "skills", ".github", ".ci")
EXTRAS = re.compile(r"(?:holdfast-rl|clone|(?<=['\"])\.)\[([a-z,]+)\]|MissingExtra\([^)]*?, ?\"(\w+)\"\)")
"""`pip install 'holdfast-rl[train,trl]'`, `pip install -e '.[dev]'`, and the errors that say so."""


def texts(root: Path) -> list[Path]:
    """Every file that may tell people what to install, but this one."""
    files = [path for path in root.glob("*") if path.suffix in SUFFIXES or path.name == "Makefile"]
    for folder in FOLDERS:
        files += [path for path in (root / folder).rglob("*") if path.suffix in SUFFIXES or folder == ".ci"]
    assert len(files) > 200
    return [path for path in files if path != Path(__file__)]


def test_every_text_installs_holdfast_rl(root: Path) -> None:
    wrong = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in texts(root)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if ANOTHER_PROJECT.search(line)
    ]
    assert not wrong


def test_extras_that_are_named_exist(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    named: dict[str, set[str]] = {}
    for path in texts(root):
        for found in EXTRAS.findall(path.read_text(encoding="utf-8")):
            for extra in "".join(found).split(","):
                named.setdefault(extra, set()).add(path.relative_to(root).as_posix())
    assert {"train", "trl", "dev"} <= set(named)
    unknown = set(named) - set(project["optional-dependencies"])
    assert not unknown, {extra: named[extra] for extra in unknown}
    assert "pip install 'holdfast-rl[train]'" in str(MissingExtra("torch", "train"))
