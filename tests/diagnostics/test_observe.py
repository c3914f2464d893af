"""Undecided codes: what logs the missing series, or why an observer that was on did not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.diagnostics.diagnose import diagnose
from holdfast.diagnostics.log import Log

MakeLog = Callable[..., Log]
DISPLACED = ("displacement/correct", "displacement/fraction")
RIGHT = ("likelihood/correct", "likelihood/correct/action_1", "likelihood/correct/action_2")
LLD = ("LLD001", "LLD002", "LLD003", "LLD004")


def remedies_of(log: Log, *codes: str) -> set[str]:
    """The remedies for these undecided codes."""
    remedies = {question.code: question.remedy for question in diagnose(log).cannot_tell}
    return {remedies[code] for code in codes}


def test_a_stock_log_is_told_of_the_observer_and_how_to_keep_the_log(make_log: MakeLog) -> None:
    log = make_log(host="trl", drop=(*RIGHT, *DISPLACED, "likelihood/incorrect", "optimizer_steps_per_rollout"))
    assert remedies_of(log, "LLD002") == {
        "Logged by `with_penalties(GRPOTrainer)`, which leaves the loss as it is, with `logging_steps=1` and "
        "`trainer.save_state()` or `Monitoring`."
    }


@pytest.mark.parametrize(
    ("drop", "codes", "reason"),
    [
        ((*RIGHT, *DISPLACED), LLD, "correct_above"),
        (DISPLACED, LLD, "measured no displacement"),
        (RIGHT[2:], ("LLD004",), "no second action"),
        (RIGHT[1:], ("LLD004",), "no second action"),
    ],
)
def test_an_observed_log_is_told_why_not_to_observe(
    make_log: MakeLog, drop: tuple[str, ...], codes: tuple[str, ...], reason: str
) -> None:
    (remedy,) = remedies_of(make_log(host="trl", drop=drop), *codes)
    assert reason in remedy
    assert "Logged by" not in remedy


@pytest.mark.parametrize("host", ["verl", "unknown", "holdfast"])
def test_other_hosts_are_not_told_of_trl(make_log: MakeLog, host: Any) -> None:
    questions = diagnose(make_log(host=host, drop=(*RIGHT, *DISPLACED))).cannot_tell
    assert questions and not any("with_penalties`" in q.remedy or "logging_steps" in q.remedy for q in questions)
