"""The recipes that come with holdfast: the TOML files in `holdfast/recipes`."""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path

from holdfast.errors import ConfigError


def bundled() -> dict[str, Path]:
    """Name of every bundled recipe, without `.toml`, and its file."""
    folder = Path(str(resources.files("holdfast"))) / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find(recipe: str) -> Path:
    """The TOML file for what somebody typed: a path, or the name of a bundled recipe. Raises `ConfigError`."""
    path, known = Path(recipe), bundled()
    if path.is_file() or (path.exists() and recipe not in known):  # `runs/flaky` does not hide the recipe `flaky`
        return path
    if recipe in known:
        return known[recipe]
    if path.suffix == ".toml" and path.stem in known and path.parent.name in ("", "recipes"):
        return known[path.stem]  # `recipes/collapse.toml`
    near = difflib.get_close_matches(path.stem, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"give the path of a TOML file, or one of {', '.join(known)}"
    raise ConfigError(f"there is no recipe {recipe!r} here; {hint}")
