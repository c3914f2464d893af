"""Which module may import which: arrows point one way only. A new module needs a row, which is the place to think."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping

import pytest

# unit -> units it may import. The unit of a module is the longest row that is a prefix of its name. Imports inside a
# unit, and of `errors`, are free; `losses` alone may not even import that.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "section": set(),
    "refusals": {"section"},
    "settings": {"section", "refusals"},
    "importing": set(),
    # A section checks what it holds: codes of findings, an address. Code that a recipe names is tried before training.
    "config": {
        "section",
        "refusals",
        "settings",
        "importing",
        "penalties",
        "rewards",
        "diagnostics.codes",
        "retrieval.wire",
    },
    "scoring": set(),
    "trajectory": set(),
    "trailing": set(),
    "collapse": {"trailing"},
    "files": set(),
    # Names of files; the schema is loaded when a recipe is written or read.
    "run_folder": {"config", "files"},
    # What listeners are told are values of others, named for the type checker.
    "listener": {"data", "diagnostics", "trajectory"},
    "versions": set(),
    "jsonl": set(),
    "losses": set(),
    "data": {"jsonl", "scoring"},
    "batch": {"trajectory"},
    "hub": set(),
    # Files of others carry a prompt: the protocol's where they bring none.
    "datasets": {"data", "hub", "jsonl", "scoring", "search"},
    "rewards": {"trajectory", "scoring", "importing"},
    "penalties": {"section", "refusals", "importing", "losses"},
    "metrics": {"batch", "rollout", "trajectory"},
    "retrieval.types": {"trajectory"},
    "retrieval.wire": {"retrieval.types"},
    "retrieval": {"retrieval.types", "retrieval.wire", "jsonl", "listener"},
    "search": {"trajectory", "retrieval.types"},
    "diagnostics": {"collapse", "config", "diagnostics.codes", "files", "run_folder", "trailing"},
    "diagnostics.codes": set(),
    "diagnostics.report": {"collapse", "diagnostics", "run_folder"},
    "rollout": {"trajectory", "search", "retrieval.types"},
    "tracking": {"config", "jsonl", "listener", "run_folder"},
    "logprobs": {"rollout"},
    "language_model": {"config", "hub", "logprobs", "search"},
    # From a recipe to what it names; an agent of a run is the model of a checkpoint.
    "loading": {
        "config",
        "data",
        "jsonl",
        "language_model",
        "retrieval",
        "retrieval.types",
        "rollout",
        "run_folder",
        "search",
        "train.checkpoint",
        "world",
    },
    # The world's questions and passages are ordinary Examples and Documents, its scripts speak the agent's protocol
    # to a retriever, and its size is a section of the recipe.
    "world": {"config", "data", "trajectory", "retrieval.types", "search"},
    # The host of an adapter may be named nowhere else.
    "adapters": set(),
    "adapters.trl_observe": {"losses", "metrics", "rollout", "trajectory"},
    "adapters.verl_losses": {"penalties"},
    "adapters.verl_term": {"adapters.verl_losses", "losses", "metrics", "penalties"},
    "adapters.verl": {"adapters.verl_losses", "adapters.verl_term", "penalties"},
    "adapters.verl_legacy": {"adapters.verl_losses", "adapters.verl_term", "penalties"},
    "adapters.verl_check": {"adapters.verl", "adapters.verl_losses", "adapters.verl_term"},
    "adapters.verl_agent": {"retrieval", "rewards", "rollout", "search", "trajectory"},
    "adapters.trl_watch": set(),
    "adapters.trl": {"adapters.trl_observe", "adapters.trl_watch", "losses", "penalties", "trajectory"},
    "adapters.trl_monitor": {"adapters.trl_watch", "diagnostics", "diagnostics.codes"},
    "adapters.trl_vllm": {"rollout", "search"},
    "adapters.trl_search": {
        "adapters.trl_vllm",
        "data",
        "metrics",
        "retrieval.types",
        "rewards",
        "rollout",
        "search",
        "trajectory",
    },
    # Data files carry the protocol's prompt, for trainers that know no protocol; penalties go by the host's names.
    "launch": {"adapters.verl_losses", "config", "data", "penalties", "search"},
    "train.checkpoint": {"language_model", "run_folder"},
    "train": {
        "importing",
        "batch",
        "collapse",
        "config",
        "data",
        "diagnostics",
        "diagnostics.codes",
        "diagnostics.report",
        "files",
        "jsonl",
        "language_model",
        "listener",
        "loading",
        "logprobs",
        "losses",
        "metrics",
        "penalties",
        "retrieval",
        "retrieval.types",
        "rewards",
        "rollout",
        "run_folder",
        "scoring",
        "search",
        "tracking",
        "train.checkpoint",
        "trajectory",
        "versions",
        "world",
    },
    # Asks models and counts answers.
    "evals": {
        "config",
        "data",
        "datasets",
        "files",
        "jsonl",
        "lab",
        "language_model",
        "listener",
        "loading",
        "rewards",
        "rollout",
        "run_folder",
        "retrieval.types",
        "scoring",
        "search",
        "settings",
        "train.checkpoint",
        "trajectory",
        "versions",
        "world",
    },
    # Experiments start runs as processes and read what they wrote: no training code, no torch.
    "lab": {"collapse", "config", "files", "penalties", "run_folder", "section", "settings", "tracking", "versions"},
    "lab.probes": {
        "batch",
        "config",
        "penalties",
        "data",
        "language_model",
        "listener",
        "loading",
        "metrics",
        "rollout",
        "run_folder",
        "train",
        "train.checkpoint",
        "trajectory",
    },
}
FREE = {"cli", "__main__"}  # may import anything, inside subcommands: test_import_weight.py

# unit -> packages outside the standard library that it may name, wherever the import stands.
OUTSIDE: dict[str, set[str]] = {
    "errors": set(),
    "section": {"pydantic"},
    "refusals": set(),
    "settings": {"pydantic"},
    "importing": set(),
    "config": {"pydantic", "tomli_w"},
    "scoring": set(),
    "trajectory": set(),
    "trailing": {"numpy"},
    "collapse": {"numpy"},
    "files": set(),
    "run_folder": set(),
    "listener": set(),
    "versions": set(),
    "jsonl": set(),
    "data": set(),
    "hub": {"huggingface_hub"},
    "datasets": {"pyarrow", "huggingface_hub"},
    "rewards": set(),
    "losses": {"torch"},
    "penalties": {"pydantic", "torch"},  # torch when one is computed; held to that by test_import_weight.py
    "metrics": {"torch"},
    "batch": {"torch"},
    "search": {"transformers"},  # for the type checker; held to that by test_import_weight.py
    "retrieval.types": set(),
    "retrieval.wire": set(),
    "diagnostics": {"numpy"},
    "diagnostics.report": {"numpy", "plotly"},
    "launch": {"pyarrow"},
    "evals": {"numpy", "transformers"},
    "lab": {"matplotlib"},
    "lab.probes": {"matplotlib", "torch"},
}


def unit_of(module: str) -> str | None:
    """`holdfast.retrieval.bm25` -> `retrieval`; None when no row covers it."""
    name = module.removeprefix("holdfast.")
    rows = [row for row in {*ALLOWED, *FREE} if name == row or name.startswith(row + ".")]
    return max(rows, key=len, default=None)


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
    """Every import that the tables forbid, as a sentence."""
    found = []
    known = set(sources)
    for module, tree in sources.items():
        if module == "holdfast":
            found += [
                f"{module}:{line}: imports {name}, and so would everybody"
                for line, name in imports(tree, module, known)
            ]
            continue
        unit = unit_of(module)
        if unit is None:
            found.append(f"{module}: no row of ALLOWED covers it; decide what it may import")
            continue
        for line, name in imports(tree, module, known):
            top = name.partition(".")[0]
            if top == "holdfast":
                target = unit_of(name) if name != "holdfast" else "errors"  # `from holdfast import __version__`
                free = unit in FREE or target in (unit, *ALLOWED[unit]) or (target == "errors" and unit != "losses")
                if not free:
                    found.append(f"{module}:{line}: {unit} may not import {name}")
            elif top not in sys.stdlib_module_names and top not in OUTSIDE.get(unit, {top}):
                found.append(f"{module}:{line}: {unit} may not import {name}")
    return found


def test_arrows_point_one_way(sources: Mapping[str, ast.Module]) -> None:
    assert violations(sources) == []


def test_the_tables_have_no_cycle() -> None:
    for unit in ALLOWED:
        seen, queue = set(), [*ALLOWED[unit]]
        while queue:
            below = queue.pop()
            if below not in seen:
                seen.add(below)
                queue += ALLOWED[below]
        assert unit not in seen, f"{unit} may import itself through others"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("holdfast.losses.llds", "from holdfast.errors import ConfigError"),
        ("holdfast.losses.llds", "import numpy"),
        ("holdfast.losses.llds", "def f():\n    from holdfast.batch import TokenBatch"),
        ("holdfast.diagnostics.rules", "import torch"),
        ("holdfast.diagnostics.rules", "import holdfast.losses.stats"),
        ("holdfast.retrieval.types", "from holdfast.retrieval.bm25 import BM25Retriever"),
        ("holdfast.retrieval.types", "from .bm25 import BM25Retriever"),
        ("holdfast.rollout.loop", "from holdfast import rewards"),
        ("holdfast.rollout.loop", "import importlib\nx = importlib.import_module('holdfast.train')"),
        ("holdfast.world.facts", "from holdfast.train import trainer"),
        ("holdfast.brand_new", "import json"),
        ("holdfast", "import torch"),
    ],
)
def test_a_forbidden_import_is_seen(sources: Mapping[str, ast.Module], module: str, source: str) -> None:
    changed = {**sources, "holdfast.train.trainer": ast.parse(""), module: ast.parse(source)}
    assert [v for v in violations(changed) if v.startswith((module + ":", module + " "))]
