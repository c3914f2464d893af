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


def test_after_the_end_no_call_begins() -> None:
    workers, gate, begun = Workers(1, "one"), threading.Event(), []
    first = workers.submit(gate.wait, 30)
    second = workers.submit(begun.append, 1)
    workers.close()
    gate.set()
    assert first.result(timeout=30)
    for thread in workers._threads:
        thread.join(30)
    assert not begun and not second.done()


def test_a_process_ends_while_a_call_hangs() -> None:
    script = "import time; from holdfast.base.workers import Workers; Workers(1, 'w').submit(time.sleep, 600)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
