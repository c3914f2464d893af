"""`holdfast watch`: new rows and findings of a log that grows."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import rows

Run = Callable[..., Any]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder / "metrics.jsonl"


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`meanwhile(a, b)`: what happens while the command sleeps; after the last one, Ctrl-C."""

    def script(*events: Callable[[], object]) -> None:
        queue = list(events)

        def sleep(seconds: float) -> None:
            if not queue:
                raise KeyboardInterrupt
            queue.pop(0)()

        monkeypatch.setattr("holdfast.cli.watch.sleep", sleep)

    return script


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_a_log_is_followed_and_its_findings_come_once(log: Path, meanwhile: Any, holdfast: Run) -> None:
    log.write_text(rows(1, 15))

    def grow(first: int, last: int) -> Callable[[], object]:
        return lambda: append(log, rows(first, last))

    meanwhile(grow(16, 17), lambda: None, grow(18, 23), grow(24, 30))
    lines = holdfast("watch", str(log), code=1).stdout.splitlines()
    steps = [int(line.split()[1]) for line in lines if line.startswith("step ")]
    assert steps == list(range(15, 31))
    assert len([line for line in lines if line.startswith("RET001 step 21: ")]) == 1
    assert lines.index(next(line for line in lines if "RET001" in line)) < lines.index(
        next(line for line in lines if line.startswith("step 24"))
    )


def test_a_run_that_has_not_begun_is_waited_for_and_ends_by_itself(log: Path, meanwhile: Any, holdfast: Run) -> None:
    (log.parent / "config.toml").write_text("")
    meanwhile(lambda: log.write_text(rows(1, 5)), lambda: (log.parent / "results.json").write_text("{}"))
    stdout = holdfast("watch", str(log.parent)).stdout
    assert "; waiting" in stdout and "step 5" in stdout


def test_a_resumed_run_goes_back(log: Path, meanwhile: Any, holdfast: Run) -> None:
    log.write_text(rows(1, 15))
    meanwhile(lambda: log.write_text(rows(1, 10)), lambda: log.write_text(rows(1, 11)))
    stdout = holdfast("watch", str(log)).stdout
    assert [int(line.split()[1]) for line in stdout.splitlines() if line.startswith("step ")] == [15, 10, 11]


def test_what_cannot_be_watched(log: Path, tmp_path: Path, holdfast: Run) -> None:
    assert "does not exist" in holdfast("watch", str(tmp_path / "gone"), code=2).stderr
    other = tmp_path / "other" / "metrics.jsonl"
    other.parent.mkdir()
    for path in (log, other):
        path.write_text(rows(1, 5))
    assert "2 runs here; watch one of them: other, run" in holdfast("watch", str(tmp_path), code=2).stderr


def test_a_command_gets_each_finding_once(log: Path, meanwhile: Any, holdfast: Run, tmp_path: Path) -> None:
    log.write_text(rows(1, 30))
    meanwhile(lambda: append(log, rows(31, 32)))
    to_file = f'cat > {tmp_path}/"$HOLDFAST_CODE"-"$HOLDFAST_STEP".json; echo "$HOLDFAST_RUN" >> {tmp_path}/names'
    holdfast("watch", str(log), "--exec", to_file, code=1)
    finding = json.loads((tmp_path / "RET001-21.json").read_text())
    assert (finding["name"], finding["code"], finding["step"], finding["level"]) == ("run", "RET001", 21, "finding")
    assert (tmp_path / "names").read_text().split() == ["run"] * len(list(tmp_path.glob("*-*.json")))


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "diagnose.md"
SERVICES = re.findall(
    r"^holdfast watch train\.log --exec '(.*?(SLACK|DISCORD|sendmail).*)'$", PAGE.read_text(encoding="utf-8"), re.M
)


