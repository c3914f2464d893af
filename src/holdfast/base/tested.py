"""With which versions of the trainers holdfast was tested: extras, checks and pages follow this table. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple


class Release(NamedTuple):
    """The first two numbers of a version."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def between(installed: str, first: tuple[int, int], below: tuple[int, int] = (9999, 0)) -> bool:
    """Whether a version is from `first` on and below `below`; False for one that is not numbers.

    >>> between("1.15.0", (1, 15), (2, 0)), between("1.9", (1, 15), (2, 0)), between("main", (1, 15), (2, 0))
    (True, False, False)
    """
    try:
        major, minor = (int(part) for part in installed.split(".")[:2])
    except ValueError:
        return False
    return first <= (major, minor) < below


@dataclass(frozen=True, slots=True)
class Versions:
    """The oldest and the newest version with which the tests of an adapter passed."""

    oldest: Release
    newest: Release

    def works_with(self, installed: str) -> bool:
        """Whether a version is the oldest or newer. What is newer than the newest may work."""
        return between(installed, self.oldest)

    @property
    def untested(self) -> Release:
        """The first version above the newest."""
        return Release(self.newest.major, self.newest.minor + 1)


TESTED: Mapping[str, Versions] = {
    "trl": Versions(Release(1, 15), Release(1, 16)),
    "unsloth_zoo": Versions(Release(2026, 10), Release(2026, 10)),
    "verl": Versions(Release(0, 8), Release(0, 9)),
    "prime-rl": Versions(Release(0, 8), Release(0, 8)),
    "verifiers": Versions(Release(0, 4), Release(0, 4)),
    "openenv": Versions(Release(0, 10), Release(0, 10)),
    "skyrl-gym": Versions(Release(0, 4), Release(0, 4)),
    "slime": Versions(Release(0, 3), Release(0, 3)),
    "miles": Versions(Release(0, 1), Release(0, 1)),
}
"""By package. `tests/contracts/test_tested.py` compares pyproject.toml, constraints/ and the pages with it."""


def installed_version(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def newer_than_tested(package: str, installed: str | None) -> str | None:
    """A sentence for a version that is newer than all that were tested.

    >>> newer_than_tested("verl", "0.12.1")
    'verl 0.12.1 is newer than 0.9, the newest that holdfast was tested with. If anything looks wrong, install 0.9'
    """
    tested = TESTED[package]
    if installed is None or not between(installed, tested.untested):
        return None
    return (
        f"{package} {installed} is newer than {tested.newest}, the newest that holdfast was tested with. If "
        f"anything looks wrong, install {tested.newest}"
    )
