"""One table says with which versions of the trainers holdfast was tested; whatever names a version follows it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from holdfast import __version__
from holdfast.base.tested import TESTED


def requirements(root: Path, package: str) -> list[str]:
    """What the extras of pyproject.toml say of the versions of a package."""
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = [line.partition(";")[0] for extra in extras.values() for line in extra]
    return [line.removeprefix(package) for line in lines if re.match(rf"{package}\b(?!-)", line)]


@pytest.mark.parametrize("package", ["trl", "verl"])
def test_an_extra_installs_what_was_tested(root: Path, package: str) -> None:
    tested = TESTED[package]
    for said in requirements(root, package):
        oldest, below = said.split(",")
        assert below == f"<{tested.untested}"
        assert oldest in (f">={tested.oldest}", f">={tested.newest}"), "all of them, or the newest for CI"
    assert f">={tested.oldest},<{tested.untested}" in requirements(root, package)


def test_the_constraints_have_the_newest_that_was_tested(root: Path) -> None:
    files = [root / "constraints.txt", *sorted((root / "constraints").glob("*.txt"))]
    pinned = [
        (path.stem, name, number)
        for path in files
        for name, number in re.findall(r"^([\w-]+)==(.+)$", path.read_text(), re.M)
        if name in TESTED
    ]
    assert {(file, name) for file, name, _ in pinned} == {
        ("constraints", "trl"), ("trl", "trl"), ("vllm", "trl"), ("verl", "verl"), ("openenv", "trl"),
        ("openenv", "openenv"), ("verifiers", "verifiers"), ("skyrl-gym", "skyrl-gym"),
    }  # fmt: skip
    for file, name, number in pinned:
        assert number.startswith(f"{TESTED[name].newest}."), (file, name)
    (said,) = re.findall(r"with prime-rl ([\d.]+) ", (root / "constraints" / "prime-rl.txt").read_text())
    assert said.startswith(f"{TESTED['prime-rl'].newest}.")


def test_the_hosts_of_the_contracts_are_in_the_table(root: Path) -> None:
    """A host with an environment of its own is in the table; vLLM comes with both."""
    hosts = re.findall(r'^    "([\w-]+)": Host\(', (root / "tools" / "contracts.py").read_text(), re.M)
    assert set(hosts) >= {"trl", "verl", "vllm"}
    assert set(hosts) - {"vllm"} <= set(TESTED)


# ---- what a release needs


def test_one_version(root: Path) -> None:
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(\d[^\]]*)\]", changelog, re.M)
    assert versions[0] == __version__
    assert yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))["version"] == __version__


def test_targets_of_make_exist(root: Path) -> None:
    targets = set(re.findall(r"^([\w%-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.M))
    pages = [
        root / "docs" / "contributing" / "release.md",
        root / "CONTRIBUTING.md",
        root / ".github" / "workflows" / "publish.yml",
    ]
    named = {name for page in pages for name in re.findall(r"\bmake ([a-z][\w-]*)", page.read_text(encoding="utf-8"))}
    assert {"dist", "test-all", "golden"} <= named
    named = {re.sub("^contracts-.*", "contracts-%", name) for name in named}
    assert named <= targets
