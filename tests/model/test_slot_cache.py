"""The tensor side of the cache: what is written where, what is seen, growing, copying; and the slot table."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from holdfast.model.cache import Row, SlotCache, SlotTable
from holdfast.model.tokens import common_prefix

CPU = torch.device("cpu")


def states(rows: int, new: int, start: float = 0.0) -> torch.Tensor:
    """`[rows, heads=2, new, dim=3]`, all elements different."""
    return (torch.arange(rows * 2 * new * 3, dtype=torch.float32) + start).view(rows, 2, new, 3)


def test_rows_write_at_their_own_positions() -> None:
    cache = SlotCache(1, CPU, slots=4, capacity=6)
    # Slot 2 gets tokens at positions 0, 1; slot 0 one token at 0, its padding behind its end at 1.
    write = torch.tensor([[0, 1], [1, 0]])
    sees = torch.tensor([[0, 1], [0, 0]])
    mask = cache.plan_rows(torch.tensor([2, 0]), write, sees, length=2)
    assert mask.tolist() == [[[[True, False], [True, True]]], [[[True, False], [True, False]]]]
    keys = states(2, 2)
    seen, _ = cache.update(keys, -keys, 0)
    assert seen.shape == (2, 2, 2, 3)
    assert torch.equal(seen[0], keys[0])
    assert torch.equal(seen[1, :, 0], keys[1, :, 1]), "the real token is the row's second, stored first"
    # One step for slots 0..2 at positions 1, 0, 2.
    mask = cache.plan_step(torch.tensor([1, 0, 2]), length=3)
    assert mask[:, 0, 0].tolist() == [[True, True, False], [True, False, False], [True, True, True]]
    step = states(3, 1, start=100)
    seen, values = cache.update(step, -step, 0)
    assert torch.equal(seen[0, :, :2], torch.stack([keys[1, :, 1], step[0, :, 0]], dim=1))
    assert torch.equal(seen[2], torch.cat([keys[0], step[2]], dim=1))
    assert torch.equal(values[2], -seen[2])


def test_growing_keeps_what_is_stored() -> None:
    cache = SlotCache(1, CPU, slots=2, capacity=4)
    cache.plan_step(torch.tensor([3, 3]), length=4)
    cache.update(states(2, 1), states(2, 1), 0)
    cache.reserve(2, 4)
    assert (cache.slots, cache.capacity) == (2, 4)
    cache.reserve(3, 5)
    assert cache.slots == 3 and cache.capacity == 64, "capacity grows in blocks of 64"
    cache.reserve(3, 65)
    assert cache.capacity == 128, "64 * 1.5 = 96, rounded by the block that 65 needs: 128"
    assert torch.equal(cache.layers[0].keys[:2, :, 3], states(2, 1)[:, :, 0])
    assert not cache.layers[0].keys[2].any() and not cache.layers[0].keys[:, :, 4:].any()


def test_copy_reads_before_it_writes() -> None:
    cache = SlotCache(2, CPU, slots=3, capacity=4)
    for layer in range(2):
        cache.plan_step(torch.tensor([0, 0, 0]), length=1)
        cache.update(states(3, 1), states(3, 1), layer)
    cache.copy([(0, 1), (1, 0)], length=1)
    for layer in range(2):
        assert torch.equal(cache.layers[layer].values[:2, :, 0], states(3, 1)[[1, 0], :, 0])


def test_growing_in_advance_stops_at_the_most_there_will_be() -> None:
    cache = SlotCache(1, CPU, slots=8, capacity=128, most=(10, 150))
    cache.reserve(9, 129)
    assert (cache.slots, cache.capacity) == (10, 150)
    cache.reserve(11, 151)
    assert cache.slots >= 11 and cache.capacity >= 151, "what is asked for is there all the same"


def test_a_dead_cache_does_not_wait_for_the_garbage_collector() -> None:
    """Which comes seldom; until then the update would do without that memory."""
    cache = SlotCache(2, CPU, slots=3, capacity=4)
    cache.plan_step(torch.tensor([0]), length=1)
    cache.update(torch.ones(1, 2, 1, 3), torch.ones(1, 2, 1, 3), 0)
    held = weakref.ref(cache.layers[0].keys)
    gc.disable()
    try:
        del cache
        assert held() is None
    finally:
        gc.enable()


def test_layers_may_differ_in_shape() -> None:
    cache = SlotCache(2, CPU, slots=1, capacity=2)
    cache.plan_step(torch.tensor([0]), length=1)
    keys, values = cache.update(torch.ones(1, 2, 1, 3), torch.ones(1, 2, 1, 5), 0)
    assert keys.shape[-1] == 3 and values.shape[-1] == 5
    assert cache.update(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4), 1)[0].shape == (1, 1, 1, 4)


def test_keys_are_stored_in_the_dtype_attention_uses_under_autocast() -> None:
    cache = SlotCache(1, CPU)
    cache.plan_step(torch.tensor([0]), length=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        keys, _ = cache.update(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2, dtype=torch.bfloat16), 0)
    assert keys.dtype == torch.bfloat16


def table_of(cached: list[int], decoding: list[bool]) -> tuple[SlotTable, list[Row]]:
    """A table whose slot i holds i + 1 in all its `cached[i]` positions."""
    table = SlotTable(SlotCache(1, CPU, slots=len(cached), capacity=8))
    rows = [
        Row(id=str(i), context=[0] * n, cached=n, decoding=going)
        for i, (n, going) in enumerate(zip(cached, decoding, strict=True))
    ]
    for row in rows:
        table.take(row)
    table.cache.plan_step(torch.zeros(len(rows), dtype=torch.int64), length=1)
    table.cache.update(torch.zeros(len(rows), 1, 1, 1), torch.zeros(len(rows), 1, 1, 1), 0)
    for i, n in enumerate(cached):
        table.cache.layers[0].keys[i, 0, :n] = i + 1
    return table, rows


def content(table: SlotTable, row: Row) -> list[float]:
    return table.cache.layers[0].keys[row.slot, 0, : row.cached].flatten().tolist()


def test_gather_moves_decoding_rows_to_the_front() -> None:
    table, rows = table_of([3, 1, 2, 4, 2], [False, True, False, True, True])
    table.drop(rows[2])
    assert table.gather() == 3
    assert sorted(row.slot for row in (rows[1], rows[3], rows[4])) == [0, 1, 2]
    for i in (0, 1, 3, 4):
        assert table.rows[rows[i].slot] is rows[i]
        assert content(table, rows[i]) == [i + 1] * rows[i].cached, "keys travel with their row, idle rows' too"
    newcomer = Row(id="new", context=[1])
    table.take(newcomer)
    assert newcomer.slot not in {rows[i].slot for i in (0, 1, 3, 4)}


def test_gather_tolerates_a_few_idle_slots() -> None:
    table, rows = table_of([1] * 10, [True] * 4 + [False] + [True] * 5)
    assert table.gather() == 10, "1 idle among 9 decoding: 1 * 8 <= 9"
    assert [row.slot for row in rows] == list(range(10))
    rows[0].decoding = False
    assert table.gather() == 8, "2 idle among 8 decoding: 2 * 8 > 8"


def test_slots_are_reused_lowest_first() -> None:
    table, rows = table_of([1, 1, 1], [True] * 3)
    table.drop(rows[2])
    table.drop(rows[0])
    assert table.taken == 1
    again = [Row(id=str(i), context=[1]) for i in range(3)]
    for row in again:
        table.take(row)
    assert [row.slot for row in again] == [0, 2, 3]


@pytest.mark.parametrize(
    ("a", "b", "length"), [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 2], 2), ([1, 9], [1, 2, 9], 1)]
)
def test_common_prefix(a: list[int], b: list[int], length: int) -> None:
    assert common_prefix(a, b) == length
