"""What a run finds on its machine: versions of the packages that compute, the cache folder, and whether the model hub
answers."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

from holdfast import __version__
from holdfast.base.answers import HTTPClient
from holdfast.base.workers import LoopThread

_PACKAGES = ("torch", "transformers", "numpy")


REACH_SECONDS = 5.0
"""Timeout of `unreachable`."""


def cache_dir() -> Path:
    """Where warm starts and models are kept: `$HOLDFAST_CACHE`, else `$XDG_CACHE_HOME/holdfast`, else
    `~/.cache/holdfast`."""
    if home := os.environ.get("HOLDFAST_CACHE"):
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def unreachable() -> str | None:
    """`ENDPOINT cannot be reached (reason)` after one short request to the model hub; None when it answers.

    The hub's own client takes most of a minute to find out that it does not.
    """
    from huggingface_hub import constants

    endpoint = constants.ENDPOINT
    if constants.HF_HUB_OFFLINE:
        return f"{endpoint} cannot be reached (HF_HUB_OFFLINE is set)"
    client = HTTPClient(endpoint, proxies=True)
    try:
        LoopThread("hub").run(client.exchange("HEAD", endpoint, seconds=REACH_SECONDS))
    except (TimeoutError, ConnectionError) as error:
        return str(error)
    return None


def versions() -> dict[str, str]:
    """Versions of holdfast, Python, the system and the packages that compute. Nothing names the machine."""
    result = {"holdfast": __version__, "python": platform.python_version(), "system": platform.system()}
    for package in _PACKAGES:
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return result
