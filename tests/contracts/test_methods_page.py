"""docs/reference/methods.md shows what every method says of itself.

Run as a script (`make docs`) this writes the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from holdfast.adapters.launch.view import in_host as translated
from holdfast.adapters.launch.view import launch_of
from holdfast.methods.operations import OPERATIONS, Operation
from holdfast.methods.registry import METHODS, NTHR, InterleavedSFT, Method, ScoreCentering
from holdfast.recipe import load

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "methods.md"
HEAD = """\
# Methods

What a recipe can switch on against collapse, besides the penalty (`[loss.penalty]`, see [losses](losses.md)) and the
policy loss (`loss.surrogate`). Each method is a table, and an empty table is enough:

```toml
[loss.methods.nthr]

[loss.methods.sampler_weights]
keep = "mask"
low = 0.5
```

On the command line: `--loss.methods.nthr.on`, `--loss.methods.sampler_weights.low 0.5`. Any setting of a table switches
its method on. `holdfast recipe show` lists them all, [papers](papers.md) the settings of each published method.

<!-- made from holdfast.methods by `make docs`; edit the classes there -->
"""


def page() -> str:
    """The page."""
    rows = ["| method | what it does | source | needs | in TRL | in verl |", "|---|---|---|---|---|---|"]
    return HEAD + "\n" + "\n".join([*rows, *(row(kind) for kind in METHODS.values())]) + "\n"


def row(kind: type[Method]) -> str:
    """A method's row."""
    what = " ".join((kind.__doc__ or "").split())
    needs = ", ".join(sorted(kind.needs)) or "–"
    hosts = " | ".join("; ".join(in_host(kind, host)) for host in ("trl", "verl"))
    return f"| `{kind.name}` | {what} | {kind.source} | {needs} | {hosts} |"


def in_host(kind: type[Method], host: str) -> Iterator[str]:
    """The options of a host for the method's defaults, or why there are none."""
    made = translated(kind(), host, load())
    if made.problems:
        yield f"no: {launch_of(host).methods.get(kind.name, kind.elsewhere)}"
    elif not made.options:
        yield "yes"
    yield from (f"`{option.name}`" for option in made.options)


def test_the_page_shows_the_methods() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/reference/methods.md is behind the code: run `make docs`"


def test_every_method_does_something() -> None:
    """A hook with a misspelt name would never be called."""
    hooks = {name for name in vars(Operation) if not name.startswith("_")}
    in_one_place = {NTHR, ScoreCentering, InterleavedSFT}  # written where they happen, in `train/`
    assert set(OPERATIONS) | in_one_place == set(METHODS.values())
    for kind in OPERATIONS.values():
        own = {name for name in vars(kind) if not name.startswith("_")}
        assert own and own <= hooks, f"{kind.__name__} overrides no hook of Operation; is one misspelt?"


def test_a_method_is_listed_under_its_name() -> None:
    assert {name: kind.name for name, kind in METHODS.items()} == {name: name for name in METHODS}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
