"""The wheel in an empty environment of each Python: `diagnose` alone, then with torch and TRL."""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

import pytest

from .conftest import ROOT, add_packages, done, interpreter, new_environment, run

LOGS = ROOT / "tests" / "fixtures" / "logs"
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
FAST = (
    *("tests/test_config.py", "tests/test_settings.py", "tests/test_data.py", "tests/test_jsonl.py"),
    *("tests/test_scoring.py", "tests/test_collapse.py", "tests/test_run_folder.py", "tests/test_trajectory.py"),
    *("tests/diagnostics/test_rules.py", "tests/diagnostics/test_readers.py"),
)
TRL_LINE = """
from trl import GRPOTrainer
from holdfast.adapters.trl import LLDS, with_penalties

Trainer = with_penalties(GRPOTrainer, LLDS(coef=0.2, gate="action"))
print(Trainer.__name__, issubclass(Trainer, GRPOTrainer), Trainer._compute_loss is not GRPOTrainer._compute_loss)
"""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
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
    assert "diagnose" in done(bin_folder / "holdfast-rl", "--help")
    assert "quickstart" in done(holdfast, "recipe", "list")
    missing = run(holdfast, "train")
    assert missing.returncode == 2 and "pip install 'holdfast-rl[train]'" in missing.stderr

    if version != THIS:  # these tests run with this Python anyway
        add_packages(bin_folder, f"{wheel}[report]", "pytest")
        done(bin_folder / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *FAST)


def test_training_and_trl_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """With torch, transformers and TRL of the environment that runs this test. It holds a clone of holdfast, too, but
    by a .pth file, which Python does not read there."""
    pytest.importorskip("trl")
    bin_folder = new_environment(tmp_path / "venv", wheel)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"])
    where = done(bin_folder / "python", "-c", "import holdfast; print(holdfast.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(site)

    done(bin_folder / "holdfast", "train", "--train.steps", "2", "--run.dir", "runs", "--run.name", "two", cwd=tmp_path)
    rows = (tmp_path / "runs" / "two" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [0, 1, 2]
    assert done(bin_folder / "python", "-c", TRL_LINE, cwd=tmp_path).split()[-2:] == ["True", "True"]
