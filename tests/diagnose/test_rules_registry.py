"""A new rule is a file of its own and a line in the registry, and shows wherever rules do."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.diagnose import codes, rules
from holdfast.diagnose.codes import chosen
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log

from ..contracts.test_site import site_module

MakeLog = Callable[..., Log]
CODE = "TOY001"
SOURCE = """'TOY001: a toy.\\n\\nMeaning: Rollouts search often.\\n\\nImpact: Searches\\ncost time.'
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rule, Signal


def is_high(rows, searches):
    return Signal(searches > 9)


RULE = Rule(
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
    remedy=advise("Lower the [limits of tokens and turns]."),
)
"""
SEARCHES = [2.0] * 10 + [12.0] + [2.0] * 9 + [11.0, 12.0] + [2.0] * 38


def test_a_rule_is_found_suppressed_asked_for_explained_and_documented(
    make_log: MakeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{CODE.lower()}.py").write_text(SOURCE)
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    monkeypatch.setitem(sys.modules, f"{rules.__name__}.{CODE.lower()}", None)  # and forgotten afterwards
    del sys.modules[f"{rules.__name__}.{CODE.lower()}"]
    monkeypatch.setattr(codes, "CODES", (*codes.CODES, CODE))
    monkeypatch.setitem(rules.RULES, CODE, rules.load_rule(CODE))  # as at import
    (finding,) = diagnose(make_log(rollout__searches=SEARCHES)).findings
    assert (finding.code, finding.certain, finding.evidence) == (CODE, 22, {"rollout/searches": 12.0})
    assert finding.summary == "A rollout has 12 searches." and "`protocol.max_turns`" in finding.remedy
    log = make_log(rollout__searches=SEARCHES, retrieval__empty_fraction=[0.0] * 15 + [1.0] * 45)
    assert [finding.code for finding in diagnose(log).findings] == ["RET002"]
    assert {one.code: one.missing for one in diagnose(make_log()).cannot_tell}[CODE] == ("rollout/searches",)
    assert chosen("toy", where="--select") == {CODE}
    result = CliRunner().invoke(app, ["diagnose", "--explain", "TOY"])
    assert result.exit_code == 0 and "many searches" in result.output and "rollout/searches" in result.output
    made = site_module("made")
    assert f"[{CODE}](#toy001-many-searches)" in made.decidable()
    assert "### TOY001: many searches\n\nRollouts search often. Searches cost time.\n" in made.section(CODE)


@pytest.mark.parametrize("code", rules.RULES)
def test_the_docstring_of_a_rule_explains_it(code: str) -> None:
    rule = rules.RULES[code]
    assert rule.doc is not None and rule.doc.startswith(f"{code}: ")
    assert rule.meaning and rule.impact and rule.limitations


def test_a_rule_knows_others_by_their_code_alone() -> None:
    """What two rules need stands in `_parts`."""
    for path in Path(rules.__file__).parent.glob("*[0-9].py"):
        assert not re.search(r"^from holdfast\.diagnose\.rules\.\w{3}\d{3} import", path.read_text(), re.M), path.name
