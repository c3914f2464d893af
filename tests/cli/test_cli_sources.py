"""Where the commands read a log from: standard input, a named pipe, the name of a run, an address."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Holdfast = Callable[..., Any]

ROWS = "".join(
    json.dumps({"step": step, "reward/mean": 0.5, "retrieval/error_fraction": 0.9 if step > 20 else 0.0}) + "\n"
    for step in range(1, 41)
)
"""A retriever that fails from step 21."""


def test_standard_input_is_read_by_dash_and_without_an_argument(holdfast: Holdfast) -> None:
    for arguments in (["-"], []):
        diagnosis = json.loads(holdfast("diagnose", *arguments, "--json", code=1, stdin=ROWS).stdout)
        assert (diagnosis["name"], diagnosis["steps"]) == ("stdin", 40)
        assert [f["code"] for f in diagnosis["findings"]][:1] == ["RET001"]


def test_standard_input_and_a_file_together(holdfast: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(ROWS)
    both = json.loads(holdfast("diagnose", str(tmp_path), "-", "--json", code=1, stdin=ROWS).stdout)
    assert [entry["name"] for entry in both] == [tmp_path.name, "stdin"]
    assert both[0]["findings"] == both[1]["findings"]


@pytest.mark.parametrize(("stdin", "words"), [("", "is empty"), ("\x00\x01\x02" * 400, "binary")])
def test_standard_input_that_is_not_a_log(holdfast: Holdfast, stdin: str, words: str) -> None:
    stderr = " ".join(holdfast("diagnose", "-", code=2, stdin=stdin).stderr.split())
    assert words in stderr and "error: standard input " in stderr and "/tmp" not in stderr


def test_nothing_piped_in_is_a_usage_error(holdfast: Holdfast) -> None:
    stderr = " ".join(holdfast("diagnose", code=2, stdin="").stderr.split())
    assert "standard input is empty" in stderr and "no log was named" in stderr


def test_a_named_pipe_is_read_once(tmp_path: Path, holdfast: Holdfast) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(ROWS,))
    writer.start()
    diagnosis = json.loads(holdfast("diagnose", str(pipe), "--json", code=1).stdout)
    writer.join()
    assert diagnosis["steps"] == 40


def test_the_name_of_a_run_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holdfast: Holdfast) -> None:
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "config.toml").write_text("")
    (run / "metrics.jsonl").write_text(ROWS)
    monkeypatch.chdir(tmp_path)
    assert json.loads(holdfast("diagnose", "mine", "--json", code=1).stdout)["name"] == "mine"


def test_an_address_reaches_the_readers_as_it_was_typed(monkeypatch: pytest.MonkeyPatch, holdfast: Holdfast) -> None:
    from holdfast.base.errors import DataError
    from holdfast.diagnose import readers

    asked: list[object] = []

    def refuse(source: object) -> Any:
        asked.append(source)
        raise DataError("no such run")

    monkeypatch.setattr(readers, "read_logs", refuse)
    holdfast("diagnose", "wandb://team/project/run", code=2)
    assert asked == ["wandb://team/project/run"]


def test_a_reader_of_the_output_that_leaves_early_causes_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(ROWS)
    command = (
        f"{sys.executable} -m holdfast diagnose --explain all; {sys.executable} -m holdfast diagnose {tmp_path} -v"
    )
    done = subprocess.run(["sh", "-c", f"({command}) | true"], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def _started(arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """`holdfast` under a shell, which can close its output and limit its files."""
    command = f"{sys.executable} -m holdfast {arguments}"
    return subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60, check=False, **more)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("option", ["", "--json"])
def test_an_output_that_is_full_is_an_error_in_one_sentence(option: str) -> None:
    done = _started(f"diagnose - {option} > /dev/full", input=ROWS)
    assert (done.returncode, done.stderr) == (2, "error: the output cannot be written: the disk is full\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of a file's size")
def test_a_pipe_that_does_not_fit_on_the_disk_is_an_error() -> None:
    done = _started("diagnose -", input=ROWS * 20, preexec_fn=_small_files)
    assert done.returncode == 2
    assert "the file size limit is reached" in done.stderr and "hint: set TMPDIR" in done.stderr


def _small_files() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
