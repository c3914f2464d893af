"""Small files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a small file so that a crash leaves the old one or the new one.

    A lone surrogate, which UTF-8 cannot hold, becomes its `\\ud…` escape: valid inside a JSON text.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    os.replace(temporary, path)
