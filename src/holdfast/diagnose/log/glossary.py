"""What every metric means, of this trainer and of others."""

from __future__ import annotations

import tomllib
from pathlib import Path

METRICS: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""Every metric that a run may log, with its meaning."""


def glossary_entry(name: str) -> str | None:
    """The text of the glossary for a metric, including those of a numbered action or of a dataset.

    >>> glossary_entry("likelihood/correct/action_2") == METRICS["likelihood/correct/action_<k>"]
    True
    """
    if name.startswith("eval/") and name.endswith("/score"):
        return METRICS.get("eval/<dataset>/score")
    if name.startswith("tools/"):
        return METRICS.get(f"tools/<name>/{name.rpartition('/')[2]}")
    head, _, number = name.rpartition("action_")
    return METRICS.get(f"{head}action_<k>" if head and number.isdigit() else name)
