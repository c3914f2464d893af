"""The part of the golden runs that takes seconds and is equal on any machine; `make golden` replays all of it."""

from __future__ import annotations

import golden


def test_the_findings_of_all_recordings_are_those_recorded() -> None:
    assert golden.check("findings", golden.findings(False)) == "equal"


def test_a_difference_is_seen() -> None:
    recorded = {"run": [{"reward/mean": 0.5, "gone": 1}]}
    found = list(golden.differences(recorded, {"run": [{"reward/mean": 0.25, "new": 1}]}))
    assert len(found) == 3


def test_a_younger_metric_is_left_out_only_where_the_recording_lacks_it() -> None:
    row = {"reward/mean": 0.5, "drift/positive": 0.1, "isdd/positive/below_half": 0.0, "brand/new": 1.0}
    recorded = {"a": [{"reward/mean": 0.5, "drift/positive": 0.2}], "b": [{"reward/mean": 0.5}]}
    kept = golden.without_younger(recorded, {"a": [row], "b": [row]})
    assert [sorted(rows[0]) for rows in kept.values()] == [
        ["brand/new", "drift/positive", "reward/mean"],
        ["brand/new", "reward/mean"],
    ]
    assert len(list(golden.differences(recorded, kept))) == 3  # two new names, and one number


def test_every_part_can_be_checked() -> None:
    recorded = {path.stem for path in golden.EXPECTED.glob("*.json")}
    assert recorded | set(golden.SELF_CHECKED) == set(golden.PARTS)
