"""The codes of all rules, and a selection of codes. Imports little, because the check of a recipe imports it."""

from __future__ import annotations

from holdfast.base.errors import ConfigError

CODES = (
    "GRD002",
    "GRD003",
    "LRN001",
    "MSK001",
    "SMP001",
    "SMP003",
    "SMP002",
    "SMP004",
    "ENT003",
    "PEN001",
    "RET001",
    "RET002",
    "TOL002",
    "TOL001",
    "RWD003",
    "GRP001",
    "RWD005",
    "STP001",
    "OFP001",
    "LLD001",
    "LLD002",
    "LLD003",
    "LLD004",
    "ISD001",
    "KLD001",
    "ENT001",
    "ENT002",
    "GRD001",
    "TRN001",
    "TRN002",
    "RWD002",
    "RWD001",
    "STL001",
    "RWD004",
    "OBS001",
    "ZER001",
)
"""Every code. The rule of `LLD003` is `rules/lld003.py`. Causes come before symptoms: findings of the same step are
reported in this order."""


def chosen(text: str, *, where: str) -> set[str]:
    """The codes that begin with one of the comma-separated parts; all codes for an empty text.

    >>> sorted(chosen("LLD,ent001", where="--select"))
    ['ENT001', 'LLD001', 'LLD002', 'LLD003', 'LLD004']

    Raises `ConfigError` for a part that no code begins with. The message begins with `where`, such as an option.
    """
    parts = [part.strip().upper() for part in text.split(",") if part.strip()]
    for part in parts:
        if not any(code.startswith(part) for code in CODES):
            known = ", ".join(sorted(CODES))
            raise ConfigError(f"{where}: no code begins with {part!r}. The codes are {known}")
    return {code for code in CODES if not parts or code.startswith(tuple(parts))}
