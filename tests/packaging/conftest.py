"""The wheel and the sdist of this clone, and empty environments to install them into."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
_OFFLINE = "No matching distribution|Could not find a version|ConnectionError|Max retries"


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run it with nothing on Python's path but what is installed."""
    ours = ("PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in ours} | {"OMP_NUM_THREADS": "1"}
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, env=environment, cwd=cwd, timeout=600)


def done(*command: str | Path, cwd: Path = ROOT, code: int = 0) -> str:
    """What it prints. It must end with this code."""
    result = run(*command, cwd=cwd)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout


def new_environment(folder: Path, *packages: str | Path) -> Path:
    """The `bin` folder of a virtual environment with these packages in the versions of `constraints.txt`. pip is not in
    it: ours installs into it, which saves seconds. Skips the test where pip reaches no index."""
    done(sys.executable, "-m", "venv", "--without-pip", folder)
    bin_folder = folder / ("Scripts" if sys.platform == "win32" else "bin")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", bin_folder / "python")
    result = run(*pip, "install", "-q", "--no-compile", "-c", "constraints.txt", *packages)
    if re.search(_OFFLINE, result.stderr) and result.returncode and "CI" not in os.environ:
        pytest.skip(f"pip cannot install {packages}: {result.stderr.strip().splitlines()[-1]}")
    assert result.returncode == 0, result.stderr
    return bin_folder


def linked_environment(folder: Path, wheel: Path, extras: str) -> Path:
    """The Python of a virtual environment with the wheel and its extras, given with commas.

    What the wheel's extras bring, and what that needs, is linked from the environment that runs the tests: torch alone
    would take a minute to install. Skips the test where that environment lacks one of these packages.
    """
    done(sys.executable, "-m", "venv", "--without-pip", folder)
    (site,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (info,) = site.glob("holdfast_rl-*.dist-info")
    for package in {found.name: found for found in _needed(PathDistribution(info), set(extras.split(",")))}.values():
        places = {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}
        for place in places:
            if not (site / place).exists():
                (site / place).symlink_to(Path(str(package.locate_file(place))))
    return folder / "bin" / "python"


def _needed(package: Distribution, extras: set[str], seen: set[str] | None = None) -> Iterator[Distribution]:
    """The installed packages that a package needs with these extras, and those that they need."""
    seen = set() if seen is None else seen
    for requirement in map(Requirement, package.requires or ()):
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            continue
        if f"{requirement.name}[{','.join(sorted(requirement.extras))}]" in seen:
            continue
        seen.add(f"{requirement.name}[{','.join(sorted(requirement.extras))}]")
        try:
            needed = distribution(requirement.name)
        except PackageNotFoundError:
            pytest.skip(f"{requirement.name} is not installed here")
        yield needed
        yield from _needed(needed, requirement.extras, seen)


def hatchling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the build backend, made once."""
    folder = tmp_path_factory.getbasetemp() / "hatchling"
    return folder / "bin" / "python" if folder.is_dir() else new_environment(folder, "hatchling>=1.26") / "python"


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    done(hatchling(tmp_path_factory), "-m", "hatchling", "build", "-d", folder)
    return folder


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("holdfast_rl-*-py3-none-any.whl")
    return path
