"""Cells of a table as numbers: which mark separates them, and what a comma in them means."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

SEPARATORS = (",", ";", "\t")

_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+(?:e[-+]?\d+)?", re.IGNORECASE)


def separator_of(line: str) -> str:
    """The mark between the names of a header.

    >>> separator_of("step;reward"), separator_of("step,reward; mean,loss"), separator_of("step")
    (';', ',', ',')
    """
    return max(SEPARATORS, key=line.count)


def has_decimal_commas(cells: Iterable[str]) -> bool:
    """Whether a comma in these cells stands before decimals: one of them cannot be in thousands.

    >>> has_decimal_commas(["1,305", "0,315"]), has_decimal_commas(["1,305", "12,000.5"])
    (True, False)
    """
    return any(_DECIMAL.fullmatch(cell) and not _THOUSANDS.fullmatch(cell) for cell in cells if "," in cell)


def number_text(cell: str) -> str:
    """A number with commas between thousands as number_in reads it."""
    return cell.replace(",", "") if _THOUSANDS.fullmatch(cell) else cell


def decimal_text(cell: str) -> str:
    """A number with a comma before its decimals as number_in reads it.

    >>> decimal_text("0,315"), decimal_text("1.234,5"), decimal_text("1e-06")
    ('0.315', '1234.5', '1e-06')
    """
    return cell.replace(".", "").replace(",", ".") if _DECIMAL.fullmatch(cell) else cell


def reading(cells: Iterable[str], *, decimal: bool = False) -> Callable[[str], str]:
    """How the cells of a table are read, by its first ones. In a table that `;` separates, commas are decimal."""
    return decimal_text if decimal or has_decimal_commas(cells) else number_text
