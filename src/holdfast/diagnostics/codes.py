"""Names of findings, and choosing among them. Light: what checks a recipe imports this."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import ConfigError

CODES = (
    "GRD002",
    "MSK001",
    "SMP001",
    "PEN001",
    "RET001",
    "RET002",
    "GRP001",
    "STP001",
    "LLD001",
    "LLD002",
    "LLD003",
    "LLD004",
    "ISD001",
    "ENT001",
    "ENT002",
    "GRD001",
    "TRN001",
    "RWD002",
    "RWD001",
)
"""Every code, causes before symptoms: findings of one step are told in this order."""


def chosen(parts: Iterable[str], *, where: str) -> set[str]:
    """The codes that begin with one of `parts`; all of them when there are no parts.

    >>> sorted(chosen(["LLD", "ent001"], where="--select"))
    ['ENT001', 'LLD001', 'LLD002', 'LLD003', 'LLD004']

    Raises `ConfigError` for a part that no code begins with; `where` is who asked.
    """
    wanted = [part.strip().upper() for part in parts]
    for part in wanted:
        if not part or not any(code.startswith(part) for code in CODES):
            raise ConfigError(f"{where}: no finding's code begins with {part!r}. The codes are {', '.join(CODES)}")
    return {code for code in CODES if not wanted or code.startswith(tuple(wanted))}
