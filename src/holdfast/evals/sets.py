"""Which set a question is counted in, and which kind of set that is. Light: tables need no torch."""

from __future__ import annotations

from holdfast.data import Example
from holdfast.datasets.catalogue import GENERAL, MULTI_HOP

ONE_HOP, TWO_HOP = "world-1hop", "world-2hop"
"""The sets the bundled world's questions belong to."""
GENERAL_SETS = (*GENERAL, ONE_HOP)
MULTI_HOP_SETS = (*MULTI_HOP, TWO_HOP)


def set_of(example: Example) -> str:
    """The set a question is counted in: its source, and of the bundled world its number of hops."""
    if example.source == "world":
        return ONE_HOP if example.metadata.get("hops") == 1 else TWO_HOP
    return example.source
