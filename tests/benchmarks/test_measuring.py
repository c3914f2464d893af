from __future__ import annotations

import mmap

import pytest

from measuring import median_interval, memory_mb, peak_memory_mb, table


def test_the_interval_of_a_median_is_that_of_the_tables() -> None:
    """Ranks of the classic table for 95 %: 1 and 6 of 6, 2 and 9 of 10, 6 and 15 of 20, 18 and 33 of 50."""
    ranks = {n: median_interval(list(range(n, 0, -1)))[1:] for n in (6, 10, 20, 50)}
    assert ranks == {6: (1, 6), 10: (2, 9), 20: (6, 15), 50: (18, 33)}


def test_few_values_have_their_range_as_interval() -> None:
    assert median_interval([3.0]) == (3.0, 3.0, 3.0)
    assert median_interval([1.0, 9.0, 4.0, 2.0, 3.0]) == (3.0, 1.0, 9.0)


def test_the_median_lies_in_the_middle_of_an_even_number() -> None:
    assert median_interval([1.0, 2.0, 4.0, 8.0])[0] == pytest.approx(3.0)


def test_the_peak_remembers_what_was_given_back() -> None:
    before = memory_mb()
    with mmap.mmap(-1, 64 * 2**20) as block:  # of its own: an allocator may have as much at hand
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1
    assert peak_memory_mb() >= before + 60


def test_columns_are_aligned() -> None:
    assert table(["a", "long"], [["wide", 1]]) == "a     long\nwide     1"
