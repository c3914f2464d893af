"""examples/failing_and_stabilised_trl.ipynb: its code runs, and its outputs are those of one run from top to bottom.

To make the outputs again, in an environment with Jupyter:

    jupyter execute --inplace examples/failing_and_stabilised_trl.ipynb
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[3] / "examples" / "failing_and_stabilised_trl.ipynb"
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
RUNS = ("failing", "stabilised", "untruncated")


def printed(cell: dict[str, Any]) -> str:
    """What it printed, without the codes that colour it."""
    text = "".join(line for output in cell["outputs"] for line in output.get("text", []))
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.long
@pytest.mark.slow
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rollout batch a run instead of all of them."""
    pytest.importorskip("trl")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "notebook"}
    for cell in CELLS:
        source = re.sub(r"^BATCHES = \d+", "BATCHES = 1", "".join(cell["source"]), flags=re.M)
        exec(compile(source, NOTEBOOK.name, "exec"), namespace)
    assert namespace["BATCHES"] == 1
    assert set(namespace["logs"]) == set(RUNS)
    assert "holdfast/penalty/active_fraction" in namespace["logs"]["stabilised"][0]
    first = {name: rows[0]["reward"] for name, rows in namespace["logs"].items()}
    assert first["failing"] == first["stabilised"], "the same start, the same seed"
    for name in RUNS:
        assert (tmp_path / "runs" / "notebook" / name / "trainer_state.json").is_file()
