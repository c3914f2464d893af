"""What a release needs: one version everywhere, a citation, and commands that exist."""

from __future__ import annotations

import re

import yaml

from holdfast import __version__

from .conftest import ROOT


def test_one_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(\d[^\]]*)\]", changelog, re.M)
    assert versions[0] == __version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == __version__


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([\w%-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    pages = [
        ROOT / "docs" / "contributing" / "release.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / ".github" / "workflows" / "publish.yml",
    ]
    named = {name for page in pages for name in re.findall(r"\bmake ([a-z][\w-]*)", page.read_text(encoding="utf-8"))}
    assert {"dist", "test-all", "golden"} <= named
    named = {re.sub("^contracts-.*", "contracts-%", name) for name in named}
    assert named <= targets
