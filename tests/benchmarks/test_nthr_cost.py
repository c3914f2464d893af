from __future__ import annotations

import json
from pathlib import Path

import pytest

import nthr_cost


def test_the_peak_is_the_highest_sum() -> None:
    assert nthr_cost.peak_bytes([(5, 100), (1, 64), (2, -64), (3, 32), (4, 48)]) == 180
    assert nthr_cost.peak_bytes([]) == 0


@pytest.mark.long
def test_both_arms_are_timed_in_every_round(run, tmp_path: Path) -> None:
    done = run("nthr_cost.py", "--shape", "tiny", "--rounds", 2, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())["tiny"]
    assert {arm: len(seconds) for arm, seconds in result["seconds"].items()} == {"plain": 2, "nthr": 2}
    assert done.stdout.splitlines()[-1].split()[0] == "tiny"
    # What NTHR holds more: at most the hidden states, one matrix for the group in flight, and small change.
    shape, peak = result["shape"], result["peak_bytes"]
    assert 0 <= peak["nthr"] - peak["plain"] < shape["hidden bytes"] + 4 * shape["matrix bytes"] + 2**16


def test_both_arms_learn_alike_but_for_the_weights() -> None:
    update = nthr_cost.Update(nthr_cost.SHAPES["tiny"], seed=0)
    plain, scored = (update.run(nthr=nthr)[1] for nthr in (False, True))
    assert plain.keys() == scored.keys() and update.weighed() >= 0
