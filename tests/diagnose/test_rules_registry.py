"""A new rule is a file of its own and a line in the registry, and shows wherever rules do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.diagnose import rules
from holdfast.diagnose.codes import CODES, chosen
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log

from ..contracts.test_site import site_module

MakeLog = Callable[..., Log]
CODE, FAMILY = "TOY001", "toy"
SOURCE = """
from holdfast.diagnose.rules.rule import Check, Rule, Signal


def is_high(rows):
    (searches,) = rows.columns
    return Signal(searches > 9, lambda: {"rollout/searches": searches})


TOY001 = Rule(
    code="TOY001",
    title="many searches",
    needs=(("rollout/searches",),),
    checks=(
        Check(
            series=("rollout/searches",),
            signal=is_high,
            message="A rollout has {rollout/searches:.0f} searches.",
            rows_running=2,
        ),
    ),
    suppressed_by=("RET002",),
    meaning="Rollouts search often.",
    impact="Searches cost time.",
    remedy=dict.fromkeys(("holdfast", "trl", "verl", "unknown"), "Lower `protocol.max_turns`."),
    limitations="This is a toy.",
)
"""
SEARCHES = [2.0] * 10 + [12.0] + [2.0] * 9 + [11.0, 12.0] + [2.0] * 38


def test_a_rule_is_found_suppressed_asked_for_explained_and_documented(
    make_log: MakeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{FAMILY}.py").write_text(SOURCE)
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    monkeypatch.setitem(sys.modules, f"{rules.__name__}.{FAMILY}", None)  # and forgotten afterwards
    del sys.modules[f"{rules.__name__}.{FAMILY}"]
    monkeypatch.setitem(CODES, CODE, FAMILY)
    monkeypatch.setitem(rules.RULES, CODE, rules.load_rule(CODE))  # as at import
    (finding,) = diagnose(make_log(rollout__searches=SEARCHES)).findings
    assert (finding.code, finding.certain, finding.evidence) == (CODE, 22, {"rollout/searches": 12.0})
    assert (finding.summary, finding.remedy) == ("A rollout has 12 searches.", "Lower `protocol.max_turns`.")
    log = make_log(rollout__searches=SEARCHES, retrieval__empty_fraction=[0.0] * 15 + [1.0] * 45)
    assert [finding.code for finding in diagnose(log).findings] == ["RET002"]
    assert {one.code: one.missing for one in diagnose(make_log()).cannot_tell}[CODE] == ("rollout/searches",)
    assert chosen("toy", where="--select") == {CODE}
    result = CliRunner().invoke(app, ["diagnose", "--explain", "TOY"])
    assert result.exit_code == 0 and "many searches" in result.output and "rollout/searches" in result.output
    made = site_module("made")
    assert f"| [{CODE}](#toy001-many-searches) | yes | yes |" in made.decidable()
    assert "### TOY001: many searches" in made.section(CODE)
