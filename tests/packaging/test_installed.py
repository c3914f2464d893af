"""The wheel in an empty environment of each Python, without torch: `diagnose`, and a fast part of the tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .conftest import ROOT, add_packages, done, interpreter, new_environment, run

LOGS = ROOT / "tests" / "fixtures" / "logs"
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
FAST = (
    *(
        "tests/recipe/test_config.py",
        "tests/recipe/test_settings.py",
        "tests/data/test_questions.py",
        "tests/base/test_jsonl.py",
    ),
    *(
        "tests/base/test_scoring.py",
        "tests/base/test_collapse.py",
        "tests/base/test_run_folder.py",
    ),
    *("tests/diagnose/test_rules.py", "tests/diagnose/test_readers.py"),
)
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "version", [*(pytest.param(version, marks=pytest.mark.long) for version in ("3.11", "3.12")), "3.13"]
)
def test_diagnose_needs_the_core_alone(wheel: Path, tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"Python {version} is not on this machine")
    bin_folder = new_environment(tmp_path / "venv", wheel, python=python)
    holdfast = bin_folder / "holdfast"
    assert "No module named 'torch'" in run(bin_folder / "python", "-c", "import torch").stderr

    for name in ("trl-stock", "verl-console.log"):
        found = json.loads(done(holdfast, "diagnose", LOGS / name, "--json", code=1))  # 1: it has findings
        assert "finding" in {finding["level"] for finding in found["findings"]}
    done(holdfast, "report", LOGS / "trl-stock", "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 50_000
    assert "diagnose" in done(bin_folder / "holdfast-rl", "--help")
    assert "quickstart" in done(holdfast, "recipe", "list")
    missing = run(holdfast, "train")
    assert missing.returncode == 2 and "pip install 'holdfast-rl[train]'" in missing.stderr

    if version != THIS:  # these tests run with this Python anyway
        add_packages(bin_folder, str(wheel), "pytest")
        done(bin_folder / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *FAST)
