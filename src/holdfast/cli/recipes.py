"""The bundled recipes, from a checkout (`recipes/` at its top) and from a wheel (`holdfast/recipes/`) alike."""

from __future__ import annotations

import difflib
from pathlib import Path

from holdfast.errors import ConfigError

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "recipes", _PACKAGE.parents[1] / "recipes")


def bundled() -> dict[str, Path]:
    """Name of every bundled recipe, without `.toml`, and where it lies."""
    for folder in _FOLDERS:
        if found := {path.stem: path for path in sorted(folder.glob("*.toml"))}:
            return found
    return {}


def find(recipe: str) -> Path:
    """The TOML file for what somebody typed: a path, or the name of a bundled recipe. Raises `ConfigError`."""
    path, known = Path(recipe), bundled()
    if path.is_file() or (path.exists() and recipe not in known):  # `runs/flaky` does not hide the recipe `flaky`
        return path
    if recipe in known:
        return known[recipe]
    if path.suffix == ".toml" and path.stem in known and path.parent.name in ("", "recipes"):
        return known[path.stem]  # `recipes/collapse.toml`, typed outside a checkout
    near = difflib.get_close_matches(path.stem, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"give the path of a TOML file, or one of {', '.join(known)}"
    raise ConfigError(f"there is no recipe {recipe!r} here; {hint}")
