"""`make chaos`, small: a case of each group holds, and a campaign can fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
Run = Callable[..., Any]

CASES = {
    "stops": "SIGTERM",
    "damage": "bit flip in weights",
    "disks": "read-only",
    "pairs": "two resumed at once",
    "searches": "searches by threads",
    "inputs": "broken recipes",
}


@pytest.mark.long
@pytest.mark.slow
def test_a_case_of_each_group_holds(run: Run, tmp_path: Path) -> None:
    only = [word for name in CASES.values() for word in ("--only", name)]
    done = run("chaos.py", "--small", *only, "--json", tmp_path / "out.json", "--keep", tmp_path / "work")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert {group: list(of) for group, of in found.items()} == {group: [name] for group, name in CASES.items()}
    assert "exit code 143" in found["stops"]["SIGTERM"]["said"]
    assert done.stdout.splitlines()[-3].split()[:7] == ["all", "6", "0", "0", "0", "0", "0"]
