"""Small files, nothing unfinished, and loss functions whose docstrings answer what a caller asks."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

MOST_LINES = 600


def test_no_file_is_long(root: Path) -> None:
    lengths = {p.relative_to(root): len(p.read_text().splitlines()) for p in (root / "src").rglob("*.py")}
    long = {str(path): lines for path, lines in lengths.items() if lines > MOST_LINES}
    assert not long, f"over {MOST_LINES} lines: {long}"


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
