"""The single-turn sets, and the page that judges them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast_research import collection, readings
from holdfast_research.pages import single_turn as page
from holdfast_research.recordings.library import PACKED, Recording, folder_of, read_manifest


def test_a_log_of_every_step_is_joined_as_trl_joins_it() -> None:
    rows = [{"step": i, "loss": float(i), "learning_rate": i / 10, "reward": i % 2 or None} for i in range(1, 10)]
    joined = page.relogged([*rows, {"step": 9, "train_runtime": 1.0}], 4)
    assert [row["step"] for row in joined] == [4, 8]
    assert joined[0] == {"step": 4, "loss": 2.5, "learning_rate": 0.4, "reward": 1.0}


def a_recording(folder: Path, name: str, cause: str, rows: list[dict[str, Any]], **more: Any) -> Recording:
    settings = {"logging_steps": 1, "engine": False}
    row = {"testbed": "t", "host": "trl", "split": "practice", "seed": 1, "steps": len(rows), "how": "", "recipe": "t"}
    recording = Recording(name=name, cause=cause, settings=settings, **row, **more)
    log = {"trainer_state.json": json.dumps({"log_history": rows, "global_step": len(rows)})}
    collection.write(folder / PACKED, {**collection.read(folder / PACKED), name: log})
    return recording


def test_a_set_is_judged_in_every_view(tmp_path: Path) -> None:
    calm = [
        {"step": i, "loss": 0.01, "grad_norm": 1.0, "reward": 0.5 + 0.01 * (i % 3), "reward_std": 0.4, "entropy": 0.5}
        for i in range(1, 81)
    ]
    broken = [row | ({"loss": float("nan"), "grad_norm": float("nan")} if row["step"] > 40 else {}) for row in calm]
    healthy = a_recording(tmp_path, "calm", "healthy-plain", calm)
    faulty = a_recording(tmp_path, "nan", "non-finite", broken, start=40)
    leak = a_recording(tmp_path, "leak", "masked-leak", calm)
    verdicts = page.all_views([healthy, faulty, leak], tmp_path)
    assert [v.view for v in verdicts[:4]] == ["observed", "stock", "every 4", "every 10"]
    stock = page.numbers(page.by_view(verdicts)["stock"])
    assert stock["healthy with a finding"] == page.Share(0, 1)
    assert stock["found by the end"] == page.Share(1, 2)
    assert stock["right cause first"] == page.Share(1, 2)
    assert stock["right cause first, where the log can tell"] == page.Share(1, 1)
    text = page.table(verdicts)
    assert "non-finite" in text and "GRD002 1" in text
    assert "!! leak" in page.each(verdicts)


def test_a_log_of_the_local_trainer_is_judged_whole_and_with_a_row_in_ten() -> None:
    folder = folder_of("real-model")
    recordings = read_manifest(folder)
    assert len(recordings) == 8 and all(recording.healthy for recording in recordings)
    assert set(collection.read(folder / PACKED)) == {recording.name for recording in recordings}
    views = page.views(recordings[0], folder)
    assert len(views["whole"].steps) == 24 and views["every 10"].steps.tolist() == [10, 20]
    assert views["whole"].settings["train.group_size"] == 6


def test_what_is_said_of_the_runs_of_a_real_model_is_published() -> None:
    folder, kept = folder_of("real-model"), readings.kept("real-model")
    assert kept is not None
    verdicts = page.all_views(read_manifest(folder), folder)
    assert len(verdicts) == 16
    for v in verdicts:
        assert kept["runs"][v.name][v.view] == page.said(v.findings, v.notes), "make accuracy"
