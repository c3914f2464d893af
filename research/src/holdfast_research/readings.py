"""Readings: what a command measured of the rules, kept as JSON in `research/data/readings` with how and when.

The page that shows them is made of these files alone: `python -m holdfast_research.pages.diagnosis_page`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast_research.paths import READINGS, REPOSITORY

RULES = "src/holdfast/diagnose"
"""The folder that decides what is found."""


def keep(name: str, command: str, body: Mapping[str, Any]) -> Path:
    """Write `body` as the reading of this name, with its command, the date and the commit of the rules."""
    READINGS.mkdir(parents=True, exist_ok=True)
    path = READINGS / f"{name}.json"
    whole = {"command": command, "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}", "rules": commit_of_rules(), **body}
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def kept(name: str) -> dict[str, Any] | None:
    """The reading of this name; None if there is none."""
    path = READINGS / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def commit_of_rules() -> str:
    """The last commit that changed the rules, with a `+` if they differ from it."""
    last = _git("log", "-1", "--format=%h", "--", RULES)
    return last + ("+" if _git("status", "--porcelain", "--", RULES) else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()


# ---- shares


def wilson(hits: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """The interval of a share at 95 %.

    >>> [round(x, 3) for x in wilson(19, 20)]
    [0.764, 0.991]
    """
    if not of:
        return 0.0, 1.0
    share, square = hits / of, z * z
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = z * ((share * (1 - share) + square / (4 * of)) / of) ** 0.5 / (1 + square / of)
    return max(0.0, middle - half), min(1.0, middle + half)


def share(hits: int, of: int) -> str:
    """A count with its share and interval.

    >>> share(19, 20)
    '19 of 20, 0.95 (0.76 to 0.99)'
    """
    if not of:
        return "none"
    low, high = wilson(hits, of)
    return f"{hits} of {of}, {hits / of:.2f} ({low:.2f} to {high:.2f})"
