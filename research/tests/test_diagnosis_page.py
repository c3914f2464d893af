"""The page on how often diagnose is right has what was read, and nothing else; and how public logs are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast_research import public_logs, readings
from holdfast_research.pages import diagnosis_page
from holdfast_research.pages.diagnosis_page import null_reading, page, take
from holdfast_research.public_logs import Reading, counts, judged, logs_of

STAMP = {"command": "python -m x", "date": "2026-01-01 10:00", "rules": "abc1234"}


def verdict(rows: int, completions: int, *codes: str, reward: str = "correct") -> dict[str, Any]:
    run = {"rows": rows, "completions": completions, "reward": reward}
    return {"run": run, "codes": list(codes), "steps": [1] * len(codes)}


def test_drawn_runs_are_counted_by_cell() -> None:
    drawn = [verdict(20, 8, "RWD001", "TRN001"), verdict(20, 8), verdict(100, 8), verdict(100, 8)]
    reading = null_reading([*drawn, *(verdict(rows, 8, reward="sparse") for rows in (20, 20, 100, 100))])
    assert reading["findings per run"] == {
        "8 completions a row": {"20 rows": 1.0, "100 rows": 0.0},
        "8 completions a row, sparse rewards": {"20 rows": 0.0, "100 rows": 0.0},
    }
    assert reading["worst"] == 1.0 and reading["all"] == 0.25
    assert reading["findings by code"] == {"RWD001": 1, "TRN001": 1}


BARE = "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("in_short", "others", *diagnosis_page._TABLES))


def test_the_page_has_what_was_read_and_whether_it_is_enough() -> None:
    text = page(BARE, {"null_model": {**STAMP, **null_reading([verdict(20, 8), verdict(20, 8, "GRD001")])}})
    assert "abc1234" in text and "2026-01-01" in text
    summary = next(line for line in text.splitlines() if line.startswith("| simulated healthy runs"))
    assert "**0.5**; at most 0.02" in summary


def test_what_another_command_wrote_becomes_a_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "READINGS", tmp_path)
    written = tmp_path / "null.txt"
    written.write_text(json.dumps([verdict(20, 8)]))
    take("null_model", written)
    assert readings.kept("null_model")["runs"] == 1  # type: ignore[index]


def test_the_page_in_the_docs_is_that_of_the_readings_kept() -> None:
    kept = {name: r for name in diagnosis_page.READINGS if (r := readings.kept(name)) is not None}
    shown = diagnosis_page.PAGE.read_text(encoding="utf-8")
    assert shown == page(shown, kept), "write it: pages.diagnosis_page"


# ---- public logs


def write(folder: Path, number: str, text: str, meta: str) -> None:
    (folder / f"{number}.txt").write_text(text)
    (folder / f"{number}.meta").write_text(meta)


def console(rewards: list[float]) -> str:
    return "".join(
        f"step:{i} - critic/score/mean:{reward} - actor/grad_norm:{'nan' if reward < 0 else 0.3}\n"
        for i, reward in enumerate(rewards, 1)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "01", console([0.4, 0.5]), "kind: issue thread\nexpected: no finding; explain\n")
    write(tmp_path, "02", console([0.4, -1.0]), "kind: issue thread\nexpected: GRD002\n")
    write(tmp_path, "21", console([0.5] * 30), "outcome: accuracy 0.8. HEALTHY (noisy)\nexpected: no finding\n")
    write(tmp_path, "22", console([0.5] * 20 + [-1.0] * 10), "outcome: nothing left. COLLAPSED\nexpected: a finding\n")
    write(tmp_path, "23", "\n", "outcome: HEALTHY\n")
    write(tmp_path, "24", "what is this", "outcome: UNSTABLE\n")
    return tmp_path


def test_the_truth_is_in_the_meta(folder: Path) -> None:
    with logs_of(folder) as logs:
        truths = {log.number: (log.truth, log.outcome) for log in logs}
    assert truths["01"] == ("asked, healthy", "") and truths["02"] == ("asked", "")
    assert truths["21"] == ("healthy", "HEALTHY") and truths["22"] == ("bad", "COLLAPSED")


def test_what_is_found_is_counted_by_the_truth(folder: Path) -> None:
    with logs_of(folder) as logs:
        said = [judged(log) for log in logs]
    found = {reading.number: reading.findings for reading in said}
    assert found["02"] == ("GRD002@2",) and found["21"] == ()
    numbers = counts(said)
    assert numbers["logs with a reward read"] == "2 of 3", "an empty file is no log"
    assert numbers["bad runs with a finding"].startswith("1 of 2"), "what cannot be read is not found"
    assert numbers["other runs with a false finding"].startswith("0 of 1")
    assert numbers["pasted rows of sound runs with a finding"].startswith("0 of 1")
    assert numbers["pasted rows with a finding or a note"].startswith("1 of 2")
    noted = Reading(number="1", truth="healthy", outcome="HEALTHY", rows=3, notes=("TRN001@2",))
    numbers = counts([noted])
    assert numbers["other runs with a false finding"].startswith("0 of 1")
    assert numbers["other runs with a note"].startswith("1 of 1")


def test_a_reading_holds_numbers_and_outcomes_only(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["public_logs", str(folder), "--keep"])
    monkeypatch.setattr(public_logs.readings, "READINGS", tmp_path)
    public_logs.main()
    reading = json.loads((tmp_path / "public_logs.json").read_text())
    keys = {"number", "truth", "outcome", "rows", "findings", "notes", "empty", "has_reward", "labelled", "right", "ok"}
    assert {key for log in reading["logs"] for key in log} == keys
    assert str(folder) not in (tmp_path / "public_logs.json").read_text()


def test_labels_say_which_first_finding_is_right(tmp_path: Path) -> None:
    labels = "# of three runs\n01 | bad=1 kind=bad accept-first=[GRD002 STP001] agent=0 | ends in NaN\n"
    labels += (
        "02 | bad=0 kind=learned accept-first=[] agent=1 | sound\n03 | bad=0 kind=flat accept-first=[GRD002] | x\n"
    )
    (tmp_path / "LABELS.txt").write_text(labels)
    for number in ("01", "02", "03"):
        (tmp_path / f"{number}.log").write_text(console([0.5] * 20 + [-1.0]))
    with logs_of(tmp_path) as logs:
        numbers = counts([judged(log) for log in logs])
    assert numbers["logs with a reward read"] == "3 of 3"
    assert numbers["bad runs with the right finding first"].startswith("1 of 1")
    assert numbers["other runs with a false finding"].startswith("1 of 2")  # 03 may have its finding
    assert numbers["runs that learned, with exit code 1"].startswith("1 of 1")


def test_each_collection_is_shown_as_first_read_and_as_it_is_read_now() -> None:
    numbers = {public_logs.READ: "9 of 9", public_logs.FOUND: "1 of 2, 0.50 (0.09 to 0.91)"}
    kept = {name: {**STAMP, "counts": numbers} for name in ("strangers_38_first", "strangers_38")}
    first, mended = (line for line in page(BARE, kept).splitlines() if line.startswith("| 38 strangers"))
    assert first.startswith("| 38 strangers, first read | 9 of 9 | 1/2 (0.09–0.91) |") and "abc1234" in first
    assert mended.startswith("| 38 strangers, mended |")


def test_a_name_says_which_series_is_the_reward(tmp_path: Path) -> None:
    (tmp_path / "LABELS.txt").write_text("01 | bad=0 kind=flat accept-first=[] | x\n")
    (tmp_path / "01.jsonl").write_text("".join(json.dumps({"step": i, "delight": 0.5}) + "\n" for i in range(1, 9)))
    for names, read in ({}, "0 of 1"), ({"01": {"reward": "delight"}}, "1 of 1"):
        with logs_of(tmp_path, names) as logs:
            assert counts([judged(log) for log in logs])["logs with a reward read"] == read
