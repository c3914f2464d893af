"""Attack holdfast: stop, damage, starve and feed garbage, and compare what is left with a run that nothing happened to.

    make chaos                                     # everything
    make chaos ARGS="-k 'killed 3'"                # one case
    HOLDFAST_CHAOS=7 make chaos ARGS="-k stops"    # one group, other random moments

Without HOLDFAST_CHAOS, which is the seed, a few of each are tried. A case holds when no byte differs (times left out),
nothing is a traceback, no row is lost, and every command ends as it should: finished, or refused in a
sentence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("processes are forked", allow_module_level=True)

from tests.chaos import runs
from tests.chaos.kit import Bench, Case
from tests.chaos.runs import Runs

SEED = os.environ.get("HOLDFAST_CHAOS")
GROUPS: dict[str, Callable[[Bench, Runs], list[Case]]] = {
    "stops": runs.stops,
    "damage": runs.damage,
    "disks": runs.disks,
    "pairs": runs.pairs,
}


def bench_in(folder: Path) -> Bench:
    return Bench(folder, seed=int(SEED or 0), small=SEED is None)


def names() -> list[tuple[str, str]]:
    """Every case; making the list starts nothing."""
    bench = bench_in(Path())
    return [(group, name) for group, make in GROUPS.items() for name, _ in make(bench, Runs(bench))]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return bench_in(tmp_path_factory.mktemp("chaos"))


@pytest.fixture(scope="module")
def made(bench: Bench) -> Runs:
    return Runs(bench)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), names(), ids=lambda word: word)
def test_a_case_holds(group: str, name: str, bench: Bench, made: Runs) -> None:
    with bench.nothing_left_running():
        assert not dict(GROUPS[group](bench, made))[name]()
