"""The modules that make the site, which lie outside of any package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def site_module(name: str) -> Any:
    """docs/_site/NAME.py, imported."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", Path(__file__).parents[2] / f"docs/_site/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
