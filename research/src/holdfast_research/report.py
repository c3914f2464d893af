"""Writes what an experiment found: results.json, page.md, and index.html with the curves in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.files import write_whole
from holdfast_research.figures import draw
from holdfast_research.page import html
from holdfast_research.results import markdown
from holdfast_research.values import Experiment, Runs


def write_report(experiment: Experiment, results: Mapping[str, Any], runs: Runs, out: Path) -> Path:
    """The three files, numbers first; returns the page. Raises `MissingExtra` without matplotlib."""
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "results.json", json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_whole(out / "page.md", markdown(results))
    shown = [figure for figure in experiment.figures if any(arm in runs for arm in figure.arms)]
    drawings = [(figure, draw(figure, runs, key=f"f{i}")) for i, figure in enumerate(shown)]
    write_whole(out / "index.html", html(results, drawings))
    return out / "index.html"
