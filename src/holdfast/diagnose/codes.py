"""The codes of all rules, and a selection of codes. Imports little, because the check of a recipe imports it."""

from __future__ import annotations

from holdfast.base.errors import ConfigError

CODES: dict[str, str] = {
    "GRD002": "updates",
    "GRD003": "zeros",
    "LRN001": "learning",
    "MSK001": "sampling",
    "SMP001": "sampling",
    "SMP003": "mismatch",
    "SMP002": "mismatch",
    "SMP004": "weights",
    "ENT003": "entropy",
    "PEN001": "penalty",
    "RET001": "tools",
    "RET002": "tools",
    "TOL002": "tools",
    "TOL001": "tools",
    "RWD003": "hacking",
    "GRP001": "groups",
    "RWD005": "learning",
    "STP001": "updates",
    "OFP001": "staleness",
    "LLD001": "likelihood",
    "LLD002": "likelihood",
    "LLD003": "likelihood",
    "LLD004": "likelihood",
    "ISD001": "updates",
    "KLD001": "divergence",
    "ENT001": "entropy",
    "ENT002": "entropy",
    "GRD001": "updates",
    "TRN001": "truncation",
    "TRN002": "truncation",
    "RWD002": "reward",
    "RWD001": "reward",
    "STL001": "still",
    "RWD004": "learning",
    "OBS001": "likelihood",
    "ZER001": "zeros",
}
"""Every code, and the file of its rule in `diagnose/rules`. Causes come before symptoms: findings of the
same step are reported in this order."""


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
            raise ConfigError(f"{where}: no finding's code begins with {part!r}. The codes are {known}")
    return {code for code in CODES if not parts or code.startswith(tuple(parts))}
