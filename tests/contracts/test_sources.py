"""Small files, nothing unfinished, every setting read, and no text that tells people to install another project."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from holdfast.agent.rewards import PARTS
from holdfast.base.errors import MissingExtra
from holdfast.methods.operations import OPERATIONS, Operation
from holdfast.methods.registry import METHODS, NTHR, InterleavedSFT, ScoreCentering
from holdfast.recipe import setting_names

MAX_LINES = 450


def test_no_file_is_long(root: Path) -> None:
    lengths = {p.relative_to(root): len(p.read_text().splitlines()) for p in (root / "src").rglob("*.py")}
    long = {str(path): lines for path, lines in lengths.items() if lines > MAX_LINES}
    assert not long, f"over {MAX_LINES} lines: {long}"


def test_nothing_is_unfinished(sources: Mapping[str, ast.Module], root: Path) -> None:
    notes = re.compile(r"\b(TODO|FIXME)\b")
    wrong = [str(path) for path in (root / "src").rglob("*.py") if notes.search(path.read_text(encoding="utf-8"))]
    wrong += [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module, tree in sources.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and node.exc and "NotImplementedError" in ast.unparse(node.exc)
    ]
    assert not wrong


# ---- a setting that nothing reads is a lie to the user

CHECKERS = ("holdfast.recipe", "holdfast.base.section")  # to check is not to use
HANDED_ON = {"reward": {*PARTS, "custom"}}
"""Section -> its keys that the receiver of `Reward.weights()` knows."""


def attributes(sources: Mapping[str, ast.Module]) -> set[str]:
    """Names that are read as attributes (`x.name`, `getattr(x, "name")`)."""
    names: set[str] = set()
    for module, tree in sources.items():
        if module.startswith(CHECKERS):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                names.add(node.attr)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
                names.add(ast.literal_eval(node.args[1]) if isinstance(node.args[1], ast.Constant) else "")
    return names


def test_every_setting_is_read(sources: Mapping[str, ast.Module]) -> None:
    names, missing = attributes(sources), []
    for dotted in setting_names():
        section, _, key = dotted.rpartition(".")
        if key not in names and key not in HANDED_ON.get(section, ()):
            missing.append(dotted)
    assert not missing, f"nothing reads {missing}: read it, or take it out of the schema"


def test_every_method_does_something() -> None:
    """A hook with a misspelt name would never be called."""
    hooks = {name for name in vars(Operation) if not name.startswith("_")}
    in_one_place = {NTHR, ScoreCentering, InterleavedSFT}  # written where they happen, in `train/`
    assert set(OPERATIONS) | in_one_place == set(METHODS.values())
    for kind in OPERATIONS.values():
        own = {name for name in vars(kind) if not name.startswith("_")}
        assert own and own <= hooks, f"{kind.__name__} overrides no hook of Operation; is one misspelt?"


def test_a_method_is_listed_under_its_name() -> None:
    assert {name: kind.name for name, kind in METHODS.items()} == {name: name for name in METHODS}


# ---- what to install

# PyPI's `holdfast` is one.
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
