"""Threads for calls that wait for a network. Neither `close` nor the end of the process waits for a running call."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """At most `count` threads, started as calls come. The standard library's pool joins its threads at exit: Ctrl-C
    would wait for the slowest call, minutes at a server that hangs."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._threads: list[Thread] = []
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.closed = Event()
        """Set by `close`. A call that pauses waits for it."""

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call. Calls begin in order."""
        future: Future[T] = Future()

        def run() -> None:
            if not self.closed.is_set() and future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        self._calls.put(run)
        if len(self._threads) < self._count:
            self._threads.append(Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True))
            self._threads[-1].start()
        return future

    def close(self) -> None:
        """Begin no further call. The futures of those that have not begun stay pending."""
        self.closed.set()
        for _ in self._threads:
            self._calls.put(lambda: None)  # wake them

    def _work(self) -> None:
        while not self.closed.is_set():
            self._calls.get()()


class LoopThread:
    """An event loop in a thread, which ends with the last reference to it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self.close = weakref.finalize(self, _end_loop, self._loop, self._thread)
        """Cancel what runs, and end the thread. Twice is once."""

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin `work`, for a caller in another thread. Cancelling the future cancels it."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # closed
            work.close()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, for a caller in another thread."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _end_loop(loop: asyncio.AbstractEventLoop, thread: Thread) -> None:
    async def cancel() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=1)
        loop.stop()

    if threading.current_thread() is not thread and thread.is_alive():
        asyncio.run_coroutine_threadsafe(cancel(), loop)
        thread.join()
        loop.close()
