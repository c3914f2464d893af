"""A setting that nothing reads is a lie to the user: every one must be read by code that acts on it."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from holdfast.agent.rewards import PARTS
from holdfast.recipe import setting_names

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


def unread(sources: Mapping[str, ast.Module]) -> list[str]:
    """Dotted names of settings that nothing reads."""
    names = attributes(sources)
    missing = []
    for dotted in setting_names():
        section, _, key = dotted.rpartition(".")
        if key not in names and key not in HANDED_ON.get(section, ()):
            missing.append(dotted)
    return missing


def test_every_setting_is_read(sources: Mapping[str, ast.Module]) -> None:
    missing = unread(sources)
    assert not missing, f"nothing reads {missing}: read it, or take it out of the schema"
