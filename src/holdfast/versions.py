"""What numbers may depend on besides settings and seeds, for files that say how they were made."""

from __future__ import annotations

import importlib.metadata
import platform

from holdfast import __version__

_PACKAGES = ("torch", "transformers", "numpy", "bm25s")


def versions() -> dict[str, str]:
    """Of holdfast, Python, the system and the packages that compute; nothing that names a machine."""
    found = {"holdfast": __version__, "python": platform.python_version(), "system": platform.system()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
