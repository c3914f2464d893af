"""The site's page of settings: every setting of a recipe, from the sections that hold them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Annotated, Any, get_args, get_origin

from holdfast.base.section import Root, as_toml, choice_of, join_or, kind_of, sections
from holdfast.cli.describe import USEFUL
from holdfast.recipe import Config

HEAD = """\
# Settings

Every setting of a recipe, with its default. `holdfast recipe show > my.toml` writes them to a file that you can edit.
A setting is a line of that file, or an option: `--train.steps 50`. [Papers](papers.md) has the settings of each
published method.

```bash
holdfast recipe show > my.toml
holdfast train my.toml --train.steps 50 --dry-run    # check it, and stop
```

A recipe may change another one, bundled or a file. `unset` takes settings of that recipe out, as `--unset KEY` does on
the command line. Of `retrieval.corpus`, `index` and `url`, what a file or a command line names replaces all that the
recipe below it names:

```toml
extends = "factbook"
unset = ["warm_start.data", "warm_start.steps"]

[retrieval]
index = "factbook.dense"
```

Paths in a recipe are relative to the folder of its file. Paths on the command line are relative to the current folder,
and so are `run.dir`, where runs are written, and the paths of the bundled recipes.

A run keeps absolute paths, so `ask`, `eval`, `resume` and `report` work from any folder. If files of a run were moved,
a command names those that are missing. Give their new place: `holdfast resume runs/my --retrieval.corpus new/docs`, and
likewise for `ask` and `eval run`. To keep it, write it into the `config.toml` of the run.

The {useful} in **bold** are changed first. A default here is that of a recipe that does not set it: bundled recipes set
some, and `holdfast recipe show NAME` shows which.
"""
COLUMNS = ("| setting | value | default | meaning |", "|---|---|---|---|")
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def limits(metadata: Iterable[Any]) -> str:
    """Bounds in signs.

    >>> from annotated_types import Ge, Lt
    >>> limits([Ge(0), Lt(1.5)])
    '≥ 0 and < 1.5'
    """
    bounds = [(sign, getattr(part, key)) for part in metadata for key, sign in SIGNS.items() if hasattr(part, key)]
    return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds)


def values(annotation: Any, metadata: Iterable[Any]) -> str:
    """What a setting may hold, its bounds included."""
    members = [get_args(kind)[1].metadata for kind in get_args(annotation) if get_origin(kind) is Annotated]
    bounds = limits(metadata) or (limits(members[0]) if members else "")
    kind = re.sub(r"'([^']+)'", r"`\1`", kind_of(annotation)).replace("or none", "or unset")
    return re.sub(r"number\b", f"number {bounds}", kind, count=1) if bounds else kind


def cell(text: str) -> str:
    """The text as a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def meaning(text: str) -> str:
    """A description, in which the name of a page is a link."""
    return re.sub(r"docs/reference/(\w+)\.md", r"[\1](\1.md)", cell(text))


def row(dotted: str, kind: str, default: Any, text: str) -> str:
    """A setting's row."""
    key = dotted.rpartition(".")[2]
    setting = f"**`{key}`**" if dotted in USEFUL else f"`{key}`"
    return f"| {setting} | {kind} | {'' if default is None else f'`{cell(as_toml(default))}`'} | {meaning(text)} |"


def table(section: Root, name: str, leave_out: Collection[str] = ()) -> Iterator[str]:
    """The settings of a section, without the sections in it."""
    rows = [
        row(f"{name}.{key}", values(info.annotation, info.metadata), info.default, info.description or "")
        for key, info in section.model_fields.items()
        if key not in leave_out and not sections(info.annotation)
    ]
    if rows:
        yield from (*COLUMNS, *rows, "")


def text_of(section: Root) -> str:
    """What a section says of itself."""
    return " ".join((section.__doc__ or "").partition("\n\n")[0].split())


def part(section: Root, name: str) -> Iterator[str]:
    """A section: its heading, its text, its table, then the sections in it."""
    yield from (f"## `[{name}]`", "", text_of(section), "", *table(section, name))
    for key, info in section.model_fields.items():
        inside = sections(info.annotation)
        if len(inside) == 1:
            yield from part(inside[0], f"{name}.{key}")
        elif inside:
            yield from choices(inside, f"{name}.{key}", choice_of(type(info.default)))


def choices(kinds: Sequence[Root], name: str, default: str) -> Iterator[str]:
    """A section that is one of several, which its `name` chooses."""
    names = join_or([f"`{choice_of(kind)}`" for kind in kinds])
    text = kinds[0].model_fields["name"].description or ""
    yield from (f"## `[{name}]`", "", "The `name` decides which other settings there are.", "")
    yield from (*COLUMNS, row(f"{name}.name", names, default, text), "")
    for kind in kinds:
        yield from (f'### `name = "{choice_of(kind)}"`', "", text_of(kind), "", *table(kind, name, ("name",)))


def page() -> str:
    """The text of the page."""
    lines = [HEAD.format(useful=len(USEFUL))]
    for name, info in Config.model_fields.items():
        lines += part(sections(info.annotation)[0], name)
    return "\n".join(lines).rstrip("\n") + "\n"
