"""Links from a finding to the rollouts that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from holdfast.base.collapse import WINDOW
from holdfast.diagnose.finding import Finding
from holdfast.diagnose.texts import KINDS

OUTCOMES = {
    "LLD001": "correct",
    "LLD002": "correct",
    "LLD003": "correct",
    "LLD004": "correct",
    "RET001": "failed",
    "RET002": "empty",
    "RWD001": "incorrect",
    "RWD002": "unanswered",
    "TRN001": "truncated",
}
"""The outcome of the rollouts that a finding is about. The other codes are about rollouts of any outcome."""
WORDS = {
    "correct": "correct rollouts",
    "incorrect": "incorrect rollouts",
    "failed": "failed rollouts",
    "empty": "rollouts with a search that found nothing",
    "unanswered": "rollouts without an answer",
    "truncated": "truncated rollouts",
    "": "rollouts",
}
_SHARE = 0.1
"""Rollouts that are further from a finding than this share of the run do not show it."""


@dataclass(frozen=True, slots=True)
class RolloutsLink:
    """Rollouts of the page that show a finding."""

    href: str
    """Such as `#step=35-45&outcome=correct`: what the page's filters are set to."""
    text: str


def link_of(
    finding: Finding, shown: Sequence[Mapping[str, Any]], run: int | None, last_step: int
) -> RolloutsLink | None:
    """The rollouts among `shown` (rows of `rollouts_json`) nearest to the finding, with the outcome it is about.

    They are at most 5 steps away, or a hundredth of the run; if there are none, at the nearest sampled step. Without
    any of the outcome, rollouts of every outcome are meant. None if none is near. With `run`, only that run's.
    """
    for outcome in dict.fromkeys((OUTCOMES.get(finding.code, ""), "")):
        steps = {
            row["step"]
            for row in shown
            if (run is None or row["run"] == run) and (not outcome or outcome in row["outcomes"])
        }
        reach = max(WINDOW, last_step // 100)
        near = {step for step in steps if abs(step - finding.step) <= reach}
        if not near and steps:
            nearest = min(steps, key=lambda step: abs(step - finding.step))
            near = {nearest} if abs(nearest - finding.step) <= max(reach, _SHARE * last_step) else set()
        if near:
            return _link(min(near), max(near), outcome, run)
    return None


def of_kind(kind: str, step: int, run: int | None) -> str:
    """What the filters are set to for something that texts show: its kind, or the step where it begins."""
    chosen = {"run": run, "outcome": kind} if kind in KINDS else {"run": run, "step": step}
    return f"#{urlencode({name: value for name, value in chosen.items() if value is not None})}"


def _link(first: int, last: int, outcome: str, run: int | None) -> RolloutsLink:
    chosen = {"run": run, "step": first if first == last else f"{first}-{last}", "outcome": outcome or None}
    span = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
    filters = {name: value for name, value in chosen.items() if value is not None}
    return RolloutsLink(f"#{urlencode(filters)}", f"{WORDS[outcome].capitalize()} of {span}")
