"""Undecided codes: what logs the missing series, or why an observer that was on did not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log

MakeLog = Callable[..., Log]
DISPLACED = ("displacement/correct", "displacement/fraction")
RIGHT = ("likelihood/correct", "likelihood/correct/action_1", "likelihood/correct/action_2")
LLD = ("LLD001", "LLD002", "LLD003", "LLD004")


def remedies_of(log: Log, *codes: str) -> set[str]:
    """The remedies for these undecided codes."""
    remedies = {question.code: question.remedy for question in diagnose(log).cannot_tell}
    return {remedies[code] for code in codes}


@pytest.mark.parametrize(
    ("change", "said", "left_out"),
    [
        ({"drop": ("optimizer_steps_per_rollout",)}, ("with_penalties(GRPOTrainer)",), ("logging_steps", "save_state")),
        ({"every": 10}, ("logging_steps=1",), ("with_penalties",)),
        ({"every": 10, "drop": ("optimizer_steps_per_rollout",)}, ("logging_steps=1", "with_penalties"), ()),
    ],
)
def test_what_to_log_is_said_once_and_only_what_is_missing(
    make_log: MakeLog, change: dict[str, Any], said: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    text = diagnose(make_log(host="trl", **change)).what_to_log
    assert all(part in text for part in said) and not any(part in text for part in left_out), text


def test_a_log_that_has_it_all_asks_for_nothing(make_log: MakeLog) -> None:
    assert diagnose(make_log(host="trl")).what_to_log == diagnose(make_log(host="holdfast")).what_to_log == ""
    assert "save_state" in diagnose(replace(make_log(host="trl"), format="console")).what_to_log


def test_codes_that_make_no_sense_are_not_listed(make_log: MakeLog) -> None:
    """A run without searches has no retriever, and one without a second action none that decays slower."""
    retrieval = ("retrieval/error_fraction", "retrieval/empty_fraction", "rollout/failed_fraction")
    plain = {question.code for question in diagnose(make_log(host="trl", drop=(*retrieval, *RIGHT[2:]))).cannot_tell}
    assert not plain & {"RET001", "RET002", "LLD004"}
    searches = make_log(host="trl", drop=retrieval, rollout__searches=[2.0] * 60)
    assert {"RET001", "RET002"} <= {question.code for question in diagnose(searches).cannot_tell}


@pytest.mark.parametrize(
    ("drop", "reason"),
    [
        ((*RIGHT, *DISPLACED), "correct_above"),
        (DISPLACED, "did not measure displacement"),
        ((*RIGHT, *DISPLACED, "likelihood/incorrect", "optimizer_steps_per_rollout"), "Logged by `with_penalties("),
    ],
)
def test_a_log_is_told_of_the_observer_or_why_it_does_not_help(
    make_log: MakeLog, drop: tuple[str, ...], reason: str
) -> None:
    (remedy,) = remedies_of(make_log(host="trl", drop=drop), *LLD)
    assert reason in remedy and ("Logged by" in remedy) is ("Logged by" in reason)
    for host in ("verl", "unknown", "holdfast"):
        questions = diagnose(make_log(host=host, drop=drop)).cannot_tell
        assert questions and not any("with_penalties`" in q.remedy or "logging_steps" in q.remedy for q in questions)


@pytest.mark.parametrize(
    ("missing", "which"), [("likelihood/incorrect", "correct"), ("likelihood/correct", "incorrect")]
)
def test_rewards_that_the_threshold_does_not_part_get_a_note(make_log: MakeLog, missing: str, which: str) -> None:
    """Rewards of 0 to 10, or of -1 to 0, with a threshold of 0.5."""
    log = make_log(host="trl", drop=(missing, *DISPLACED))
    (note,) = (note for note in diagnose(log).notes if note.code == "OBS001")
    assert note.summary.endswith(f"count as {which}.") and "correct_above" in note.remedy
    assert "OBS001" not in {note.code for note in diagnose(make_log(host="trl")).notes}
    solved = make_log(host="trl", drop=(missing, *DISPLACED), rollout__mixed_group_fraction=[0.0] * 60)
    assert "OBS001" not in {note.code for note in diagnose(solved).notes}
