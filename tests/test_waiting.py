"""Waiting for another process ends when that process does, and says what it said."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from .waiting import wait_for


@pytest.mark.parametrize(
    ("code", "minutes", "said"),
    [
        ("print('no memory left'); raise SystemExit(3)", 5, r"(?s)code 3.*no memory left"),
        ("import time; time.sleep(60)", 0.001, r"nothing after 0\.001 minutes"),
    ],
)
def test_what_never_comes(tmp_path: Path, code: str, minutes: float, said: str) -> None:
    log, began = tmp_path / "log", time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=out)
    with pytest.raises(pytest.fail.Exception, match=said):
        wait_for((tmp_path / "answer").read_text, minutes=minutes, process=process, log=log)
    process.kill()
    process.wait()
    assert time.monotonic() - began < 30


def test_the_last_deed_of_a_process_counts(tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    process = subprocess.Popen([sys.executable, "-c", f"open({str(answer)!r}, 'w').write('yes')"])
    process.wait()
    assert wait_for(answer.read_text, minutes=1, process=process) == "yes"
