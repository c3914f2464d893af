"""Files of samples, what is said of a rollout, and which rollouts a finding leads to."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.diagnose.finding import Finding
from holdfast.diagnose.readers.rollouts.files import rollouts_at
from holdfast.diagnose.report import SampledRollout, SampledTurn
from holdfast.diagnose.report.parts import WORDS, link_of
from holdfast.diagnose.report.samples import read_changes, rollouts_json
from holdfast.diagnose.rules import RULES
from holdfast.diagnose.texts import outcomes_of

ROW: dict[str, Any] = {
    "step": 3,
    "id": "world/train/1",
    "question": "Where?",
    "golden_answers": ["Mora", "Lake"],
    "turns": [
        {
            "text": "<search> é </search>",
            "observation": "Doc 1",
            "hits": ["d1"],
            "query": "é",
            "token_chars": [8, 0, 2, 10, 0],
            "token_changes": [-0.5, 0.1, None, 0.0, 0.25],
        },
        {"text": "<answer> Mora </answer>", "observation": "", "hits": []},
    ],
    "answer": "Mora",
    "status": "ok",
    "reward": 1.0,
    "reward_parts": {"em": 1.0},
}


def read_rollouts(folder: Path) -> tuple[SampledRollout, ...]:
    return rollouts_at(folder / "trajectories.jsonl").rollouts


def write(folder: Path, *lines: Any, name: str = "trajectories.jsonl") -> None:
    (folder / name).write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))


def test_a_rollout_token_by_token(tmp_path: Path) -> None:
    write(tmp_path, ROW)
    (rollout,) = read_rollouts(tmp_path)
    assert (rollout.step, rollout.question, rollout.golden_answers) == (3, "Where?", ("Mora", "Lake"))
    assert rollout.correct and rollout.reward == 1.0 and rollout.answer == "Mora"
    search, answer = rollout.turns
    assert search.tokens is not None and answer.tokens is None
    assert [piece for piece, _ in search.tokens] == ["<search>", "", " é", " </search>", ""]
    assert [c for _, c in search.tokens][:2] == [-0.5, 0.1] and search.tokens[2][1] != search.tokens[2][1]
    assert search.query == "é" and search.hits == ("d1",) and answer.query is None


def test_files_from_before_tokens_were_written(tmp_path: Path) -> None:
    old = {**ROW, "turns": [{"text": "<search> x </search>", "observation": "o", "hits": ["d"]}], "reward": None}
    write(tmp_path, {**old, "step": 5}, {**old, "step": 2})
    rollouts = read_rollouts(tmp_path)
    assert [rollout.step for rollout in rollouts] == [2, 5] and rollouts[0].turns[0].tokens is None
    assert rollouts[0].reward is None


@pytest.mark.parametrize(
    ("chars", "changes"), [([8, 2, 9], [0.1, 0.1, 0.1]), ([8, 12], [0.1]), ([21, -1], [0.1, 0.1]), (None, [0.1])]
)
def test_pieces_that_do_not_fit_the_text_are_left_out(tmp_path: Path, chars: Any, changes: Any) -> None:
    turn = {"text": "<search> é </search>", "token_chars": chars, "token_changes": changes}
    write(tmp_path, {**ROW, "turns": [turn]})
    (rollout,) = read_rollouts(tmp_path)
    assert rollout.turns[0].tokens is None and rollout.turns[0].text == "<search> é </search>"


def test_broken_lines_are_passed_over(tmp_path: Path) -> None:
    broken = ["{", "7", "null", '{"step": 1}', {**ROW, "turns": 3}, {**ROW, "step": "x"}, {**ROW, "reward_parts": 3}]
    write(tmp_path, *broken, ROW, '{"step": 9, "ques')
    with (tmp_path / "trajectories.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\x00")
    assert [rollout.step for rollout in read_rollouts(tmp_path)] == [3]
    write(tmp_path, "[]", {"step": 2, "correct": [0.1, None], "incorrect": []}, "{", name="displacement.jsonl")
    (row,) = read_changes(tmp_path)
    assert row.step == 2 and row.correct[0] == 0.1 and row.correct[1] != row.correct[1] and row.incorrect == ()


def test_without_files_there_are_none_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    assert read_rollouts(tmp_path) == () and read_changes(tmp_path / "absent") == ()
    for name in ("trajectories.jsonl", "displacement.jsonl"):
        os.mkfifo(tmp_path / name)
    found: list[Any] = []

    def read() -> None:
        found.append((*read_rollouts(tmp_path), *read_changes(tmp_path)))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(10)
    assert found == [()]


# ---- outcomes, and the rollouts a finding leads to


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
    assert {rule.rollouts or "" for rule in RULES.values()} == set(WORDS)


def shown(*steps: int, run: int = 0, outcome: str = "correct") -> list[dict[str, Any]]:
    return [{"run": run, "step": step, "outcomes": [outcome]} for step in steps]


def test_a_link_names_steps_and_outcome_or_the_nearest_step(make_finding: Callable[..., Finding]) -> None:
    found = make_finding("LLD002", 40)
    rows = shown(30, 35, 38, 44, 46) + shown(40, 41, outcome="incorrect")
    assert link_of(found, rows, None, 100) == ("#step=35-44&outcome=correct", "Correct rollouts of steps 35 to 44")
    assert link_of(found, rows + shown(39, run=2), 2, 100) == (
        "#run=2&step=39&outcome=correct", "Correct rollouts of step 39",
    )  # fmt: skip
    assert link_of(found, shown(40, 41, outcome="incorrect"), None, 100) == (
        "#step=40-41",
        "Rollouts of steps 40 to 41",
    )
    far = make_finding("TRN001", 400)
    near = link_of(far, shown(1, 330, 1000, outcome="truncated"), None, 1000)
    assert near == ("#step=330&outcome=truncated", "Truncated rollouts of step 330")
    assert link_of(far, shown(1, 1000, outcome="truncated"), None, 1000) is None is link_of(far, [], None, 1000)


def test_rollouts_around_a_finding_are_kept() -> None:
    every = [rollout(HUM, step=step) for step in range(1, 10_001)]
    assert {row["step"] for row in rollouts_json([every])} & {4999, 5001} == set()
    steps = {row["step"] for row in rollouts_json([every], [[5000]])}
    assert {4999, 5000, 5001, 1, 10_000} <= steps and 200 <= len(steps) <= 240
    crowded = {row["step"] for row in rollouts_json([every], [list(range(3000, 6000))])}
    assert 1 in crowded and 10_000 in crowded and len(crowded) <= 240
