"""Calls in threads, whose end waits for none that hangs; and work in a copy of this process, which has limits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from holdfast.base.apart import TooCostly, apart
from holdfast.base.workers import Workers


def test_calls_run_at_the_same_time_and_give_their_results_or_errors() -> None:
    workers, both = Workers(2, "both"), threading.Barrier(2)
    calls = [workers.submit(both.wait, timeout=30) for _ in range(2)]
    assert sorted(call.result(timeout=30) for call in calls) == [0, 1]
    assert isinstance(workers.submit(int, "x").exception(timeout=30), ValueError)
    workers.close()


def test_calls_that_wait_have_no_threads() -> None:
    """A batch has thousands of searches, and containers limit threads."""
    workers, gate = Workers(2, "few"), threading.Event()
    calls = [workers.submit(gate.wait, 30) for _ in range(200)]
    assert sum(thread.name.startswith("few") for thread in threading.enumerate()) == 2
    gate.set()
    assert all(call.result(timeout=30) for call in calls)
    workers.close()


def test_after_the_end_no_call_begins() -> None:
    workers, gate, begun = Workers(1, "one"), threading.Event(), []
    first = workers.submit(gate.wait, 30)
    second = workers.submit(begun.append, 1)
    workers.close()
    gate.set()
    assert first.result(timeout=30)
    for thread in [thread for thread in threading.enumerate() if thread.name.startswith("one-")]:
        thread.join(30)
    assert not begun and not second.done()


def test_a_process_ends_while_a_call_hangs() -> None:
    script = "import time; from holdfast.base.workers import Workers; Workers(1, 'w').submit(time.sleep, 600)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


# ---- work in a copy of this process

copied = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no copy of a process: the work runs in this one")


@copied
def test_the_result_comes_back_however_long_it_is() -> None:
    assert apart(lambda: b"x" * 10**6, 5, 2**28) == b"x" * 10**6


@copied
def test_what_the_work_raises_is_told() -> None:
    def work() -> bytes:
        raise ValueError("no lake")

    with pytest.raises(RuntimeError, match=r"^ValueError: no lake$"):
        apart(work, 5, 2**28)


@copied
def test_work_without_an_end_takes_too_much_time() -> None:
    def work() -> bytes:
        while True:
            pass

    began = time.monotonic()
    with pytest.raises(TooCostly) as cost:
        apart(work, 1, 2**28)
    assert cost.value.is_time and time.monotonic() - began < 60


@copied
@pytest.mark.parametrize("work", [lambda: bytes(2**40), os.abort])
def test_too_much_memory_and_a_crash_are_no_matter_of_time(work) -> None:
    with pytest.raises(TooCostly) as cost:
        apart(work, 5, 2**28)
    assert not cost.value.is_time
