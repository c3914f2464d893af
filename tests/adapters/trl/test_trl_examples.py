"""examples/: two scripts that differ in one line and its import, and a notebook. They run.

To make the outputs of the notebook again, in an environment with Jupyter:

    jupyter execute --inplace examples/failing_and_stabilised_trl.ipynb
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

EXAMPLES = Path(__file__).parents[3] / "examples"
NOTEBOOK = EXAMPLES / "failing_and_stabilised_trl.ipynb"


@pytest.mark.parametrize("name", ["failing", "stabilised"])
def test_a_script_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rollout batch of two questions, with an untrained model of the recipe's world."""
    monkeypatch.chdir(EXAMPLES.parent)
    spec = importlib.util.spec_from_file_location(f"trl_{name}", EXAMPLES / f"trl_{name}.py")
    assert spec is not None and spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    from holdfast.cli.recipes import find
    from holdfast.data.world.bundle import world_of
    from holdfast.data.world.model import build_model, build_tokenizer
    from holdfast.recipe import load

    world = world_of(load(find("collapse")).world)
    tokenizer = build_tokenizer([document.contents for document in world.documents()][:200])
    build_model(tokenizer, hidden=32, layers=1, heads=2).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    trainer = script.train(str(tmp_path / "model"), rollout_batches=1, questions=2, output_dir=str(tmp_path / "run"))
    logged = trainer.state.log_history[0]
    assert logged["step"] == 10 and logged["holdfast/rollout/length"] > 0
    assert ("holdfast/penalty/active_fraction" in logged) is (name == "stabilised")


@pytest.mark.long
@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rollout batch a run instead of all of them."""
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "notebook"}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            source = re.sub(r"^BATCHES = \d+", "BATCHES = 1", "".join(cell["source"]), flags=re.M)
            exec(compile(source, NOTEBOOK.name, "exec"), namespace)
    assert set(namespace["logs"]) == {"failing", "stabilised", "untruncated"}
    assert "holdfast/penalty/active_fraction" in namespace["logs"]["stabilised"][0]
    first = {name: rows[0]["reward"] for name, rows in namespace["logs"].items()}
    assert first["failing"] == first["stabilised"], "the same start, the same seed"
    for name in namespace["logs"]:
        assert (tmp_path / "runs" / "notebook" / name / "trainer_state.json").is_file()
