"""One glossary, in the code: all that is logged is in it, and all in it is logged."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.diagnose.log import METRICS as OF_RUNS
from holdfast.hosts import HOSTS
from holdfast.hosts.trl import GROUP_STD
from holdfast.methods.registry import series

METRICS = OF_RUNS | series()

NAME = re.compile(r"[a-z][a-z0-9_]*(/[a-z0-9_{}]+)+")  # `{}` stands for what an f-string fills in
FILLED = r"[a-z0-9_]+"

# Looks like a metric and is none. The counts are bookkeeping of holdfast.losses.stats, used up when statistics merge.
# An adapter puts `holdfast/` before every name. The last is a media type.
OTHER = {"count/tokens", "count/preserved", "count/sequences", "count/{}", "count/{}_{}", "holdfast/{}"}
OTHER |= {"count/{}_tokens", "application/json", "text/html", "text/plain"}

# Whose business is the names of other trainers: tests/diagnose checks which of ours they become.
OTHERS = ("holdfast.diagnose.readers.names", "holdfast.diagnose.report.data", "holdfast.hosts.")


def text_of(node: ast.AST) -> str:
    """A string literal, or an f-string with `{}` for its holes; empty for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return ""


def keys(tree: ast.AST) -> Iterator[str]:
    """Every string that is used as a key: in a dict, a subscript, a comparison, `.get(…)`, or a list of names."""
    for node in ast.walk(tree):
        found: list[ast.AST | None] = []
        if isinstance(node, ast.Dict):
            found = [*node.keys]
        elif isinstance(node, ast.DictComp):
            found = [node.key]
        elif isinstance(node, ast.Subscript):
            found = [node.slice]
        elif isinstance(node, ast.Compare):
            found = [node.left, *node.comparators]
        elif isinstance(node, ast.Call):
            found = [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            found = [*node.elts]
        elif isinstance(node, ast.Assign):
            found = [node.value]
        yield from (text for item in found if item is not None and (text := text_of(item)))


def used_names(sources: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Metric name, `{}` in its holes -> the modules that use it, the glossary itself left out."""
    names: dict[str, set[str]] = {}
    for module, tree in sources.items():
        if module.startswith(OTHERS):
            continue
        body: list[ast.stmt] = [
            node
            for node in tree.body
            if not (isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "METRICS")
        ]
        for text in keys(ast.Module(body, [])):
            if NAME.fullmatch(text) or text in METRICS:
                names.setdefault(text, set()).add(module)
    return names


def fits(used: str, name: str) -> bool:
    """Whether a used name, holes included, can be the glossary's name; any number of an action, or name of a tool,
    will do."""
    pattern = re.escape(re.sub(r"(?<=/action_)\d+$", "0", used)).replace(r"\{\}", FILLED)
    return re.fullmatch(pattern, name.replace("<k>", "0").replace("<name>", "name")) is not None


def unknown(names: Mapping[str, set[str]]) -> list[str]:
    return [
        f"{name} ({', '.join(sorted(modules))})"
        for name, modules in sorted(names.items())
        if name not in OTHER and not any(fits(name, entry) for entry in METRICS)
    ]


def test_every_series_of_an_explanation_is_in_the_glossary(root: Path) -> None:
    page = (root / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    named = re.findall(r"`([^`]+)`", page.partition("## Which explanation a metric belongs to")[2])
    assert named and set(named) <= set(OF_RUNS)


def test_every_name_in_the_code_is_in_the_glossary(sources: Mapping[str, ast.Module]) -> None:
    names = used_names(sources)
    assert len(names) > 40
    assert not unknown(names), "not in holdfast.diagnose.log.METRICS"


def test_every_entry_of_the_glossary_is_logged(sources: Mapping[str, ast.Module]) -> None:
    names = {
        *used_names(sources),
        GROUP_STD.ours,
        *(row.ours for host in HOSTS.values() for row in (*host.series, *host.more)),
    }
    assert not [entry for entry in METRICS if not any(fits(name, entry) for name in names)]
