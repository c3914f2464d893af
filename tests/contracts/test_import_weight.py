"""What importing a module loads. Reading a log must not load torch; a loss must not load transformers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = {"torch", "transformers", "tokenizers", "trl", "verl", "ray", "vllm", "faiss", "fastapi", "Stemmer", "peft"}

# Only packages of torch's own may come with the losses: people use them beside any version of everything else.
NOT_TORCHS = HEAVY - {"torch"} | {"pydantic", "typer", "rich", "tomli_w", "safetensors", "Stemmer", "wandb", "pyarrow"}


def loaded_by(statement: str) -> set[str]:
    """Names in `sys.modules` after the statement, in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def loaded_by_command(*words: str) -> set[str]:
    run = f"assert CliRunner().invoke(app, {words!r}).exit_code == 0"
    return loaded_by(f"from typer.testing import CliRunner\nfrom holdfast.cli.main import app\n{run}")


LIGHT = """
holdfast holdfast.recipe holdfast.methods.penalties holdfast.adapters.launch.plan holdfast.adapters.launch.verl_files
holdfast.hosts holdfast.tasks.questions holdfast.base.scoring holdfast.evaluate.methods holdfast.evaluate.results
holdfast.agent.trajectory holdfast.agent.rewards holdfast.agent.observations holdfast.retrieval.types
holdfast.retrieval.cache holdfast.retrieval.client holdfast.diagnose holdfast.train.tracking holdfast.cli.main
holdfast_research.experiments holdfast_research.page
"""


def test_what_needs_no_torch_loads_none() -> None:
    loaded = loaded_by(f"import {', '.join(LIGHT.split())}")
    assert set(LIGHT.split()) <= loaded
    assert not loaded & HEAVY


def test_a_recipe_is_checked_without_the_rules() -> None:
    """`guard.codes` names codes, which come from the registry alone."""
    loaded = loaded_by("from holdfast.recipe import load\nload(None, ['--guard.codes', 'LLD'])")
    assert "holdfast.diagnose.codes" in loaded
    assert not loaded & {"numpy", "holdfast.diagnose.rules"}


def test_losses_need_torch_alone() -> None:
    loaded = loaded_by("import holdfast.losses")
    assert "torch" in loaded
    assert not loaded & NOT_TORCHS
    ours = {name for name in loaded if name.startswith("holdfast.")}
    assert {name for name in ours if not name.startswith("holdfast.losses")} == set()


def test_help_loads_neither_torch_nor_a_schema_and_diagnose_no_torch() -> None:
    """What a newcomer types first must answer at once. `train --help` lists settings, so it may load the schema."""
    ours = {"holdfast.evaluate", "holdfast.agent", "holdfast.recipe"}
    assert not loaded_by_command("--help") & {*HEAVY, *ours, "numpy", "pydantic"}
    assert not loaded_by_command("train", "--help") & {*HEAVY, "numpy"}
    assert not loaded_by_command("train", "--dry-run") & (HEAVY - {"Stemmer"})  # it builds the index
    log = str(Path(__file__).parents[1] / "fixtures" / "logs" / "trl-console.log")
    assert not loaded_by_command("diagnose", log) & {*HEAVY, "pandas", "httpx", "matplotlib"}
