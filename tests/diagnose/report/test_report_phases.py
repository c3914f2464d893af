"""Phases begin with the findings that name them, in their order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.base.collapse import Course, Fall
from holdfast.diagnose.finding import Diagnosis, Finding
from holdfast.diagnose.report.data import phases_of


def halved_at(step: int | None, back_step: int | None = None) -> Course:
    if step is None:
        return Course()
    fall = Fall(peak_step=1, step=step, peak=1.0, level=0.5, lost=0.5, measure="peak")
    return Course(fall, fall, back_step)


def spans(diagnosis: Diagnosis) -> list[tuple[str, int, int]]:
    return [(phase.name, phase.start, phase.end) for phase in phases_of(diagnosis, 1, 100)]


@pytest.mark.parametrize(
    ("found", "half", "expected"),
    [
        ({}, None, []),
        ({"LLD001": 20}, None, [("rise", 1, 20), ("stagnation", 20, 100)]),
        (
            {"LLD001": 20, "LLD002": 40, "LLD003": 60},
            80,
            [("rise", 1, 20), ("stagnation", 20, 40), ("decay", 40, 60), ("collapse", 60, 100)],
        ),
        ({"LLD004": 30, "LLD002": 40}, None, [("rise", 1, 30), ("decay", 30, 100)]),
        ({"LLD002": 20, "LLD001": 40}, None, [("rise", 1, 20), ("decay", 20, 100)]),  # never back to stagnation
        ({"STP001": 4, "RWD001": 9}, 12, [("rise", 1, 9), ("collapse", 9, 100)]),  # a step too large: no decay
        ({}, 50, [("rise", 1, 50), ("collapse", 50, 100)]),
        ({"LLD001": 20, "LLD002": 20}, None, [("rise", 1, 20), ("decay", 20, 100)]),
        ({"LLD003": 1}, None, [("collapse", 1, 100)]),
    ],
)
def test_phases(
    make_finding: Callable[..., Finding], found: dict[str, int], half: int | None, expected: list[tuple[str, int, int]]
) -> None:
    findings = tuple(make_finding(code, step) for code, step in found.items())
    assert spans(Diagnosis(findings=findings, course=halved_at(half))) == expected


def test_a_reward_that_came_back_did_not_collapse() -> None:
    assert spans(Diagnosis(findings=(), course=halved_at(50, back_step=70))) == []
