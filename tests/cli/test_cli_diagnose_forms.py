"""What `holdfast diagnose` prints in which form, how much of it fits a screen, and what makes a CI job fail."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from numpy.random import default_rng

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import Finding
from holdfast.diagnose.log import Log
from holdfast.diagnose.markdown import as_markdown

Holdfast = Callable[..., Any]
LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
SCREEN = 24


def log_of(path: Path, rows: list[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def failing(tmp_path: Path) -> str:
    """The run of `holdfast demo` that collapsed."""
    folder = tmp_path / "failing"
    folder.mkdir()
    packed = files("holdfast.diagnose").joinpath("sample", "failing.json.gz").read_bytes()
    (folder / "trainer_state.json").write_bytes(gzip.decompress(packed))
    return str(folder)


@pytest.fixture
def healthy(tmp_path: Path) -> str:
    rows = [{"step": s, "reward/mean": 0.3 + 0.01 * s + 0.01 * (s % 3), "entropy/mean": 1.0} for s in range(1, 31)]
    return log_of(tmp_path / "well" / "metrics.jsonl", rows)


@pytest.fixture
def noted(tmp_path: Path) -> str:
    """A healthy run with a note, and without a finding: most rollouts are truncated from the start."""
    rows = [
        {"step": s, "reward/mean": 0.3 + 0.01 * s, "rollout/truncated_fraction": 0.8, "entropy/mean": 1.0}
        for s in range(1, 31)
    ]
    return log_of(tmp_path / "noted" / "metrics.jsonl", rows)


# ---- exit codes


@pytest.mark.parametrize(("level", "codes"), [(None, (1, 0, 0)), ("note", (1, 1, 0)), ("never", (0, 0, 0))])
def test_what_fails(
    holdfast: Holdfast, failing: str, noted: str, healthy: str, level: str | None, codes: tuple[int, int, int]
) -> None:
    options = [] if level is None else ["--fail-on", level]
    for log, code in zip((failing, noted, healthy), codes, strict=True):
        holdfast("diagnose", log, *options, code=code)
    holdfast("diagnose", healthy, failing, *options, code=codes[0])


def test_a_run_that_does_not_learn_fails_without_a_finding_too(holdfast: Holdfast, tmp_path: Path) -> None:
    rewards = default_rng(0).normal(0.5, 0.05, 60)
    flat = log_of(tmp_path / "flat" / "metrics.jsonl", [{"step": s, "reward/mean": r} for s, r in enumerate(rewards)])
    for log, code, word in (
        (flat, 1, "flat"),
        (log_of(tmp_path / "few", [{"step": 1, "reward/mean": 1}]), 0, "cannot"),
    ):
        said = json.loads(holdfast("diagnose", log, "--json", code=code).stdout)
        assert said["verdict"]["word"].startswith(word) and said["ok"] is (code == 0)
        assert not any(finding["level"] == "finding" for finding in said["findings"])
        holdfast("diagnose", log, "--fail-on", "never")


# ---- the screen


def rows_of(text: str, columns: int) -> int:
    """Rows that a text takes on a terminal."""
    return sum(max(1, -(-len(line) // columns)) for line in text.splitlines())


def test_a_log_fits_a_screen(
    holdfast: Holdfast, failing: str, healthy: str, noted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for log in (failing, *sorted(map(str, LOGS.iterdir()))):
        said = holdfast("diagnose", log, "--fail-on", "never").stdout
        runs = re.split(r"\n\n(?=\S+  \(.* log)", said)
        assert max(rows_of(run, 80) for run in runs) <= SCREEN - 1, said
    said = holdfast("diagnose", healthy).stdout
    assert len(said.splitlines()) <= 5 and "\nNo findings. " in said
    assert re.search(r"^  note      TRN001 at step 1, rollouts truncated$", holdfast("diagnose", noted).stdout, re.M)


def test_later_findings_are_named_and_verbose_prints_them(holdfast: Holdfast, failing: str) -> None:
    said = holdfast("diagnose", failing, code=1).stdout
    heads = re.findall(r"^([A-Z]{3}\d{3})  step (\d+)", said, re.M)
    named = re.findall(r"([A-Z]{3}\d{3}) at (?:step )?(\d+)", " ".join(said.split()))
    reported = json.loads(holdfast("diagnose", failing, "--json", code=1).stdout)["findings"]
    found = [(f["code"], str(f["step"])) for f in reported if f["level"] == "finding"]
    assert len(heads) < len(found) and heads + named == [(f["code"], str(f["step"])) for f in reported]
    whole = holdfast("diagnose", failing, "--verbose", code=1).stdout
    assert re.findall(r"^([A-Z]{3}\d{3})  step (\d+)", whole, re.M) == found
    assert rows_of(whole, 80) > SCREEN
    flat = " ".join(whole.split())
    assert "Skipped checks, with the metrics that the log lacks:" in flat
    assert "RET002 needs retrieval/empty_fraction. Logged by" in flat


# ---- Markdown and JSON

NASTY = 'a|b`c`<img src=x onerror=alert(1)>[x](http://e.vil)\n# head\n@team *b* _i_ ~s~ "q" \\|'


def rendered(markdown: str) -> str:
    return MarkdownIt("commonmark").enable("table").render(markdown)


def test_markdown_of_a_failing_run(holdfast: Holdfast, failing: str, healthy: str) -> None:
    said = holdfast("diagnose", failing, healthy, "--format", "markdown", code=1).stdout
    values = json.loads(holdfast("diagnose", failing, healthy, "--format", "json", code=1).stdout)
    findings = [f for f in values[0]["findings"] if f["level"] == "finding"]
    html = rendered(said)
    table = re.findall(r"<tr>\n<td>([A-Z]{3}\d{3})</td>\n<td>(\d+)</td>\n<td>(.*?)</td>\n<td>(.*?)</td>", html)
    assert [(code, int(step)) for code, step, *_ in table] == [(f["code"], f["step"]) for f in findings]
    assert unescape(re.sub("<[^>]+>", "", table[0][3])) == findings[0]["remedy"].replace("`", "")
    assert "<code>learning_rate</code>" in html
    assert "<td>peak reward</td>" in html and html.count("<details>") == html.count("</details>") >= 3
    assert "<code>well</code>: no findings" in html
    assert "\x1b" not in said


def test_names_cannot_break_the_markdown() -> None:

    log = Log(format="jsonl", host="unknown", name=NASTY, series={}, notes=(NASTY,))
    finding = Finding(
        code="RWD001",
        step=3,
        certain=3,
        summary=NASTY,
        evidence={NASTY: 1.0},
        series=(),
        remedy=f"Set `{NASTY}` or {NASTY}",
    )
    diagnosis = replace(diagnose(log), findings=(finding,), notes=(finding,), cannot_tell=())
    html = rendered(as_markdown(log, diagnosis))
    assert "<img" not in html and "<a " not in html and "<em>" not in html and "<h1>" not in html
    assert not re.search(r"@team(?![^<]*</code>)", html)
    rows = re.findall(r"<tr>\n(.*?)</tr>", html, re.S)
    assert [row.count("<td>") for row in rows if "RWD001" in row] == [4]


def test_form_and_its_short_form(holdfast: Holdfast, failing: str) -> None:
    short = holdfast("diagnose", failing, "--json", code=1).stdout
    assert holdfast("diagnose", failing, "--format", "json", "--json", code=1).stdout == short
    assert "give one" in holdfast("diagnose", failing, "--json", "--format", "markdown", code=2).output


# ---- two runs


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """Two runs with noise; in the second, searches fail from step 41 on, and the reward falls from step 51 on."""
    draw = default_rng(0)
    paths = []
    for name, fails in (("a|1", False), ("b", True)):
        rows = [
            {
                "step": s,
                "reward/mean": (0.1 if fails and s > 50 else 0.6) + 0.02 * draw.normal(),
                "retrieval/error_fraction": (0.9 if fails and s > 40 else 0.02) + 0.005 * draw.random(),
                "entropy/mean": 1.0 + 0.05 * draw.normal(),
            }
            for s in range(1, 121)
        ]
        paths.append(log_of(tmp_path / name / "metrics.jsonl", rows))
        (tmp_path / name / "config.toml").write_text(f"[train]\nlr = {'1e-5' if fails else '1e-6'}\nsteps = 120\n")
    return paths[0], paths[1]


def test_what_differs_first(holdfast: Holdfast, pair: tuple[str, str], tmp_path: Path) -> None:
    said = holdfast("diagnose", "--diff", *pair, code=1).stdout
    assert re.search(r"^retrieval/error_fraction differs first, at step 4\d: ", said, re.M)
    assert re.findall(r"^  step (\d)\d  (\S+)", said, re.M) == [("4", "retrieval/error_fraction"), ("5", "reward/mean")]
    assert re.search(r"^  train\.lr  +1e-06  1e-05$", said, re.M) and "train.steps" not in said
    assert re.search(r"^  A         none$", said, re.M) and re.search(r"^  B         RET001 at step 4\d,", said, re.M)
    page = tmp_path / "page.html"
    holdfast("report", *pair, "--out", str(page))
    assert "retrieval/error_fraction differs first, at step 4" in page.read_text(encoding="utf-8")


def test_what_differs_as_json_and_markdown(holdfast: Holdfast, pair: tuple[str, str]) -> None:
    value = json.loads(holdfast("diagnose", "--diff", *pair, "--json", code=1).stdout)
    assert [d["series"] for d in value["differences"]] == ["retrieval/error_fraction", "reward/mean"]
    assert value["settings"] == [{"name": "train.lr", "a": "1e-06", "b": "1e-05"}]
    assert [run["name"] for run in value["runs"]] == ["a|1", "b"] and value["series"] == 3
    html = rendered(holdfast("diagnose", "--diff", *pair, "--format", "markdown", code=1).stdout)
    assert "<code>a|1</code>" in html and "<td><code>reward/mean</code></td>" in html
    assert re.search(r"<td>findings</td>\n<td>none</td>\n<td>RET001 at 4\d", html)


def test_a_run_does_not_differ_from_itself(holdfast: Holdfast, pair: tuple[str, str]) -> None:
    said = holdfast("diagnose", "--diff", pair[0], pair[0], code=1).stdout  # both are flat
    assert "Both runs log 3 metrics, and no difference exceeds the noise." in said and "Settings" not in said
    assert "the logs have one" in holdfast("diagnose", "--diff", pair[0], code=2).output
