"""A collection: the text files of many runs in one compressed file.

Runs repeat each other's words, so together they take 60 % of what they take apart. The file is JSON: the name of a run,
and for each of its files the text.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from holdfast.base.files import replacing

Files = Mapping[str, str]
"""The text of each file, by its name."""


@cache
def read(path: Path) -> Mapping[str, Files]:
    """The files of every run, by the name of the run; empty without a collection. Unpacked once per process."""
    runs: dict[str, Files] = json.loads(lzma.decompress(path.read_bytes())) if path.exists() else {}
    return runs


def write(path: Path, runs: Mapping[str, Files]) -> None:
    """Write a collection. The same runs give the same bytes, in whichever order they come."""
    runs = dict(sorted(runs.items()))
    if runs == read(path):
        return  # another version of xz might pack the same runs otherwise
    text = json.dumps(runs, indent=0, ensure_ascii=False)
    with replacing(path) as temporary:
        temporary.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    read.cache_clear()
