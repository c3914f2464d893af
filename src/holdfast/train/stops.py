"""Ctrl-C and `kill` while a run trains: they wait while a step changes the policy, so that every stop can be saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def held_stops(may_stop: Callable[[], bool], note: Callable[[str], None]) -> Iterator[list[int]]:
    """A list of the signals SIGINT and SIGTERM that arrived within this context, for the code inside to end soon.

    A signal takes effect at once while `may_stop()`, or if it is the second; else at the end of the context, and `note`
    gets a sentence. Signals that are ignored stay so. Outside the main thread nothing is held.
    """
    arrived: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    previous = {number: handler for number, handler in handlers.items() if handler not in (None, signal.SIG_IGN)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def hold(number: int, _: object) -> None:
        arrived.append(number)
        if may_stop() or len(arrived) > 1:
            restore()
            signal.raise_signal(number)
        note("stopping as soon as this step is finished and saved; the same signal again stops at once")

    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return
    for number in previous:
        signal.signal(number, hold)
    try:
        yield arrived
    finally:
        restore()
    if arrived:
        signal.raise_signal(arrived[0])
