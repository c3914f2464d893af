"""The file as text: one piece, nothing from outside, every text escaped, atomic, and clear errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import ConfigError, DataError
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import Diagnosis, Finding
from holdfast.diagnose.log import Log
from holdfast.diagnose.report import ReportedRun, reported, write_report
from holdfast.diagnose.report.page import LOOK_EVERY
from holdfast.diagnose.report.parts import verdict

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">&\u2028\u202e \ud800'


def page_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def data_of(page: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return dict(json.loads(found))


def test_one_file_with_everything(collapse: ReportedRun, tmp_path: Path) -> None:
    page = page_of(write_report(tmp_path / "new" / "report.html", [collapse]))
    assert 100_000 < len(page) < 200_000
    assert not re.findall(r'<link|src="|href="(?!#)|url\((?!#)|@import|<img|<iframe', page)
    assert set(re.findall(r"https?://[^\"'<\s]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, never loaded
    assert "default-src 'none'" in page and "width=device-width" in page and "prefers-color-scheme: dark" in page
    for text in (
        *("5 findings", "What LLD003 says.", "What ENT001 asks for.", "21 steps before half of the reward was lost"),
        *("sampler/logprob_gap", "loss.penalty.name", "train.lr", "holdfast 0", "Log it."),
    ):
        assert text in page, text
    assert len(data_of(page)["rollouts"]) == 120
    assert not list(tmp_path.glob("new/.*")), "nothing temporary is left"


def test_a_healthy_run_says_so(collapse: ReportedRun, tmp_path: Path) -> None:
    run = replace(collapse, diagnosis=Diagnosis(findings=(), facts=collapse.diagnosis.facts))
    page = page_of(write_report(tmp_path / "r.html", [run]))
    assert "No findings" in page and "find no problem" in page and "were skipped" not in page
    assert data_of(page)["runs"][0]["phases"] == []
    unsure = replace(run, diagnosis=replace(run.diagnosis, cannot_tell=collapse.diagnosis.cannot_tell))
    assert "1 check was skipped" in page_of(write_report(tmp_path / "u.html", [unsure]))


def test_several_runs(collapse: ReportedRun, make_log: Callable[..., Log], tmp_path: Path) -> None:
    other = make_log({"reward/mean": [0.5] * 20}, name="steady", settings={"train": {"lr": 1e-5}, "run": {"seed": 1}})
    runs = [replace(collapse, log=replace(collapse.log, settings={"train": {"lr": 6e-4}, "run": {"seed": 1}}))]
    page = page_of(write_report(tmp_path / "r.html", [*runs, reported(other, diagnose(other))]))
    assert "2 runs" in page and "LLD002 at 24</a>; <a" in page and "What the codes mean" in page
    assert ">cannot tell<" in page and ">fell at 40<" in page
    assert "Settings that differ (1)" in page and "train.lr" in page and "run.seed" not in page
    assert page.index("collapse, change first:") < page.index("Settings that differ")
    data = data_of(page_of(write_report(tmp_path / "r.html", [collapse] * 2)))
    assert [run["name"] for run in data["runs"]] == ["collapse (1)", "collapse (2)"]


def test_the_verdict_and_what_to_change_lead_and_are_said_once(collapse: ReportedRun, tmp_path: Path) -> None:
    change = collapse.diagnosis.verdict.change
    page = page_of(write_report(tmp_path / "r.html", [collapse]))
    assert page.index("<b>Fell.</b>") < page.index(change) < page.index("Reward 0.3 in the first rows")
    assert page.count(change) == 1 and "0.04 ± " in page


def test_what_came_with_a_changed_setting_is_folded_below_it(collapse: ReportedRun, tmp_path: Path) -> None:
    penalty = {"loss.penalty.name": "llds", "loss.penalty.coef": 0.2, "loss.penalty.gate": "action"}
    other = replace(collapse, log=replace(collapse.log, settings={"train": {"lr": 6e-4}} | penalty))
    page = page_of(write_report(tmp_path / "r.html", [collapse, other]))
    assert "Settings that differ (1)" in page and "2 that came with loss.penalty.name" in page
    assert page.index("<td>llds</td>") < page.index("2 that came with") < page.index("<td>0.2</td>")


def test_a_verdict_says_where_a_run_recovered(make_log: Callable[..., Log]) -> None:
    fell = make_log({"reward/mean": [0.8] * 20 + [0.0] * 8})
    assert verdict(reported(fell, diagnose(fell))) == (21, "fell at 21")
    recovered = make_log({"reward/mean": [0.8] * 20 + [0.0] * 8 + [0.8] * 30})
    assert verdict(reported(recovered, diagnose(recovered))) == (21, "fell at 21, recovered at 37")


def test_hostile_texts_stay_texts(collapse: ReportedRun, make_finding: Callable[..., Finding], tmp_path: Path) -> None:
    rollout = replace(collapse.rollouts[0], question=HOSTILE, answer=HOSTILE, golden_answers=(HOSTILE,))
    log = replace(
        collapse.log,
        name=HOSTILE,
        notes=(HOSTILE,),
        settings={HOSTILE: HOSTILE},
        series={**collapse.log.series, HOSTILE: collapse.log.series["reward/mean"]},
    )
    finding = make_finding(HOSTILE, 5, HOSTILE, summary=HOSTILE, remedy=f"`{HOSTILE}`", evidence={HOSTILE: 1.0})
    run = ReportedRun(log=log, diagnosis=Diagnosis(findings=(finding,)), rollouts=(rollout,))
    for runs in ([run], [run, run]):
        page = page_of(write_report(tmp_path / "r.html", runs))
        assert page.count("<script") == 2 and page.count("</script>") == 2
        assert "<img" not in page and "onerror=" not in re.sub(r"<script.*?</script>", "", page, flags=re.S).replace(
            "onerror=&quot;", ""
        )
        assert data_of(page)["rollouts"][0]["question"] == HOSTILE
        assert data_of(page)["runs"][0]["name"].startswith(HOSTILE)


def test_samples_are_found_beside_the_log(collapse: ReportedRun, tmp_path: Path) -> None:
    folder = tmp_path / "collapse"
    folder.mkdir()
    (folder / "displacement.jsonl").write_text('{"step": 1, "correct": [0.5], "incorrect": []}\n')
    (folder / "metrics.jsonl").touch()
    row = {"step": 1, "question": "Where?", "turns": [{"text": "hm"}], "answer": None, "reward": 0.0}
    (folder / "trajectories.jsonl").write_text(json.dumps(row) + "\n")
    for path in (folder, folder / "metrics.jsonl", tmp_path):  # the last is a folder of runs
        run = reported(collapse.log, collapse.diagnosis, path)
        assert len(run.changes) == 1 and [rollout.question for rollout in run.rollouts] == ["Where?"]
    assert reported(collapse.log, collapse.diagnosis).changes == ()


@pytest.mark.parametrize(
    "name", ["{outside}", "../outside", "\N{GRINNING FACE}" * 100], ids=["absolute", "above", "long"]
)
def test_a_name_in_a_log_leads_to_no_samples_outside(collapse: ReportedRun, tmp_path: Path, name: str) -> None:
    folder, outside = tmp_path / "run", tmp_path / "outside"
    for place in (folder, outside):
        place.mkdir()
    (outside / "displacement.jsonl").write_text('{"step": 1, "correct": [0.5], "incorrect": []}\n')
    (folder / "metrics.jsonl").touch()
    log = replace(collapse.log, name=name.format(outside=outside))
    for path in (folder, folder / "metrics.jsonl"):
        assert reported(log, collapse.diagnosis, path).changes == ()
    assert len(reported(replace(log, name="outside"), collapse.diagnosis, tmp_path).changes) == 1


def test_an_old_report_survives_a_failure(
    collapse: ReportedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_report(tmp_path / "report.html", [collapse])
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigError, match=r"report\.html cannot be written \(No space left"):
        write_report(path, [collapse])
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["report.html"]
    for place in (path / "report.html", tmp_path):  # below a file, and a folder
        with pytest.raises(ConfigError, match="cannot be written"):
            write_report(place, [collapse])


def test_nothing_to_draw(make_log: Callable[..., Log], tmp_path: Path) -> None:
    empty = ReportedRun(log=make_log({}), diagnosis=Diagnosis(findings=()))
    for runs in ([], [empty], [empty, empty]):
        with pytest.raises(DataError, match="nothing to draw"):
            write_report(tmp_path / "r.html", runs)
    assert not any(tmp_path.iterdir())


def test_a_live_page_becomes_final(collapse: ReportedRun, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    live = page_of(write_report(path, [collapse], live=True))
    assert data_of(live)["live"] == LOOK_EVERY and 'id="age"' in live and "This page is final" not in live
    final = page_of(write_report(path, [collapse]))
    assert data_of(final)["live"] is None and 'id="age"' not in final and "This page is final" in final
    assert data_of(final)["written"] > data_of(live)["written"] and data_of(final)["key"] == data_of(live)["key"]
    other = data_of(page_of(write_report(tmp_path / "other.html", [collapse])))
    assert other["key"] != data_of(live)["key"], "a file has its own key"
    parts = re.findall(r'data-part="(\w+)"', final)
    assert parts == ["top", "found", "rollouts", "rest"] == re.findall(r'data-part="(\w+)"', live)


def test_notes_of_the_rules_are_notes(collapse: ReportedRun, make_finding: Any, tmp_path: Path) -> None:
    note = make_finding("GRP001", 3, "reward/mean", level="note", remedy="")
    quiet = replace(collapse, diagnosis=replace(collapse.diagnosis, findings=(), notes=(note,)))
    page = page_of(write_report(tmp_path / "one.html", [quiet]))
    assert "No findings" in page and "<h2>Notes</h2>" in page and "What GRP001 says." in page
    assert page.index("No findings") < page.index("<h2>Notes</h2>") < page.index("<h2>Curves</h2>")
    assert "<h2>Notes</h2>" not in page_of(write_report(tmp_path / "two.html", [collapse]))
