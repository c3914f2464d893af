"""skills/diagnose-run/SKILL.md: its frontmatter, and that its keys, codes and exit codes are those of the command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.diagnose.codes import CODES

ROOT = Path(__file__).parents[2]
SKILL = (ROOT / "skills/diagnose-run/SKILL.md").read_text(encoding="utf-8")
LOGS = ROOT / "tests/fixtures/logs"


def test_agents_can_find_it() -> None:
    head = re.match(r"---\nname: (.+)\ndescription: (.+)\n---\n", SKILL)
    assert head is not None
    assert head[1] == "diagnose-run" and len(head[2]) <= 1024
    assert len(SKILL.splitlines()) <= 120


def test_its_codes_exist() -> None:
    named = set(re.findall(r"\b[A-Z]{3}\d{3}\b", SKILL))
    assert named and named <= set(CODES)


def test_its_table_has_every_key() -> None:
    value = json.loads(CliRunner().invoke(app, ["diagnose", str(LOGS / "verl-console.log"), "--json"]).stdout)
    table = "\n".join(line.partition(" | ")[0] for line in SKILL.splitlines() if line.startswith("| `"))
    assert set(value) - set(re.findall(r"`(\w+)`", table)) == {"format", "host", "name", "steps"}
    in_a_finding = set(re.findall(r"`(?:findings\[\])?\.(\w+)`", table))
    assert in_a_finding == set(value["findings"][0]) - {"series", "level", "by_verdict"}
    assert set(re.findall(r"`([\w ]+)`", re.findall(r"^\| `facts` \| (.*) \|$", SKILL, re.M)[0])) <= set(value["facts"])


@pytest.mark.parametrize(("log", "code"), [("trl-console.log", 0), ("verl-console.log", 1), ("nothing.log", 2)])
def test_exit_codes(log: str, code: int) -> None:
    assert re.search(rf"^\| {code} \| ", SKILL, re.M)
    assert CliRunner().invoke(app, ["diagnose", str(LOGS / log)]).exit_code == code
