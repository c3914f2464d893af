"""The sources as syntax trees, read once for all contracts."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def sources() -> Mapping[str, ast.Module]:
    """Dotted module name -> syntax tree, for every module of the package."""
    trees = {}
    for path in sorted((SRC / "holdfast").rglob("*.py")):
        name = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        trees[name] = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    assert "holdfast.losses.penalties" in trees
    return trees
