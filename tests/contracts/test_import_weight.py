"""What importing a module loads. Reading a log must not load torch; a loss must not load transformers."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"torch", "transformers", "tokenizers", "trl", "verl", "ray", "vllm", "faiss", "fastapi", "Stemmer", "peft"}

# Only packages of torch's own may come with the losses: people use them beside any version of everything else.
NOT_TORCHS = HEAVY - {"torch"} | {"pydantic", "typer", "rich", "tomli_w", "safetensors", "Stemmer", "wandb", "pyarrow"}


def loaded_by(statement: str) -> set[str]:
    """Names in `sys.modules` after the statement, in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


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
