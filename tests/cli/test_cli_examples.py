"""The commands of docs/guide/diagnose.md, on the logs that ship."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(
    r"^holdfast diagnose (tests/fixtures/\S+)", (ROOT / "docs/guide/diagnose.md").read_text("utf-8"), re.M
)


def test_there_is_one_of_each_kind() -> None:
    assert len(set(EXAMPLES)) >= 10


@pytest.mark.parametrize("source", EXAMPLES)
def test_it_reads_what_ships(source: str, holdfast: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    try:
        value = json.loads(holdfast("diagnose", source, "--json").stdout)
    except AssertionError:
        value = json.loads(holdfast("diagnose", source, "--json", code=1).stdout)
    runs = value if isinstance(value, list) else [value]
    assert all(run["steps"] > 0 and run["facts"]["rows"] > 0 for run in runs)
