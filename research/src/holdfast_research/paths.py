"""Where the study keeps its data and pages: in the clone that this package is installed from, editable."""

from __future__ import annotations

from pathlib import Path

RESEARCH = Path(__file__).resolve().parents[2]
REPOSITORY = RESEARCH.parent
DOCS = RESEARCH / "docs"
RECORDINGS = RESEARCH / "data" / "recordings"
KEPT_RUNS = RESEARCH / "data" / "laboratory"
READINGS = RESEARCH / "data" / "readings"
