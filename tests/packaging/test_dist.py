"""The files that are published: those of the package, and nothing else of the repository."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from .conftest import ROOT, done, hatchling

MIB = 2**20
WHEEL_LIMIT, SDIST_LIMIT = 3.5 * MIB, 3.5 * MIB
SUFFIXES = {".py", ".typed", ".toml", ".jsonl", ".js", ".css", ".html", ".json", ".gz", ".safetensors", ".txt"}
SDIST = {"src", "pyproject.toml", "PKG-INFO", ".gitignore", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"}
"""An sdist is what builds the wheel. Tests and docs read files of the whole repository, so they are in the clone."""

pytestmark = pytest.mark.slow


def files_of(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_the_package_alone(wheel: Path) -> None:
    assert wheel.stat().st_size <= WHEEL_LIMIT
    names = files_of(wheel)
    (info,) = {Path(name).parts[0] for name in names} - {"holdfast", "holdfast_verifiers.py"}
    assert info.startswith("holdfast_rl-") and info.endswith(".dist-info")
    about = {name.removeprefix(f"{info}/") for name in names if name.startswith(info)}
    assert about == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    files = [Path(name) for name in names if name.startswith("holdfast/")]
    assert {path.suffix for path in files} <= SUFFIXES
    assert not [path for path in files if {"tests", "research", "benchmarks", "docs", "__pycache__"} & set(path.parts)]
    bundled = (
        "quickstart.toml",
        "flaky.toml",
        *(f"starts/{x}/model/model.safetensors" for x in ("quickstart", "flaky")),
    )
    assert {
        "holdfast/py.typed",
        "holdfast_verifiers.py",
        *(f"holdfast/recipe/bundled/{name}" for name in bundled),
    } <= names
    in_the_clone = {path.relative_to(ROOT / "src") for path in (ROOT / "src" / "holdfast").rglob("*.py")}
    assert {path for path in files if path.suffix == ".py"} == in_the_clone


def test_the_sdist_holds_what_builds_the_wheel(
    dist: Path, wheel: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (sdist,) = dist.glob("holdfast_rl-*.tar.gz")
    assert sdist.stat().st_size <= SDIST_LIMIT
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
        archive.extractall(tmp_path, filter="data")
    assert {Path(name).parts[0] for name in names if name} == SDIST
    assert not [name for name in names if name.endswith(".pyc") or "egg-info" in name]
    (source,) = tmp_path.iterdir()
    done(hatchling(tmp_path_factory), "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=source)
    (again,) = tmp_path.glob("*.whl")
    assert files_of(again) == files_of(wheel)
