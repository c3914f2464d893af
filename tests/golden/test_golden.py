"""The part of the golden runs that takes seconds and is equal on any machine; `make golden` replays all of it."""

from __future__ import annotations

import golden


def test_the_findings_of_all_recordings_are_those_recorded() -> None:
    assert golden.check("findings", golden.findings(False)) == "equal"


def test_a_difference_is_seen() -> None:
    recorded = {"run": [{"reward/mean": 0.5, "gone": 1}]}
    found = list(golden.differences(recorded, {"run": [{"reward/mean": 0.25, "new": 1}]}))
    assert len(found) == 3


def test_every_part_can_be_checked() -> None:
    recorded = {path.stem for path in golden.EXPECTED.glob("*.json")}
    assert recorded | set(golden.SELF_CHECKED) == set(golden.PARTS)
