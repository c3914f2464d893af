"""Small files, nothing unfinished, and loss functions whose docstrings answer what a caller asks."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast import losses

MOST_LINES = 600
MOST_PARAMETERS = 6
SHAPE = re.compile(r"\[\.\.\., ?\w+\]|\[[A-Z](, ?\w+)*\]|\b0-d\b|[Ss]calar")


def test_no_file_is_long(root: Path) -> None:
    lengths = {p.relative_to(root): len(p.read_text().splitlines()) for p in (root / "src").rglob("*.py")}
    long = {str(path): lines for path, lines in lengths.items() if lines > MOST_LINES}
    assert not long, f"over {MOST_LINES} lines: {long}"


def too_many_parameters(tree: ast.Module) -> list[str]:
    """Functions and methods of a module that take more than `MOST_PARAMETERS`, `self` and `cls` not counted."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            names += [a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None]
            if len([name for name in names if name not in ("self", "cls")]) > MOST_PARAMETERS:
                found.append(node.name)
    return found


def test_no_function_of_the_training_run_takes_many_parameters(sources: Mapping[str, ast.Module]) -> None:
    many = {name: too_many_parameters(tree) for name, tree in sources.items() if name.startswith("holdfast.train")}
    assert len(many) > 15
    assert not {name: functions for name, functions in many.items() if functions}, "some of them are one value"


@pytest.mark.parametrize(
    ("parameters", "many"),
    [("a, b, c, d, e, f", False), ("self, a, b, c, *, d, e, f", False), ("a, b, /, c, *d, e, f, **g", True)],
)
def test_parameters_are_counted(parameters: str, many: bool) -> None:
    assert too_many_parameters(ast.parse(f"def f({parameters}): ...")) == ["f"] * many


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


@pytest.mark.parametrize("name", losses.__all__)
def test_a_loss_says_its_shapes_and_errors(name: str) -> None:
    function = getattr(losses, name)
    text = inspect.getdoc(function) or ""
    if "(same arguments)" not in text:
        unnamed = [p for p in inspect.signature(function).parameters if not re.search(rf"\b{p}\b", text)]
        assert not unnamed, "parameters the docstring never names"
    assert re.search(r"^Returns:", text, re.M)
    assert re.search(r"^Raises:", text, re.M)
    takes_tensors = [p for p in inspect.signature(function).parameters.values() if "Tensor" in str(p.annotation)]
    if any("float" not in str(p.annotation) for p in takes_tensors):
        _, _, returned = text.partition("Returns:")
        assert SHAPE.search(text), "no shape anywhere"
        assert SHAPE.search(returned), "no shape after Returns"
