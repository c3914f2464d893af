"""How verl comes to know the losses: from an entry point or the environment, in the version they are for."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("verl")

import verl

from holdfast.adapters.verl import LOSSES

ROOT = Path(__file__).parents[3]


def run_python(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`folder` holds the metadata of an installed holdfast, with the entry points that pyproject.toml declares."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = folder / "holdfast-0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast\nVersion: 0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in own.items()) for group, own in points.items()]
    (info / "entry_points.txt").write_text("".join(lines))
    paths = os.pathsep.join([str(folder), str(ROOT / "src")])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


without_plugins = pytest.mark.skipif(verl.__version__.startswith("0.8."), reason="verl 0.8 has no plugins")
SHOW = (
    "import verl\nfrom verl.trainer.ppo.core_algos import get_policy_loss_fn as get\nprint(type(get({!r})).__module__)"
)


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, marks=without_plugins, id="entry point"),
        pytest.param(
            {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": "holdfast.adapters.verl"},
            id="environment",
        ),
    ],
)
def test_verl_finds_the_losses_by_itself(tmp_path: Path, environment: dict[str, str]) -> None:
    done = run_python(SHOW.format("holdfast_llds"), tmp_path, **environment)
    assert done.stdout.split() == ["holdfast.adapters.verl"], done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("holdfast: ")]
    assert said == [f"holdfast: policy losses registered with verl {verl.__version__}: {', '.join(LOSSES)}"]


def test_without_the_plugin_verl_knows_none(tmp_path: Path) -> None:
    done = run_python(SHOW.format("holdfast_llds"), tmp_path, VERL_USE_EXTERNAL_PLUGINS="none")
    assert done.returncode != 0 and "Unsupported loss mode: holdfast_llds" in done.stderr


def test_another_version_is_refused_aloud(tmp_path: Path) -> None:
    code = "import verl, sys\nverl.__version__ = '0.11.0'\nimport holdfast.adapters.verl"
    done = run_python(code, tmp_path, VERL_USE_EXTERNAL_PLUGINS="none")
    assert (
        "holdfast: no losses registered: verl 0.11.0 is installed, but holdfast.adapters.verl needs 0.8, 0.9 or 0.10"
        in done.stderr
    )
    assert "ConfigError" in done.stderr and done.returncode != 0


def test_the_loss_of_an_engine_that_is_imported_already_is_ours_too(tmp_path: Path) -> None:
    code = "import verl.workers.engine_workers as e, holdfast.adapters.verl\nprint(hasattr(e.ppo_loss, '__wrapped__'))"
    assert run_python(code, tmp_path, VERL_USE_EXTERNAL_PLUGINS="none").stdout.split() == ["True"]
