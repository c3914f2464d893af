"""Names of findings, and choosing among them. Light: what checks a recipe imports this."""

from __future__ import annotations

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


def chosen(text: str, *, where: str) -> set[str]:
    """The codes that begin with one of the parts between commas; all of them when there are no parts.

    >>> sorted(chosen("LLD,ent001", where="--select"))
    ['ENT001', 'LLD001', 'LLD002', 'LLD003', 'LLD004']

    Raises `ConfigError` for a part that no code begins with; `where` is who asked.
    """
    parts = [part.strip().upper() for part in text.split(",") if part.strip()]
    for part in parts:
        if not any(code.startswith(part) for code in CODES):
            raise ConfigError(f"{where}: no finding's code begins with {part!r}. The codes are {', '.join(CODES)}")
    return {code for code in CODES if not parts or code.startswith(tuple(parts))}
