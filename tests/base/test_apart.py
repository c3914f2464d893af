"""Work in a copy of this process ends within its limits, and says which one it met."""

from __future__ import annotations

import os
import time

import pytest

from holdfast.base.apart import TooCostly, apart

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no copy of a process")


def test_the_result_comes_back_however_long_it_is() -> None:
    assert apart(lambda: b"x" * 10**6, 5, 2**28) == b"x" * 10**6


def test_what_the_work_raises_is_told() -> None:
    def work() -> bytes:
        raise ValueError("no lake")

    with pytest.raises(RuntimeError, match=r"^ValueError: no lake$"):
        apart(work, 5, 2**28)


def test_work_without_an_end_takes_too_much_time() -> None:
    def work() -> bytes:
        while True:
            pass

    began = time.monotonic()
    with pytest.raises(TooCostly) as cost:
        apart(work, 1, 2**28)
    assert cost.value.is_time and time.monotonic() - began < 60


@pytest.mark.parametrize("work", [lambda: bytes(2**40), os.abort])
def test_too_much_memory_and_a_crash_are_no_matter_of_time(work) -> None:
    with pytest.raises(TooCostly) as cost:
        apart(work, 5, 2**28)
    assert not cost.value.is_time