@pytest.mark.parametrize(("command", "service"), SERVICES)
def test_the_commands_of_the_page(
    holdfast: Run, tmp_path: Path, meanwhile: Any, monkeypatch: pytest.MonkeyPatch, service: str, command: str
) -> None:
    """They run with stand-ins for curl and sendmail that keep what they are given."""
    if service != "sendmail" and shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    for name in ("curl", "sendmail"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncat > {tmp_path}/$HOLDFAST_CODE\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SLACK_WEBHOOK", "https://slack.example/x")
    monkeypatch.setenv("DISCORD_WEBHOOK", "https://discord.example/x")
    log = tmp_path / 'a"b' / "metrics.jsonl"
    log.parent.mkdir()
    log.write_text(rows(1, 30))
    meanwhile()
    assert "--exec, on" not in holdfast("watch", str(log), "--exec", command, code=1).stderr
    sent, arguments = (tmp_path / "RET001").read_text(), (tmp_path / "arguments").read_text()
    if service == "sendmail":
        assert sent.startswith('Subject: a"b: RET001\n\nThe retriever') and arguments.strip() == "me@example.org"
    else:
        said = json.loads(sent)[{"SLACK": "text", "DISCORD": "content"}[service]]
        assert said.startswith('a"b, RET001: ') and f"https://{service.lower()}.example/x" in arguments


def live_of(page: Path) -> tuple[bool, int]:
    """Whether the page is live, and the last step in it."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.S)
    data = json.loads(text)
    return data["live"] is not None, data["charts"][0]["rows"][0]["traces"][0]["raw"]["x"][-1]


def test_a_page_follows_the_run_and_becomes_final(log: Path, meanwhile: Any, holdfast: Run, tmp_path: Path) -> None:
    page, seen = tmp_path / "page.html", []
    log.write_text(rows(1, 15))

    def look() -> None:
        seen.append(live_of(page))
        append(log, rows(16, 30))

    meanwhile(look, lambda: seen.append(live_of(page)))
    holdfast("watch", str(log), "--html", str(page), code=1)
    assert [*seen, live_of(page)] == [(True, 15), (True, 30), (False, 30)]
    assert "RET001" in page.read_text() and sorted(tmp_path.iterdir()) == [page, log.parent]


def test_a_page_that_cannot_be_written_stops_nothing(log: Path, meanwhile: Any, holdfast: Run) -> None:
    log.write_text(rows(1, 15))
    meanwhile(lambda: append(log, rows(16, 17)))
    result = holdfast("watch", str(log), "--html", str(log / "page.html"))
    assert "step 17" in result.stdout and result.stderr.count("page.html was not written: ") == 1
    assert "would replace the log" in holdfast("watch", str(log), "--html", str(log), code=2).stderr


# ---- pipes


def start(*words: str, before: str = "") -> subprocess.Popen[bytes]:
    """`holdfast watch …` in a process of its own, with pipes."""
    command = [sys.executable, "-m", "holdfast", "watch", *words]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(before.encode())
    process.stdin.flush()
    assert process.stdout.read(len(before)) == before.encode()  # so it passes on before the end
    return process


@pytest.mark.parametrize(
    ("words", "text", "code", "said"),
    [
        (
            ("-",),
            "Loading the model\r  0%|\n" + rows(1, 30) + "no end of line",
            1,
            b"RET001  step 21  retriever failing",
        ),
        ((), rows(1, 15), 0, b"No findings."),
        (("-",), "nothing to read", 2, b"error: the pipe "),
    ],
)
def test_a_pipe_passes_unchanged_and_ends_with_a_diagnosis(
    words: tuple[str, ...], text: str, code: int, said: bytes
) -> None:
    process = start(*words)
    stdout, stderr = process.communicate(text.encode(), timeout=300)
    assert (stdout.decode(), process.returncode) == (text, code) and said in stderr
    assert stderr.count(b"holdfast: RET001 at step 21: ") == (code == 1)


def test_findings_come_before_the_pipe_ends() -> None:
    process = start("-", "--every", "0.1", before=rows(1, 30))
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"holdfast: RET001 at step 21: ")
    stdout, stderr = process.communicate(timeout=300)
    assert (stdout, process.returncode) == (b"", 1)
    assert b"holdfast: RET001" not in stderr and b"RET001  step 21" in stderr


def test_ctrl_c_waits_for_the_end_of_the_pipe() -> None:
    process = start("-", "--every", "0.1", before=rows(1, 15))
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(rows(16, 30).encode(), timeout=300)
    assert stdout.decode() == rows(16, 30) and b"RET001  step 21" in stderr and process.returncode == 1


def test_the_trainer_lives_although_nothing_reads_the_output() -> None:
    process = start("-", "--every", "0.1", before=rows(1, 15))
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdout.close()
    for first in range(16, 30):
        process.stdin.write(rows(first, first).encode())
        process.stdin.flush()
        time.sleep(0.02)
    process.stdin.close()
    with process.stderr:
        stderr = process.stderr.read()
    assert process.wait(timeout=300) == 1
    assert b"RET001  step 21" in stderr and b"Traceback" not in stderr and b"BrokenPipe" not in stderr


def test_a_named_pipe_is_followed(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = start(str(pipe))
    pipe.write_text(rows(1, 30))
    stdout, stderr = process.communicate(timeout=300)
    assert stdout.decode() == rows(1, 30) and process.returncode == 1 and b"RET001  step 21" in stderr
