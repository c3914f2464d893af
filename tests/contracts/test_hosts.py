"""A host is one value: a toy one is read, diagnosed with its own words, and refused by launch with a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import hosts
from holdfast.adapters.launch import plan
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.readers import read_log
from holdfast.errors import ConfigError
from holdfast.hosts.host import Host, Name
from holdfast.recipe import load

TOY = Host(
    id="toy",
    series=(Name("toy/score", "reward/mean"), Name("toy/norm", "grad/norm")),
    marks=("toy/",),
    words={"learning rate": ("toy.rate",)},
    logged_by={"entropy/": "every toy with `toy.entropy`"},
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hosts.HOSTS, "toy", TOY)  # type: ignore[arg-type]


@pytest.mark.usefixtures("toy")
def test_it_is_read_and_diagnosed_in_its_own_words(tmp_path: Path) -> None:
    rewards = [0.1 + 0.01 * i for i in range(40)] + [0.5 - 0.02 * i for i in range(20)] + [0.0] * 20
    rows = [{"step": i, "toy/score": reward, "toy/norm": 1.0} for i, reward in enumerate(rewards, 1)]
    path = tmp_path / "toy.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    log = read_log(path)
    assert log.host == "toy" and {"reward/mean", "grad/norm"} <= set(log.series)
    told = diagnose(log)
    assert "RWD001" in [finding.code for finding in told.findings]
    assert "`toy.rate`" in " ".join(finding.remedy for finding in told.findings)
    assert any("`toy.entropy`" in one.remedy for one in told.cannot_tell)


@pytest.mark.usefixtures("toy")
def test_launch_refuses_it() -> None:
    with pytest.raises(ConfigError, match="no launcher for 'toy'; choose trl or verl"):
        plan("toy", load(None, []))
