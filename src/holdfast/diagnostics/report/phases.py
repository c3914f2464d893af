"""The phases of a collapse (arXiv 2512.04220: I stagnation, II slow decay, III collapse), read off findings."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.diagnostics.finding import Diagnosis
from holdfast.diagnostics.rules import RULES


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    """`rise`, `stagnation`, `decay` or `collapse`."""
    start: int
    end: int
    """The step at which the next one begins; the last logged step for the last phase."""


def phases_of(diagnosis: Diagnosis, first: int, last: int) -> tuple[Phase, ...]:
    """Phases from step `first` to `last`; none for a run that shows no sign of a collapse.

    A phase begins with the first finding whose rule names it, and so does not move as the run goes on: stagnation with
    LLD001, decay with LLD002 or LLD004, collapse with LLD003, RWD001 or the loss of half of the peak reward. What comes
    before is the rise. A later phase ends an earlier one for good; one that begins after a later phase has begun is
    left out.
    """
    starts = {
        name: min((f.step for f in diagnosis.findings if f.code in RULES and RULES[f.code].phase == name), default=None)
        for name in ("stagnation", "decay", "collapse")
    }
    if (half := diagnosis.halved) is not None:
        starts["collapse"] = half.step if starts["collapse"] is None else min(starts["collapse"], half.step)
    begun: list[tuple[str, int]] = []
    for name in ("collapse", "decay", "stagnation"):
        start = starts[name]
        if start is not None and (not begun or start < begun[-1][1]):
            begun.append((name, start))
    if not begun:
        return ()
    if first < begun[-1][1]:
        begun.append(("rise", first))
    begun.reverse()
    ends = [start for _, start in begun[1:]] + [last]
    return tuple(Phase(name, start, end) for (name, start), end in zip(begun, ends, strict=True))
