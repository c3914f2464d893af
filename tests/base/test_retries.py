"""Pauses between the attempts of a call, and patience with a server that is away."""

from __future__ import annotations

import pytest

from holdfast.base import retries as module
from holdfast.base.retries import Retries


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock: it shows the sum of these seconds."""
    seconds: list[float] = []
    monkeypatch.setattr(module, "monotonic", lambda: sum(seconds))
    return seconds


def wait_for(retries: Retries, waited: list[float]) -> int:
    """Call a server that is away until the call is given up: the number of its attempts."""
    failures = 1
    while (pause := retries.pause(failures, away="nobody is there")) is not None:
        waited.append(pause)
        failures += 1
    return failures


def test_pauses_double_up_to_the_longest_and_are_spread() -> None:
    retries = Retries(2000, backoff=1.0)
    for failures, mean in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 15), (2000, 15)]:
        pauses = [retries.pause(failures) or 0.0 for _ in range(50)]
        assert len(set(pauses)) > 1 and all(0.5 * mean <= pause <= 1.5 * mean for pause in pauses)


def test_what_the_server_asks_for_is_the_shortest_pause() -> None:
    retries = Retries(1, backoff=1.0)
    assert retries.pause(1, asked=70.0) == 70.0
    assert (retries.pause(1, asked=0.1) or 0.0) >= 0.5


def test_the_attempts_of_a_call_are_counted() -> None:
    retries = Retries(2, backoff=0.0)
    assert [retries.pause(failures) for failures in (1, 2, 3)] == [0.0, 0.0, None]
    assert retries.pause(3, away="nobody is there") is None, "without patience"
    assert Retries(2, backoff=0.0, patience=60.0).pause(3) is None, "who answers with an error is there"


def test_patience_ends_for_all_calls_and_begins_anew_with_an_answer(
    waited: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    retries = Retries(1, backoff=1.0, patience=60.0)
    wait_for(retries, waited)
    assert sum(waited[1:]) == pytest.approx(60.0), "after the retry"
    assert wait_for(retries, waited) == 1, "the next call is given up at once"
    assert caplog.messages == ["nobody is there; holdfast tries again for another 60 seconds"]
    waited.append(600.0)
    retries.answered()
    before = sum(waited)
    assert wait_for(retries, waited) > 2
    assert 60.5 <= sum(waited) - before <= 61.5


def test_a_server_that_asks_for_more_than_the_patience_is_given_up(waited: list[float]) -> None:
    retries = Retries(0, backoff=1.0, patience=60.0)
    assert retries.pause(1, away="full", asked=40.0) == 40.0
    waited.append(40.0)
    assert retries.pause(2, away="full", asked=40.0) is None
