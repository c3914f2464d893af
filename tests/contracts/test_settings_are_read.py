"""A setting that nothing reads is a lie to the user: every one must be read by code that acts on it.

Reads are found in the syntax trees, with types followed from annotations: `def f(loss: Loss): loss.clip_low` reads
`loss.clip_low`, `config.train.seed` does not read `run.seed`. A read through a variable without a known type does not
count; annotate it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from pydantic import BaseModel

from holdfast import config as schema
from holdfast.config import Config, setting_names
from holdfast.rewards import PARTS
from holdfast.section import sections

# Sections that are handed on whole. `model_dump()`: section -> class it is copied into, whose attributes of that name
# must be read. `weights()`: section -> the names that the receiver of the mapping knows.
COPIED = {"protocol": "holdfast.search.protocol.SearchProtocol"}
MAPPED = {"reward": frozenset({*PARTS, "custom"})}

CHECKERS = {"holdfast.config", "holdfast.config.sections", "holdfast.config.validation"}  # to check is not to use


def full(kind: type[BaseModel]) -> str:
    return f"{kind.__module__}.{kind.__name__}"


SECTIONS = {
    name: value for name, value in vars(schema).items() if isinstance(value, type) and issubclass(value, BaseModel)
}
ALIASES = {f"holdfast.config.{name}": full(value) for name, value in SECTIONS.items()}


@dataclass
class Known:
    """What the sources say about types: a class or function is known by its full name."""

    sources: Mapping[str, ast.Module]
    imported: dict[str, dict[str, str]] = field(default_factory=dict)
    """module -> local name -> full name."""
    attributes: dict[str, dict[str, str]] = field(default_factory=dict)
    """class -> attribute or method -> class of its value."""
    returns: dict[str, str] = field(default_factory=dict)
    """function -> class of its value."""

    def __post_init__(self) -> None:
        for value in SECTIONS.values():
            # Of several sections to choose from the last: that all have what hosts use of it.
            inner = {key: sections(info.annotation) for key, info in value.model_fields.items()}
            self.attributes[full(value)] = {key: full(kinds[-1]) for key, kinds in inner.items() if kinds}
        for module, tree in self.sources.items():
            names = self.imported.setdefault(module, {})
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module:
                    names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
                elif isinstance(node, ast.Import):
                    names |= {a.asname or a.name: a.name for a in node.names}
            for node in tree.body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    names[node.name] = f"{module}.{node.name}"
                if isinstance(node, ast.ClassDef) and module not in CHECKERS:
                    self.attributes[f"{module}.{node.name}"] = {}
        for module, tree in self.sources.items():
            for node in tree.body:
                if isinstance(node, ast.FunctionDef):
                    self.returns[f"{module}.{node.name}"] = self.annotated(node.returns, module)
                elif isinstance(node, ast.ClassDef) and module not in CHECKERS:
                    own = self.attributes[f"{module}.{node.name}"]
                    for item in node.body:
                        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                            own[item.target.id] = self.annotated(item.annotation, module)
                        elif isinstance(item, ast.FunctionDef):
                            own[item.name] = self.annotated(item.returns, module)

    def annotated(self, annotation: ast.expr | None, module: str) -> str:
        """The class an annotation names; of a union, the first one known. Empty when unknown."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        if isinstance(annotation, ast.BinOp):
            return self.annotated(annotation.left, module) or self.annotated(annotation.right, module)
        if isinstance(annotation, ast.Name | ast.Attribute):
            full = self.full_name(annotation, module)
            return full if full in self.attributes else ""
        return ""

    def full_name(self, node: ast.expr, module: str) -> str:
        name = ""
        if isinstance(node, ast.Name):
            name = self.imported[module].get(node.id, "")
        elif isinstance(node, ast.Attribute) and (base := self.full_name(node.value, module)):
            name = f"{base}.{node.attr}"
        return ALIASES.get(name, name)


