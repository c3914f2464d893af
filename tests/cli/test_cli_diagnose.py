"""`holdfast diagnose`: what it prints, its exit codes, and where it reads a log from."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import ConfigError
from holdfast.cli.sources import read_sources
from holdfast.diagnose.codes import CODES

from .conftest import rows

Holdfast = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """run("name", failing=True): a run folder whose retriever dies at step 21, or does not."""

    def make(name: str, *, failing: bool) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "metrics.jsonl").write_text(rows(1, 40, failing=failing))
        return str(folder)

    return make


def test_a_finding_is_told_like_a_linters(holdfast: Holdfast, run: Any) -> None:
    said = holdfast("diagnose", run("failing", failing=True), code=1).stdout
    assert re.search(r"^failing  \(holdfast log\)$", said, re.M)
    assert re.search(r"^RET001  step 21  retriever failing$", said, re.M)
    assert "  evidence  retrieval/error_fraction 0.3" in said
    assert re.search(r"^  when      \d+ steps before half of the reward was lost$", said, re.M)
    assert re.search(r"^  change    .*retrieval\.url", said, re.M)
    assert re.search(r"^\d+ findings\. \d+ checks were skipped: the log lacks the metrics they need\.$", said, re.M)
    assert all(len(line) <= 80 for line in said.splitlines())
    assert all(line == line.rstrip() for line in said.splitlines())
    assert "\x1b" not in said


def test_json_of_one_and_of_several(holdfast: Holdfast, run: Any) -> None:
    failing, well = run("failing", failing=True), run("well", failing=False)
    one = json.loads(holdfast("diagnose", failing, "--json", code=1).stdout)
    assert one["format"] == "holdfast" and one["steps"] == 40
    assert one["findings"][0]["code"] == "RET001" and one["findings"][0]["step"] == 21
    assert {"code", "missing", "remedy"} == set(one["cannot_tell"][0])
    both = json.loads(holdfast("diagnose", well, failing, "--json", code=1).stdout)
    assert [entry["name"] for entry in both] == ["well", "failing"] and both[1] == one
    assert json.loads(holdfast("diagnose", well, "--json").stdout)["findings"] == []


def test_select(holdfast: Holdfast, run: Any) -> None:
    failing = run("failing", failing=True)
    said = json.loads(holdfast("diagnose", failing, "--select", "RET,LLD003", "--json", code=1).stdout)
    assert {f["code"] for f in said["findings"]} == {"RET001"}
    assert {c["code"] for c in said["cannot_tell"]} == {"RET002", "LLD003"}
    holdfast("diagnose", failing, "--select", "SMP001", code=1)  # it fell all the same
    wrong = holdfast("diagnose", failing, "--select", "RTE", code=2)
    assert "no code begins with 'RTE'" in wrong.output


def test_every_code_is_listed_and_explained(holdfast: Holdfast) -> None:
    listed = holdfast("diagnose", "--explain", "all").stdout.splitlines()
    assert [line.split()[0] for line in listed] == sorted(CODES)
    for code in CODES:
        said = holdfast("diagnose", "--explain", code.lower()).stdout
        assert said.startswith(f"{code}  ") and all(len(line) <= 80 for line in said.splitlines())
        for part in ("What to change", "  holdfast  ", "  trl       ", "  verl      ", "Metrics it needs"):
            assert part in said, code


def test_usage(holdfast: Holdfast, tmp_path: Path) -> None:
    assert "To name a log: holdfast diagnose runs/" in holdfast("diagnose", code=2).output
    never = holdfast("diagnose", str(tmp_path / "nothing"), "--fail-on", "never", code=2)
    assert "does not exist" in never.output
    (tmp_path / "empty.jsonl").write_text("")
    holdfast("diagnose", str(tmp_path / "empty.jsonl"), code=2)
    assert "matches several codes" in holdfast("diagnose", "--explain", "LLD", code=2).output


def test_findings_and_their_page_in_one_run(holdfast: Holdfast, run: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    stdout = holdfast("diagnose", run("failing", failing=True), "--html", str(page), code=1).stdout
    assert stdout.rstrip().endswith(f"Wrote {page}") and "RET001  step 21" in stdout
    assert "RET001" in page.read_text(encoding="utf-8")
    result = holdfast("diagnose", run("well", failing=False), "--json", "--html", str(page))
    assert json.loads(result.stdout)["name"] == "well" and f"Wrote {page}" in result.stderr


def test_too_few_rows_are_told_of(holdfast: Holdfast, tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step": 1, "reward/mean": 0.5}\n')
    said = " ".join(holdfast("diagnose", str(log)).stdout.split())
    assert "Cannot tell. The only reward is 0.5" in said and "after 10 rows" in said and "skipped" not in said
    assert "did not fall" not in said and "No findings" not in said


def test_a_report_replaces_a_report_and_nothing_else(holdfast: Holdfast, run: Any, tmp_path: Path) -> None:
    failing, well = run("failing", failing=True), run("well", failing=False)
    log = Path(failing) / "metrics.jsonl"
    before = log.read_bytes()
    page, other, unreadable = (tmp_path / name for name in ("page.html", "other.html", "folder"))
    other.write_text("<!doctype html>\n<title>mine</title>")
    unreadable.mkdir()
    for somebodys in (log, other, unreadable):
        stderr = holdfast("report", "--out", str(somebodys), well, code=2).stderr
        assert "is not a holdfast report" in " ".join(stderr.split())
    assert "would replace the log" in holdfast("report", str(log), "--out", str(log), code=2).stderr
    assert log.read_bytes() == before and other.read_text().endswith("<title>mine</title>")
    for _ in range(2):
        holdfast("report", "--out", str(page), well)
    assert page.read_text().startswith("<!doctype html>\n<!-- holdfast report -->\n<html")


# ---- where the commands read a log from


ROWS = rows(1, 40)


def test_standard_input_is_read_by_dash_and_without_an_argument(holdfast: Holdfast) -> None:
    for arguments in (["-"], []):
        diagnosis = json.loads(holdfast("diagnose", *arguments, "--json", code=1, stdin=ROWS).stdout)
        assert (diagnosis["name"], diagnosis["steps"]) == ("stdin", 40)
        assert [f["code"] for f in diagnosis["findings"]][:1] == ["RET001"]


@pytest.mark.parametrize(("stdin", "words"), [("", "is empty"), ("\x00\x01\x02" * 400, "binary")])
def test_standard_input_that_is_not_a_log(holdfast: Holdfast, stdin: str, words: str) -> None:
    stderr = " ".join(holdfast("diagnose", "-", code=2, stdin=stdin).stderr.split())
    assert words in stderr and "error: standard input " in stderr and "/tmp" not in stderr


@pytest.mark.parametrize("sources", [None, ["-"]])
def test_a_closed_standard_input_is_no_log(sources: list[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ConfigError, match="standard input is closed, so no log can be read from it; name a log"):
        read_sources(sources, "diagnose")


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
    from holdfast.cli import sources

    asked: list[object] = []

    def refuse(source: object, names: object) -> Any:
        asked.append(source)
        raise DataError("no such run")

    monkeypatch.setattr(sources, "read_logs", refuse)
    holdfast("diagnose", "wandb://team/project/run", code=2)
    assert asked == ["wandb://team/project/run"]


def _started(arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """`holdfast` under a shell, which can close its output and limit its files."""
    command = f"{sys.executable} -m holdfast {arguments}"
    return subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, timeout=300, check=False, **more)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_an_output_that_is_full_is_an_error_in_one_sentence() -> None:
    done = _started("diagnose - --json > /dev/full", input=ROWS)
    assert (done.returncode, done.stderr) == (2, "error: the output cannot be written: the disk is full\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of a file's size")
def test_a_pipe_that_does_not_fit_on_the_disk_is_an_error() -> None:
    done = _started("diagnose -", input=ROWS * 20, preexec_fn=_small_files)
    assert done.returncode == 2
    assert "the file size limit is reached" in done.stderr and "hint: set TMPDIR" in done.stderr


def _small_files() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
