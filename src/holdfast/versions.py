"""The versions that numbers may depend on, for the files that hold numbers."""

from __future__ import annotations

import importlib.metadata
import platform

from holdfast import __version__

_PACKAGES = ("torch", "transformers", "numpy", "bm25s")


def versions() -> dict[str, str]:
    """Versions of holdfast, Python, the system and the packages that compute. Nothing names the machine."""
    result = {"holdfast": __version__, "python": platform.python_version(), "system": platform.system()}
    for package in _PACKAGES:
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return result
