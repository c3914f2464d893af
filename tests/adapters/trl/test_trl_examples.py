"""The two scripts of examples/: they differ in one line and its import, and both run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("name", ["failing", "stabilised"])
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
