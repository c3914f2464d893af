"""What is said of a rollout, and which rollouts a finding leads to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.diagnose.finding import Finding
from holdfast.diagnose.report import SampledRollout, SampledTurn
from holdfast.diagnose.report.links import OUTCOMES, WORDS, link_of
from holdfast.diagnose.report.samples import rollouts_json
from holdfast.diagnose.rules import RULES
from holdfast.diagnose.texts import outcomes_of

SEARCH = SampledTurn(text="<search> x </search>", query="x", hits=("d",), observation="Doc")
NOTHING = SampledTurn(text="<search> x </search>", query="x", observation="no passage")
HUM = SampledTurn(text="hm")


def rollout(*turns: SampledTurn, step: int = 1, **more: Any) -> SampledRollout:
    own = {"question": "q", "golden_answers": ("a",), "answer": None, "correct": False, "reward": 0.0}
    return SampledRollout(**{"step": step, "turns": turns} | own | more)


@pytest.mark.parametrize(
    ("made", "outcomes"),
    [
        (rollout(SEARCH, HUM, answer="a", correct=True), ["correct"]),
        (rollout(SEARCH, HUM, answer="b"), ["incorrect"]),
        (rollout(HUM, HUM, answer="b"), ["incorrect", "invalid"]),
        (rollout(HUM, SEARCH, status="truncated"), ["incorrect", "truncated", "unanswered", "invalid"]),
        (rollout(NOTHING, HUM, answer="b"), ["incorrect", "empty"]),
        (rollout(SEARCH, status="retrieval_failed"), ["incorrect", "failed"]),
    ],
)
def test_what_is_said_of_a_rollout(made: SampledRollout, outcomes: list[str]) -> None:
    assert outcomes_of(made) == outcomes


def test_every_code_and_outcome_of_the_links_exists() -> None:
    assert set(OUTCOMES) <= set(RULES)
    assert set(OUTCOMES.values()) | {""} == set(WORDS)


def shown(*steps: int, run: int = 0, outcome: str = "correct") -> list[dict[str, Any]]:
    return [{"run": run, "step": step, "outcomes": [outcome]} for step in steps]


def test_a_link_names_steps_and_outcome(make_finding: Callable[..., Finding]) -> None:
    found = make_finding("LLD002", 40)
    rows = shown(30, 35, 38, 44, 46) + shown(40, 41, outcome="incorrect")
    link = link_of(found, rows, None, 100)
    assert link is not None
    assert (link.href, link.text) == ("#step=35-44&outcome=correct", "Correct rollouts of steps 35 to 44")
    one = link_of(found, rows + shown(39, run=2), 2, 100)
    assert one is not None and one.href == "#run=2&step=39&outcome=correct"
    any_outcome = link_of(found, shown(40, 41, outcome="incorrect"), None, 100)
    assert any_outcome is not None and any_outcome.href == "#step=40-41"


def test_a_link_to_the_nearest_step_or_none(make_finding: Callable[..., Finding]) -> None:
    found = make_finding("TRN001", 400)
    near = link_of(found, shown(1, 330, 1000, outcome="truncated"), None, 1000)
    assert near is not None and near.href == "#step=330&outcome=truncated"
    assert link_of(found, shown(1, 1000, outcome="truncated"), None, 1000) is None
    assert link_of(found, [], None, 1000) is None


def test_rollouts_around_a_finding_are_kept() -> None:
    every = [rollout(HUM, step=step) for step in range(1, 10_001)]
    assert {row["step"] for row in rollouts_json([every])} & {4999, 5001} == set()
    steps = {row["step"] for row in rollouts_json([every], [[5000]])}
    assert {4999, 5000, 5001, 1, 10_000} <= steps and 200 <= len(steps) <= 240
    crowded = {row["step"] for row in rollouts_json([every], [list(range(3000, 6000))])}
    assert 1 in crowded and 10_000 in crowded and len(crowded) <= 240
