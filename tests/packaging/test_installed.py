"""The wheel in an empty environment, without torch: `diagnose`, and in other Pythons a fast part of the tests too."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .conftest import ROOT, add_packages, done, interpreter, new_environment, run

LOGS = ROOT / "tests" / "fixtures" / "logs"
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
FAST = """
recipe/test_config.py recipe/test_settings.py data/test_questions.py base/test_jsonl.py base/test_scoring.py
base/test_collapse.py base/test_run_folder.py diagnose/test_rules.py diagnose/test_readers.py
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "version", [pytest.param(v, marks=[] if v == THIS else pytest.mark.long) for v in ("3.11", "3.12", "3.13")]
)
def test_diagnose_needs_the_core_alone(wheel: Path, tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"Python {version} is not on this machine")
    bin_folder = new_environment(tmp_path / "venv", wheel, python=python)
    holdfast = bin_folder / "holdfast"
    assert "No module named 'torch'" in run(bin_folder / "python", "-c", "import torch").stderr

    found = json.loads(done(holdfast, "diagnose", LOGS / "trl-stock", "--json", code=1))  # 1: it has findings
    assert "finding" in {finding["level"] for finding in found["findings"]}
    done(holdfast, "report", LOGS / "trl-stock", "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 50_000
    assert "diagnose" in done(bin_folder / "holdfast-rl", "--help")
    missing = run(holdfast, "train")
    assert missing.returncode == 2 and "pip install 'holdfast-rl[train]'" in missing.stderr

    if version != THIS:  # these tests run with this Python anyway
        add_packages(bin_folder, str(wheel), "pytest")
        done(
            bin_folder / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{x}" for x in FAST.split())
        )