class Reader(ast.NodeVisitor):
    """Walks one module, following the types of names; collects (class, attribute) pairs that are read."""

    def __init__(self, known: Known, module: str) -> None:
        self.known, self.module = known, module
        self.scopes: list[dict[str, str]] = [{}]
        self.inside: list[str] = []
        self.read: set[tuple[str, str]] = set()

    def type_of(self, node: ast.expr | None) -> str:
        if isinstance(node, ast.Name):
            return next((s[node.id] for s in reversed(self.scopes) if node.id in s), "")
        if isinstance(node, ast.Attribute):
            return self.known.attributes.get(self.type_of(node.value), {}).get(node.attr, "")
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Starred):
            return self.type_of(node.value)
        if isinstance(node, ast.IfExp):
            return self.type_of(node.body) or self.type_of(node.orelse)
        if isinstance(node, ast.BoolOp):
            return next((t for t in map(self.type_of, node.values) if t), "")
        if isinstance(node, ast.Call):
            full = self.known.full_name(node.func, self.module)
            if full in self.known.attributes:
                return full
            if full in ("dataclasses.replace", "copy.copy", "copy.deepcopy") and node.args:
                return self.type_of(node.args[0])
            if isinstance(node.func, ast.Attribute) and node.func.attr == "model_copy":
                return self.type_of(node.func.value)
            return self.known.returns.get(full, "") or self.type_of(node.func)
        return ""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.inside.append(f"{self.module}.{node.name}")
        self.generic_visit(node)
        self.inside.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        scope = {a.arg: self.known.annotated(a.annotation, self.module) for a in arguments}
        if self.inside and len(self.scopes) == 1 and arguments and arguments[0].arg == "self":
            scope["self"] = self.inside[-1]
        self.scopes.append(scope)
        self.generic_visit(node)
        self.scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def bind(self, target: ast.expr, value: ast.expr | None, annotation: ast.expr | None = None) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, other in zip(target.elts, value.elts, strict=True):
                self.bind(one, other)
            return
        kind = self.known.annotated(annotation, self.module) or self.type_of(value)
        if isinstance(target, ast.Name):
            self.scopes[-1][target.id] = kind
        elif isinstance(target, ast.Attribute) and kind:  # self.config = config
            self.known.attributes.get(self.type_of(target.value), {}).setdefault(target.attr, kind)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self.bind(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        self.bind(node.target, node.value, node.annotation)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.generic_visit(node)
        self.bind(node.target, node.value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self.read.add((self.type_of(node.value), node.attr))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if ast.unparse(node.func) == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            self.read.add((self.type_of(node.args[0]), str(node.args[1].value)))
        self.generic_visit(node)


def all_reads(sources: Mapping[str, ast.Module]) -> set[tuple[str, str]]:
    """(class, attribute) of every read outside config.py whose receiver has a known class."""
    known = Known(sources)
    read: set[tuple[str, str]] = set()
    for _ in range(3):  # `self.config = config` may stand in a class or a module read after the one that uses it
        read = set()
        for module, tree in sources.items():
            if module not in CHECKERS:
                reader = Reader(known, module)
                reader.visit(tree)
                read |= reader.read
    return {(kind, name) for kind, name in read if kind}


def owners(dotted: str) -> tuple[set[str], str]:
    """`loss.penalty.preserve` -> the classes that have it, those they inherit it from among them, and `preserve`."""
    *path, name = dotted.split(".")
    models: list[type[BaseModel]] = [Config]
    for key in path:
        models = [kind for model in models for kind in sections(model.model_fields[key].annotation)]
    kinds = {kind for model in models for kind in model.__mro__ if issubclass(kind, BaseModel)}
    return {full(kind) for kind in kinds if name in kind.model_fields}, name


def unread(sources: Mapping[str, ast.Module]) -> list[str]:
    """Dotted names of settings that nothing reads."""
    reads = all_reads(sources)
    missing = []
    for dotted in setting_names():
        classes, name = owners(dotted)
        parent = dotted.rpartition(".")[0]
        used = {attribute for kind, attribute in reads if kind in classes}
        copied = "model_dump" in used and (COPIED.get(parent), name) in reads
        mapped = "weights" in used and name in MAPPED.get(parent, ())
        if not (name in used or copied or mapped):
            missing.append(dotted)
    return missing


def test_every_setting_is_read(sources: Mapping[str, ast.Module]) -> None:
    missing = unread(sources)
    assert not missing, f"no code that does something reads {', '.join(missing)}: read it, or take it out of the schema"


@pytest.mark.parametrize("body", [
    "def f(c: Config): return c.loss.clip_low",
    "def f(c: 'Config | None'): return c.loss.clip_low",
    "def f(l: Loss):\n def g(): return l.clip_low\n return g",
    "def f(c: Config):\n a, b = c.train, c.loss\n return b.clip_low",
    "def f(c: Config):\n if (own := c.loss): return own.clip_low",
    "def make() -> Config: ...\ndef f(): return make().loss.clip_low",
    "class Box:\n config: Config\ndef f(box: Box): return box.config.loss.clip_low",
    "class Run:\n def go(self): return self.own.clip_low\n def __init__(self, c: Config): self.own = c.loss",
    "class Box:\n @property\n def loss(self) -> Loss: ...\ndef f(b: Box): return [b.loss.clip_low for _ in 'ab']",
    "def f(c: Config): return getattr(c.loss, 'clip_low')",
    "import holdfast.config as h\ndef f(c: h.Config): return c.loss.clip_low",
])  # fmt: skip
def test_a_read_is_seen(body: str) -> None:
    source = {"holdfast.x": ast.parse("from holdfast.config import Config, Loss, Train\n" + body)}
    assert "loss.clip_low" not in unread(source)
    assert "loss.clip_high" in unread(source)


@pytest.mark.parametrize("body", [
    "def f(x): return x.clip_low",
    "def f(t: Train): return t.clip_low",
    "def f(c: Config): c.loss.clip_low = 1",
    "def f(c: Config): return c.loss.model_dump()",
    "def f(c: Config):\n '''clip_low'''\n return {'clip_low': 1}",
])  # fmt: skip
def test_what_only_looks_like_a_read_is_not(body: str) -> None:
    source = {"holdfast.x": ast.parse("from holdfast.config import Config, Loss, Train\n" + body)}
    assert "loss.clip_low" in unread(source)


def test_a_mapped_section_is_read_where_it_is_handed_on() -> None:
    source = {
        "holdfast.x": ast.parse("from holdfast.config import Config\ndef f(c: Config): return c.reward.weights()")
    }
    assert "reward.f1" not in unread(source)
    assert "reward.f1" in unread({"holdfast.x": ast.parse("from holdfast.config import Config")})


def test_a_copied_section_is_read_where_the_copy_is() -> None:
    copy = "from holdfast.config import Config\ndef f(c: Config): return c.protocol.model_dump()"
    use = "class SearchProtocol:\n max_turns: int\n topk: int\ndef g(p: SearchProtocol): return p.max_turns"
    source = {"holdfast.x": ast.parse(copy), "holdfast.search.protocol": ast.parse(use)}
    assert "protocol.max_turns" not in unread(source)
    assert "protocol.topk" in unread(source)
