"""The end of a process does not wait for a call that hangs."""

from __future__ import annotations

import subprocess
import sys
import threading

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
