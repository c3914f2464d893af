"""Files of samples: of today, of yesterday, and broken ones."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.diagnose.readers.rollouts.files import rollouts_at
from holdfast.diagnose.readers.rollouts.record import SampledRollout
from holdfast.diagnose.report.samples import read_changes

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
