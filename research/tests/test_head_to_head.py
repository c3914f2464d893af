"""Tools side by side: what they are fed, and what counts as found, false and named."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from holdfast.diagnose.log import Log, Series
from holdfast_research import head_to_head
from holdfast_research.head_to_head import Case, Said, compared, counted, mapped
from holdfast_research.other_tools import OURS, RLDK, TOOLKIT


def a_case(name: str, *, healthy: bool, cause: str = "", reward: float = 0.5) -> Case:
    steps = np.arange(1, 11)
    series = {"reward/mean": Series(steps, np.full(10, reward)), "entropy/mean": Series(steps[::2], np.ones(5))}
    log = Log(format="trl", host="trl", name=name, series=series, steps=steps)
    right = frozenset({"GRP001"}) if cause == "no-contrast" else frozenset()
    return Case(
        name=name, of="set", healthy=healthy, cause=cause, right=right, log=log, rows=({"step": 1, "reward": 1},)
    )


CASES = (a_case("ok", healthy=True), a_case("bad", healthy=False, cause="no-contrast"))


def test_series_go_under_the_names_of_a_tool() -> None:
    rows = mapped(CASES[0].log, {"r": "reward/mean", "h": "entropy/mean", "none": "kl/reference"})
    assert rows[0] == {"step": 1, "r": 0.5, "h": 1.0} and rows[1] == {"step": 2, "r": 0.5}
    # A series that the log has as its complement, and a NaN that was logged.
    steps = np.arange(1, 3)
    mixed, loss = Series(steps, np.array([0.25, 1.0])), Series(steps, np.array([0.5, np.nan]))
    series = {"rollout/mixed_group_fraction": mixed, "loss": loss}
    log = Log(format="trl", host="trl", name="run", series=series, steps=steps)
    rows = mapped(log, {"zero": "frac_reward_zero_std", "loss": "loss"})
    assert [row["zero"] for row in rows] == [0.75, 0.0]
    assert np.isnan(rows[1]["loss"]), "a tool may look for a loss that is not a number"


SECONDS = {"ok": 0.25, "bad": 0.75}


def test_an_alarm_counts_by_severity_and_by_what_it_names() -> None:
    alarms = {"ok": [("kl_above_target", "medium", 1)], "bad": [("grpo_reward_collapse", "high", 1)]}
    numbers = counted(TOOLKIT, CASES, Said(alarms, SECONDS))
    assert numbers["found, serious"].startswith("1 of 1") and numbers["cause first"].startswith("1 of 1")
    assert numbers["healthy, serious"].startswith("0 of 1") and numbers["healthy, any"].startswith("1 of 1")
    assert numbers["ms a log"] == "500"
    other = counted(TOOLKIT, CASES, Said(alarms | {"bad": [("kl_instability", "high", 1)]}, SECONDS))
    assert other["found, serious"].startswith("1 of 1") and other["cause anywhere"].startswith("0 of 1")

    for place, first in ((3, "1 of 1"), (4, "0 of 1")):  # first, if no alarm came before it
        alarms = {"ok": [], "bad": [("kl_instability", "high", 3), ("grpo_reward_collapse", "medium", place)]}
        numbers = counted(TOOLKIT, CASES, Said(alarms, SECONDS))
        assert numbers["cause first"].startswith(first) and numbers["cause anywhere"].startswith("1 of 1")


def test_our_notes_are_no_serious_alarms() -> None:
    said = Said({"ok": [("TRN001", "note", 0)], "bad": [("GRP001", "finding", 0)]}, SECONDS)
    numbers = counted(OURS, CASES, said)
    assert numbers["healthy, serious"].startswith("0 of 1") and numbers["healthy, any"].startswith("1 of 1")
    assert numbers["found, serious"].startswith("1 of 1") and numbers["cause first"].startswith("1 of 1")


FAKE = """
import json, sys
names = [json.loads(line)["name"] for line in open(sys.argv[1])]
said = {name: {"logged": [], "mapped": [["grpo_safe_kl_spike", "stop", 1]]} for name in names}
seconds = dict.fromkeys(names, {"logged": 0.5, "mapped": 0.25})
answer = {"version": "0", "alarms": said, "seconds": seconds, "printed": dict.fromkeys(names, 0)}
json.dump(answer, open(sys.argv[2], "w"))
"""


def test_a_tool_runs_in_its_own_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(FAKE)
    monkeypatch.setitem(head_to_head.DRIVERS, RLDK, str(driver))
    result = compared(CASES, {RLDK: Path(sys.executable)})
    tools = result["sets"]["set"]
    assert tools["rldk, as the trainer logs"]["found, any"].startswith("0 of 1")
    assert tools["rldk, names mapped by hand"]["healthy, serious"].startswith("1 of 1")
    assert tools["rldk, names mapped by hand"]["ms a log"] == "250" and float(tools["holdfast"]["ms a log"]) > 0
    assert result["printed rows that rldk reads"] == {"set": "0 of 2 logs"}
    assert head_to_head.table(result).count("\n| ") == 4
