"""What is published: the files of the wheel and of the sdist, and the wheel in an empty environment without torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "tests" / "fixtures" / "logs"
MIB = 2**20
WHEEL_LIMIT, SDIST_LIMIT = 3.5 * MIB, 6 * MIB
SUFFIXES = {".py", ".typed", ".toml", ".jsonl", ".js", ".css", ".json", ".gz", ".safetensors"}

pytestmark = pytest.mark.slow


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it in the repository, where nothing but what is installed can be imported."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, env=environment, cwd=ROOT, timeout=600
    )


def new_environment(folder: Path, *packages: str | Path) -> Path:
    """The `bin` folder of a virtual environment with these packages. Skips the test where pip reaches no index."""
    venv.create(folder, with_pip=True)
    bin_folder = folder / ("Scripts" if sys.platform == "win32" else "bin")
    done = run(bin_folder / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages)
    offline = re.search("No matching distribution|Could not find a version|ConnectionError|Max retries", done.stderr)
    if offline and "CI" not in os.environ:
        pytest.skip(f"pip cannot install {packages}: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return bin_folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    python = new_environment(tmp_path_factory.mktemp("build") / "venv", "hatchling>=1.26") / "python"
    done = run(python, "-m", "hatchling", "build", "-d", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("holdfast_rl-*-py3-none-any.whl")
    return path


def test_the_wheel_holds_the_package_alone(wheel: Path) -> None:
    assert wheel.stat().st_size <= WHEEL_LIMIT
    names = zipfile.ZipFile(wheel).namelist()
    files = [Path(name) for name in names if not name.startswith("holdfast_rl-")]
    assert {path.parts[0] for path in files} == {"holdfast"}
    assert {path.suffix for path in files} <= SUFFIXES
    assert not [path for path in files if {"tests", "research", "benchmarks", "docs"} & set(path.parts)]
    assert {"holdfast/py.typed", "holdfast/recipes/quickstart.toml", "holdfast/recipes/flaky.toml"} <= set(names)
    starts = {f"holdfast/recipes/starts/{name}/model/model.safetensors" for name in ("quickstart", "flaky")}
    assert starts <= set(names)
    in_the_clone = {path.relative_to(ROOT / "src") for path in (ROOT / "src" / "holdfast").rglob("*.py")}
    assert {path for path in files if path.suffix == ".py"} == in_the_clone


def test_the_sdist_can_be_built_and_read(built: Path) -> None:
    (path,) = built.glob("holdfast_rl-*.tar.gz")
    assert path.stat().st_size <= SDIST_LIMIT
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"pyproject.toml", "README.md", "LICENSE", "src/holdfast/__init__.py", "docs/guide/quickstart.md"} <= set(
        names
    )
    assert not [name for name in names if name.startswith(("research", "benchmarks", "runs", ".git/"))]


def test_diagnose_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    bin_folder = new_environment(tmp_path / "venv", wheel)
    assert run(bin_folder / "python", "-c", "import torch").returncode != 0
    for name in ("trl-stock", "verl-console.log"):
        done = run(bin_folder / "holdfast", "diagnose", LOGS / name)
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
        assert done.stdout.strip()
    verbs = run(bin_folder / "holdfast", "--help").stdout
    assert "diagnose" in verbs and "train" in verbs
    assert run(bin_folder / "holdfast-rl", "--help").returncode == 0
    if re.search(r"^│ recipe\b", verbs, re.M):
        assert "quickstart" in run(bin_folder / "holdfast", "recipe", "list").stdout
    missing = run(bin_folder / "holdfast", "train")
    assert missing.returncode == 2 and "pip install 'holdfast-rl[train]'" in missing.stderr
