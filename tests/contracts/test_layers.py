"""Imports point down: a module may import its own layer and those below, and no two parts import each other."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping

import pytest

# From the bottom. A name covers the modules below it, unless a longer name does. `losses` imports nothing of ours.
LAYERS = (
    "losses errors",
    "environment files importing jsonl onednn section refusals settings scoring trailing trajectory diagnostics.codes",
    "batch collapse data models penalties rewards retrieval.types retrieval.wire",
    "config run_folder search",
    "diagnostics listener tracking starts",
    "retrieval datasets world rollout",
    "metrics packed logprobs language_model train.checkpoint",
    "loading",
    "train evals probes lab adapters launch",
    "cli __main__",
)
LAYER = {name: level for level, names in enumerate(LAYERS) for name in names.split()}
TOP = len(LAYERS) - 1


def unit_of(module: str) -> str | None:
    """`holdfast.retrieval.bm25` -> `retrieval`; None for what is in no layer."""
    name = module.removeprefix("holdfast.")
    return max((unit for unit in LAYER if name == unit or name.startswith(unit + ".")), key=len, default=None)


def imports(tree: ast.Module, module: str, known: set[str]) -> Iterator[tuple[int, str]]:
    """(line, full name) of everything a module imports, at any depth, `importlib.import_module("x")` included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: holdfast.losses.llds, level 1 -> holdfast.losses
                parts = module.split(".")
                package = parts if module in {m.rpartition(".")[0] for m in known} else parts[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *base.split(".")]).rstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}"  # `from holdfast.train import trainer` names a module
                yield node.lineno, inner if inner in known else base
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func)
            if called in ("import_module", "importlib.import_module", "__import__"):
                yield node.lineno, str(node.args[0].value)


def violations(sources: Mapping[str, ast.Module]) -> list[str]:
    """Every import that the layers forbid, and every cycle between parts, as a sentence."""
    wrong = []
    edges: dict[str, set[str]] = {}
    for module, tree in sources.items():
        unit = unit_of(module)
        if module != "holdfast" and unit is None:
            wrong.append(f"{module}: is in no layer")
            continue
        for line, name in imports(tree, module, set(sources)):
            top, target = name.partition(".")[0], unit_of(name)
            if module == "holdfast" or top == "holdfast_research":
                wrong.append(f"{module}:{line}: imports {name}")
            elif top != "holdfast":
                if unit == "losses" and top not in {*sys.stdlib_module_names, "torch"}:
                    wrong.append(f"{module}:{line}: losses may import torch only, not {name}")
            elif name == "holdfast":  # `from holdfast import __version__`
                if unit == "losses":
                    wrong.append(f"{module}:{line}: losses may import torch only, not {name}")
            elif target != unit:
                if target is None or LAYER[target] > LAYER[unit] or unit == "losses":
                    wrong.append(f"{module}:{line}: {unit} may not import {name}")
                elif LAYER[unit] < TOP:
                    edges.setdefault(unit, set()).add(target)
    return wrong + [f"{unit}: imports itself through {path}" for unit, path in cycles(edges)]


def cycles(edges: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    """(unit, the units between) of each unit that reaches itself."""
    for unit in edges:
        seen: set[str] = set()
        queue = [(target, target) for target in edges[unit]]
        while queue:
            below, path = queue.pop()
            if below == unit:
                yield unit, path.removesuffix(f" -> {unit}")
                break
            if below not in seen:
                seen.add(below)
                queue += [(target, f"{path} -> {target}") for target in edges.get(below, ())]


def test_imports_point_down(sources: Mapping[str, ast.Module]) -> None:
    assert violations(sources) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("holdfast.losses.llds", "from holdfast.errors import ConfigError"),
        ("holdfast.losses.llds", "import numpy"),
        ("holdfast.losses.llds", "def f():\n    from holdfast.batch import TokenBatch"),
        ("holdfast.diagnostics.rules", "import holdfast.train.trainer"),
        ("holdfast.retrieval.types", "from holdfast.retrieval.bm25 import BM25Retriever"),
        ("holdfast.retrieval.types", "from .bm25 import BM25Retriever"),
        ("holdfast.rollout.loop", "from holdfast import loading"),
        ("holdfast.rollout.loop", "import importlib\nx = importlib.import_module('holdfast.train')"),
        ("holdfast.world.facts", "from holdfast.train import trainer"),
        ("holdfast.search.env", "from holdfast.run_folder import CONFIG\nfrom holdfast.search_more import x"),
        ("holdfast.cli.main", "import holdfast_research"),
        ("holdfast.brand_new", "import json"),
        ("holdfast", "import torch"),
    ],
)
def test_a_forbidden_import_is_seen(sources: Mapping[str, ast.Module], module: str, source: str) -> None:
    changed = {**sources, "holdfast.train.trainer": ast.parse(""), module: ast.parse(source)}
    assert [v for v in violations(changed) if v.startswith((module + ":", module + " "))]


def test_a_cycle_within_a_layer_is_seen() -> None:
    both = {
        "holdfast.environment": ast.parse("import holdfast.files"),
        "holdfast.files": ast.parse("import holdfast.environment"),
    }
    assert violations(both) == [
        "environment: imports itself through files",
        "files: imports itself through environment",
    ]
