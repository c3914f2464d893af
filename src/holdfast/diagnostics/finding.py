"""A diagnosis as values: findings like a linter's, and the questions the log cannot answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.collapse import Fall


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that happened."""

    code: str
    """Stable, such as `LLD003`; docs/diagnose.md has a section on each."""
    step: int
    """The first step at which the log showed it: a monitor reports it then."""
    lead: int | None = None
    """Steps from `step` to where the reward has lost half its peak (negative: it came after); None without that."""
    summary: str
    """What it means, in one sentence."""
    evidence: Mapping[str, float]
    """Names of series, or of what was computed from them, and their numbers at `step`."""
    series: tuple[str, ...]
    """The series to look at: where a chart pins it."""
    remedy: str
    """What to change, as settings of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotTell:
    """A question that the log leaves open."""

    code: str
    missing: tuple[str, ...]
    """Names of the series it would take."""
    remedy: str
    """Which setting of the host, or which observer, would log them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All that a log says."""

    findings: tuple[Finding, ...]
    """By first step."""
    cannot_tell: tuple[CannotTell, ...] = ()
    fall: Fall | None = None
    """When the reward first fell, as `holdfast.collapse` says; None when it did not."""
    halved: Fall | None = None
    """When the reward had first lost half of its range; None when it never did. Leads are counted to it."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Numbers for the headline: `rows`, `rewards` (how many), `first step`, `last reward` and so on."""
