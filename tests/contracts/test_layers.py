"""Imports point down: a module may import its own room and those on lower floors, and no two rooms import each other.

`python tests/contracts/test_layers.py` writes the table of rooms into docs/contributing/architecture.md.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

# From the bottom. `losses` imports nothing of ours, so that it can be copied into another trainer.
FLOORS = (
    "losses base",
    "retrieval hosts model",
    "agent diagnose",
    "methods",
    "recipe",
    "tasks",
    "train evaluate adapters",
    "cli",
)
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms.split()}
FACES = {"errors", "loading", "penalties"}
"""Modules beside the rooms, for imports that people write. They have no code of their own."""
FACES_INSIDE = {f"adapters.{name}" for name in ("trl_search", "trl_monitor", "trl_environment", "verl_agent")}
"""The same inside a room: names that guides teach for what has its place in a folder."""
PAGE = Path(__file__).parents[2] / "docs" / "contributing" / "architecture.md"
BEGIN, END = "<!-- rooms: written by tests/contracts/test_layers.py -->", "<!-- end of rooms -->"


def room_of(module: str) -> str | None:
    """`holdfast.retrieval.bm25` -> `retrieval`; None for what is in no room."""
    room = module.removeprefix("holdfast.").partition(".")[0]
    return room if room in FLOOR else None


def is_below(target: str | None, room: str) -> bool:
    """Whether a room is on a lower floor than another."""
    return target is not None and FLOOR[target] < FLOOR[room]


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
    """Every import that the floors forbid, as a sentence."""
    wrong = []
    for module, tree in sources.items():
        room = room_of(module)
        if room is None:
            if module not in {"holdfast", "holdfast.__main__", *(f"holdfast.{face}" for face in FACES)}:
                wrong.append(f"{module}: is in no room")
            continue
        for line, name in imports(tree, module, set(sources)):
            top, _, inner = name.partition(".")
            if room == "losses" and top not in {*sys.stdlib_module_names, "torch"} and room_of(name) != room:
                wrong.append(f"{module}:{line}: losses may import torch only, not {name}")
            elif top == "holdfast_research":
                wrong.append(f"{module}:{line}: imports {name}")
            elif top == "holdfast" and inner and room_of(name) != room and not is_below(room_of(name), room):
                wrong.append(f"{module}:{line}: {room} may not import {name}")
    return wrong


def table(sources: Mapping[str, ast.Module]) -> str:
    """The rooms, from the top: what each says of itself, and which it imports."""
    rows = ["| floor | room | what is in it | imports |", "|---|---|---|---|"]
    for level, rooms in reversed(list(enumerate(FLOORS, start=1))):
        for room in rooms.split():
            says = (ast.get_docstring(sources[f"holdfast.{room}"]) or "").split("\n\n")[0].replace("\n", " ")
            below = {
                target
                for module, tree in sources.items()
                if room_of(module) == room
                for _, name in imports(tree, module, set(sources))
                if name.startswith("holdfast.") and (target := room_of(name)) not in (None, room)
            }
            listed = ", ".join(sorted(below, key=lambda name: (-FLOOR[name], name))) or "–"  # type: ignore[index]
            rows.append(f"| {level} | `{room}/` | {says} | {listed} |")
    return "\n".join(rows)


def test_imports_point_down(sources: Mapping[str, ast.Module]) -> None:
    assert violations(sources) == []


def test_the_page_has_the_rooms(sources: Mapping[str, ast.Module]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.split(BEGIN)[1].split(END)[0].strip() == table(sources)


@pytest.mark.parametrize("face", sorted(FACES | FACES_INSIDE))
def test_a_face_has_no_code(sources: Mapping[str, ast.Module], face: str) -> None:
    assert {type(node) for node in sources[f"holdfast.{face}"].body} == {ast.Expr, ast.ImportFrom, ast.Assign}


if __name__ == "__main__":
    from conftest import SRC

    trees = {
        ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_text())
        for path in sorted((SRC / "holdfast").rglob("*.py"))
    }
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(trees)}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
