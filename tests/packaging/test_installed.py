"""The wheel in an empty environment, without torch. CI does this, and all else, in each Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import ROOT, done, new_environment, run

LOGS = ROOT / "tests" / "fixtures" / "logs"


@pytest.mark.slow
def test_diagnose_needs_the_core_alone(wheel: Path, tmp_path: Path) -> None:
    bin_folder = new_environment(tmp_path / "venv", wheel)
    holdfast = bin_folder / "holdfast"
    assert "No module named 'torch'" in run(bin_folder / "python", "-c", "import torch").stderr

    found = json.loads(done(holdfast, "diagnose", LOGS / "trl-stock", "--json", code=1))  # 1: it has findings
    assert "finding" in {finding["level"] for finding in found["findings"]}
    done(holdfast, "report", LOGS / "trl-stock", "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 50_000
    assert "diagnose" in done(bin_folder / "holdfast-rl", "--help")
    missing = run(holdfast, "train")
    assert missing.returncode == 2 and "pip install 'holdfast-rl[train]'" in missing.stderr
