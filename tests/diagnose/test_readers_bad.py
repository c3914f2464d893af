"""Damaged logs: what is left of them, and the sentences that say what is not."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.base import opening
from holdfast.base.errors import DataError
from holdfast.diagnose.readers import columns as columns_module
from holdfast.diagnose.readers import find, read_log, read_logs, tables
from holdfast.diagnose.readers import text as text_module
from holdfast.diagnose.readers.event_file import checksum

from .conftest import LOGS
from .written import write

PLAIN = '{"step": 1, "data": {"actor/entropy": 0.5}}\n{"step": 2, "data": {"actor/entropy": 0.25}}\n'

NO_STEP = "the step is not a whole number from 0 on"


def written(folder: Path, text: str | bytes, name: str = "log.jsonl") -> Path:
    return write(folder, text, name)


def verl(*rows: tuple[Any, dict[str, Any]]) -> str:
    return "".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in rows)


def entropy(log: Any) -> dict[int, float]:
    part = log.series["entropy/mean"]
    return dict(zip(part.steps.tolist(), part.values.tolist(), strict=True))


# ---- lines


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ('{"step": 3, "data": {"actor/ent', "Skipped the last line: not a complete JSON object (line 3)."),
        ('garbage\n[1, 2]\n3\n{"step": 3, "data": {}}\n', "Skipped 3 lines: not a JSON object (the first: line 3)."),
        ("[" * 100_000 + '\n{"step": 3}\n', "Skipped 1 line: not a JSON object (line 3)."),
        ('{"data": {"actor/entropy": 1}}\n', "Skipped 1 row: no step (line 3)."),
        ('{"step": NaN, "data": {}}\n', "Skipped 1 row: STEP (line 3: nan)."),
        ('{"step": {"x": 1}, "data": {}}\n', "Skipped 1 row: STEP (line 3: {'x': 1})."),
        ('{"step": 3, "data": {"x": "many"}}\n', "Left out 1 value: not a number (line 3: x is a string)."),
        ('{"step": 3, "data": {"x": {"y": "z"}}}\n', "Left out 1 value: not a number (line 3: x is an object)."),
        (
            f'{{"step": 3, "data": {{"x": {"9" * 400}}}}}\n',
            "Left out 1 value: not a number (line 3: x is too large a number).",
        ),
        (f'{{"step": 3, "data": {{"x": {"9" * 5000}}}}}\n{{}}\n', "Skipped 1 line: not a JSON object (line 3)."),
    ],
)
def test_what_is_no_row_is_skipped_and_counted(tmp_path: Path, more: str, note: str) -> None:
    log = read_log(written(tmp_path, PLAIN + more))
    assert entropy(log) == {1: 0.5, 2: 0.25}
    assert note.replace("STEP", NO_STEP) in log.notes


def test_numbers_in_every_dress(tmp_path: Path) -> None:
    values = 'NaN, Infinity, -Infinity, "NaN", "-inf", "0.5", 7, 1e400, true, null'
    text = "".join(f'{{"step": {i}, "data": {{"x": {v}}}}}\n' for i, v in enumerate(values.split(", ")))
    log = read_log(written(tmp_path, text))
    expected = [math.nan, math.inf, -math.inf, math.nan, -math.inf, 0.5, 7, math.inf, 1, math.nan]
    assert np.array_equal(log.series["x"].values, expected, equal_nan=True)
    assert log.notes == ()


# ---- steps


def rows_of(*steps: int, name: str = "actor/entropy") -> list[tuple[int, dict[str, float]]]:
    """The value of a row is its number."""
    return [(step, {name: float(i)}) for i, step in enumerate(steps)]


@pytest.mark.parametrize(
    ("steps", "left", "note"),
    [
        ((1, 2, 3), {1: 0, 2: 1, 3: 2}, None),
        ((1, 2, 3, 2, 3, 4), {1: 0, 2: 3, 3: 4, 4: 5}, "once, from step 3 back to step 2: left out 2 rows"),
        ((1, 2, 3, 2), {1: 0, 2: 3}, "once, from step 3 back to step 2: left out 2 rows"),
        (
            (5, 6, 7, 1, 2),
            {1: 3, 2: 4},
            "Steps start again at 1 after step 7: only the last run was read, without 3 rows before it.",
        ),
        ((1, 2, 3, 2, 3, 1, 2), {1: 5, 2: 6}, "2 times, first from step 3 back to step 2: left out 5 rows"),
        ((1, 2, 900, 3, 4), {1: 0, 2: 1, 3: 3, 4: 4}, "once, from step 900 back to step 3: left out 1 row "),
        ((1, 9, 2, 10, 3, 4), {1: 0, 2: 2, 3: 4, 4: 5}, "once, from step 10 back to step 3: left out 2 rows"),
        ((1, 2, 3, 2, 4), {1: 0, 2: 3, 3: 2, 4: 4}, "Replaced 1 value by later values of the same step."),
        (
            (3, 2, 1),
            {1: 2, 2: 1, 3: 0},
            "The newest row comes first, so the rows were read in reverse order.",
        ),
        ((1, 2, 2, 3), {1: 0, 2: 2, 3: 3}, "Replaced 1 value by later values of the same step."),
        ((1, 2, 1, 2, 1, 2), {1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 5}, "its numbering was continued from there"),
        ((1, 2, 3, 40, 5, 6), {1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 5}, "replaced by the step that is missing there."),
        ((10, 20, 3, 40, 50), {10: 0, 20: 1, 30: 2, 40: 3, 50: 4}, "replaced by the step that is missing there."),
    ],
)
def test_resumed_late_and_repeated(
    tmp_path: Path, steps: tuple[int, ...], left: dict[int, float], note: str | None
) -> None:
    log = read_log(written(tmp_path, verl(*rows_of(*steps))))
    assert entropy(log) == left
    assert log.steps.tolist() == sorted(left)
    assert (len(log.notes), note is None or note in log.notes[0]) == (note is not None, True)


def test_a_late_evaluation_joins_its_step(tmp_path: Path) -> None:
    rows = [*rows_of(1, 2, 3), (2, {"val": 9.0}), *rows_of(4, 5)]
    for part in (rows, rows[:4]):
        log = read_log(written(tmp_path, verl(*part)))
        assert log.series["val"].steps.tolist() == [2] and log.notes == ()
        assert log.series["entropy/mean"].steps.tolist() == [1, 2, 3, 4, 5][: len(part) - 1]


def test_parts_of_a_trainer_that_log_at_their_own_pace(tmp_path: Path) -> None:
    """An asynchronous trainer is steps behind the rollouts that it will train on, in one file."""
    ahead = [(step, {"reward": step}) for step in range(1, 41)]
    behind = [(step, {"loss": step}) for step in range(1, 39)]
    rows = [*ahead[:4], *(row for pair in zip(behind[::2], behind[1::2], ahead[4::2], strict=False) for row in pair)]
    log = read_log(written(tmp_path, verl(*rows)))
    assert log.notes == () and log.series["loss"].steps.tolist() == [step for step, row in rows if "loss" in row]
    resumed = [*rows, *ahead[20:25], *behind[19:24]]
    log = read_log(written(tmp_path, verl(*resumed)))
    assert "once, from step 39 back to step 21" in log.notes[0]
    assert log.series["reward/mean"].steps.tolist()[-6:] == [19, 21, 22, 23, 24, 25]
    assert log.series["loss"].steps.tolist() == list(range(1, 25))


def test_what_a_resumed_run_no_longer_logs_is_gone(tmp_path: Path) -> None:
    rows = [(1, {"x": 1}), (2, {"x": 1, "y": 1}), (3, {"y": 1}), (2, {"x": 2}), (3, {"x": 2})]
    log = read_log(written(tmp_path, verl(*rows)))
    assert "y" not in log.series and log.series["x"].values.tolist() == [1, 2, 2]


def test_the_later_value_counts_whatever_else_its_row_has(tmp_path: Path) -> None:
    log = read_log(written(tmp_path, verl((1, {"x": 1, "y": 0}), (1, {"x": 2}), (1, {"x": 3, "y": 0}), (1, {"z": 0}))))
    assert log.series["x"].values.tolist() == [3]


# ---- units


@pytest.mark.parametrize(
    ("logged", "read"),
    [([50.0, 2.0], [0.5, 0.02]), ([0.5, 1.0], [0.5, 1.0]), ([0.5, 250.0], [0.5, 250.0]), ([-5.0, 50.0], [-5.0, 50.0])],
)
def test_a_share_above_one_is_a_percentage(tmp_path: Path, logged: list[float], read: list[float]) -> None:
    rows = [(i, {"actor/pg_clipfrac": value, "critic/score/mean": value}) for i, value in enumerate(logged)]
    log = read_log(written(tmp_path, verl(*rows)))
    assert log.series["clip/fraction"].values.tolist() == pytest.approx(read)
    assert log.series["reward/mean"].values.tolist() == logged  # a reward may be anything
    assert any("so its values were divided by 100" in note for note in log.notes) == (logged != read)


# ---- encodings and sizes


KINDS = ("verl-file.jsonl", "verl-console.log", "wandb-trl.csv", "trl-observed/checkpoint-6/trainer_state.json")


@pytest.mark.parametrize(
    ("mark", "encoding"), [(b"", "utf-8-sig"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")]
)
def test_marks_of_other_encodings_and_line_ends_of_windows(tmp_path: Path, mark: bytes, encoding: str) -> None:
    for name in KINDS:
        text = (LOGS / name).read_text(encoding="utf-8").replace("\n", "\r\n")
        log, plain = read_log(written(tmp_path, mark + text.encode(encoding))), read_log(LOGS / name)
        assert set(log.series) == set(plain.series) and log.steps.tolist() == plain.steps.tolist(), name
        assert not any("Skipped" in note for note in log.notes), name


def test_bytes_that_are_no_text_spoil_their_line_only(tmp_path: Path) -> None:
    log = read_log(written(tmp_path, PLAIN.encode() + b"\xff\xfe\x00\x80\n" + verl((3, {"actor/entropy": 1})).encode()))
    assert entropy(log) == {1: 0.5, 2: 0.25, 3: 1.0}


def test_lines_longer_than_memory_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_LINE", 1000)
    monkeypatch.setattr(opening, "BLOCK", 300)
    long = json.dumps({"step": 3, "data": {"x": "y" * 5000}}) + "\n"
    log = read_log(written(tmp_path, PLAIN + long + verl((4, {"actor/entropy": 1.0})) + "z" * 3000))
    assert entropy(log) == {1: 0.5, 2: 0.25, 4: 1.0}
    assert log.notes[0] == "Skipped 2 lines of more than 1,000 bytes (the first: line 3)."


@pytest.mark.parametrize("block", [7, 1000])
@pytest.mark.parametrize("name", KINDS)
def test_where_a_block_ends_does_not_matter(monkeypatch: pytest.MonkeyPatch, name: str, block: int) -> None:
    plain = read_log(LOGS / name)
    monkeypatch.setattr(opening, "BLOCK", block)
    log = read_log(LOGS / name)
    assert set(log.series) == set(plain.series) and log.notes == plain.notes and log.settings == plain.settings
    for series, part in plain.series.items():
        assert np.array_equal(log.series[series].values, part.values, equal_nan=True)


def test_a_damaged_archive_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    lines = "".join(verl((i, {"actor/entropy": np.random.default_rng(i).random()})) for i in range(5000))
    packed = gzip.compress(lines.encode())
    log = read_log(written(tmp_path, packed[: len(packed) // 2], "log.jsonl.gz"))
    assert 1000 < len(log.steps) < 4000
    assert "The compressed file is damaged or was cut off; the part before that was read." in log.notes


def test_a_state_that_breaks_off(tmp_path: Path) -> None:
    text = (LOGS / "trl-stock/checkpoint-6/trainer_state.json").read_text()
    log = read_log(written(tmp_path, text[: text.index('"step": 5')], "trainer_state.json"))
    assert log.steps.tolist() == [1, 2, 3, 4] and log.settings == {}
    assert log.notes[0].startswith("The file ends early, or is not JSON from here on (row ")


@pytest.mark.parametrize("block", [7, 1 << 17])
def test_a_state_in_one_line_with_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(opening, "BLOCK", block)
    state = {"log_history": [{"step": 1, "reward": math.nan}, 10**30, {"step": 2, "reward": 1.0}], "max_steps": 9}
    log = read_log(written(tmp_path, json.dumps(state), "other.json"))
    assert np.array_equal(log.series["reward/mean"].values, [math.nan, 1.0], equal_nan=True)
    assert log.settings == {"max_steps": 9}
    assert log.notes == ("Skipped 1 row: not a JSON object (row 2).",)


# ---- CSV


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("_step,actor/entropy\n1,0.5\n2,0.25\n3\n", "1 row with more or fewer cells than the header (line 4)."),
        ('_step,actor/entropy\n1,0.5\n2,0.25\n"3,9\n4,9\n', "1 row with more or fewer cells than the header (line 5)."),
        ("_step,actor/entropy\n1,0.5\n2,0.25\nx,9\n", "Skipped 1 row: STEP (line 4: x)."),
        (
            "_step,actor/entropy\n1,0.5\n2,0.25\n" + "9" * 200_000 + ",1\n",
            "Skipped 1 row: not CSV (line 4: field larger than field limit (131072)).",
        ),
    ],
)
def test_rows_of_csv_that_are_none(tmp_path: Path, text: str, note: str) -> None:
    before = csv.field_size_limit(131_072)  # of the whole process, and reading a corpus raises it
    try:
        log = read_log(written(tmp_path, text, "history.csv"))
    finally:
        csv.field_size_limit(before)
    assert entropy(log) == {1: 0.5, 2: 0.25} and note.replace("STEP", NO_STEP) in log.notes


# ---- nothing to read


@pytest.mark.parametrize(
    ("name", "raw", "said"),
    [
        ("empty.jsonl", b"", "is empty: the run has logged nothing yet"),
        ("weights.bin", bytes(range(256)) * 40, "is a binary file, not a log. holdfast can read "),
        ("events.out.tfevents.1.host", bytes(100), "has no event with a number. The length of a record"),
        ("run-x.wandb", b":W&B\x00" * 100, r"has no row of a history. The file ends within a record"),
        ("training_args.bin", b"PK\x03\x04" + bytes(90), "a pickle of settings; the log is in trainer_state.json"),
        ("data.jsonl", b'{"question": "Who?"}\n{"question": "When?"}\n', "has no row of metrics with a step"),
        ("bad.jsonl", b'{"step": null, "data": {"x": 1}}\n', "no row of metrics with a step. Skipped 1 row: no step"),
        ("trainer_state.json", b'{"global_step": 3}', "has no log_history"),
        ("history.csv", b"_step,reward\n", "has no row of metrics with a step"),
        ("broken.jsonl.gz", b"\x1f\x8b\x08\x00broken", "cannot be read"),
        ("page.html", b"<!doctype html><p>404</p>", "has neither rows with a step nor lines"),
    ],
)
def test_one_sentence_says_what_was_given(tmp_path: Path, name: str, raw: bytes, said: str) -> None:
    path = written(tmp_path, raw, name)
    with pytest.raises(DataError, match=said) as caught:
        read_log(path)
    assert str(path) in str(caught.value) and caught.value.__cause__ is None


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_log(tmp_path / "nowhere")
    with pytest.raises(DataError, match="is a folder without a log"):
        read_log(tmp_path)
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        read_log("x" * 5000)
    with pytest.raises(DataError, match=r"cannot be read|does not exist"):
        read_log("nul\0byte")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(DataError, match=r"cannot be read|does not exist"):
        read_log(loop)
    with pytest.raises(DataError, match="not a regular file"):
        read_log("/dev/null")


def test_a_pipe_that_dies_is_read_to_there(tmp_path: Path) -> None:
    class Dying(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if not (block := super().read(size)):
                raise OSError("broken pipe")
            return block

    dying = Dying(PLAIN.encode())
    with opening.spooled(iter(lambda: dying.read(100), None), "log") as path:
        assert path.read_bytes() == PLAIN.encode()
    assert not path.exists()


def test_what_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, PLAIN)

    def refuse(self: Path, *_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"cannot be read: Permission denied\. Check its permissions"):
        read_log(path)
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(DataError, match="cannot be read: its permissions forbid it"):
        read_log(tmp_path)


@pytest.mark.parametrize("settings", ["[run\nname = ", "a = " + "[" * 5000, ".".join("a" * 5000) + " = 1"])
def test_settings_that_cannot_be_read_cost_only_themselves(tmp_path: Path, settings: str) -> None:
    written(tmp_path, '{"step": 1, "time": 1.0, "reward/mean": 1.0}\n', "metrics.jsonl")
    written(tmp_path, settings, "config.toml")
    log = read_log(tmp_path)
    assert log.settings == {} and "config.toml" in log.notes[0] and len(log.steps) == 1


def test_a_file_of_names_is_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "MAX_NAMES", 50)
    with pytest.raises(DataError, match="more than 50 different names, so it is not a log of metrics"):
        read_log(written(tmp_path, verl(*((i, {f"name{i}": 1}) for i in range(60)))))
    assert len(read_log(written(tmp_path, verl(*((i, {f"name{i}": 1}) for i in range(50))))).series) == 50


def test_more_numbers_than_memory_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gzip of a few megabytes may hold gigabytes of rows."""
    monkeypatch.setattr(text_module, "MAX_NUMBERS", 3000)
    row = '{"step": %d, "reward/mean": 0.5, "entropy/mean": 1.0}\n'  # a row and two numbers
    path = tmp_path / "metrics.jsonl.gz"
    path.write_bytes(gzip.compress("".join(row % i for i in range(1000)).encode()))
    assert len(read_log(path).steps) == 1000
    path.write_bytes(gzip.compress("".join(row % i for i in range(1001)).encode()))
    with pytest.raises(DataError, match="contains more than 3,000 rows and numbers, the limit for one"):
        read_log(path)


def test_a_notebook_that_cannot_be_read_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(columns_module, "MAX_NAMES", 50)
    table = "".join(f"<td>{cell}</td>" for cell in range(60))
    names = "<td>step</td>" + "".join(f"<td>name{i}</td>" for i in range(59))
    html = f"<table><tr>{names}</tr><tr>{table}</tr><tr>{table}</tr></table>"
    cell = {"cell_type": "code", "outputs": [{"data": {"text/html": html}}]}
    written(tmp_path, json.dumps({"cells": [cell], "nbformat": 4}), "a.ipynb")
    written(tmp_path, PLAIN, "b.jsonl")
    assert [len(log.steps) for log in read_logs(tmp_path)] == [2]
    assert "left out" in caplog.text and "a.ipynb" in caplog.text


def test_what_is_no_log_in_a_folder_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good, bad = '{"step": 1, "reward/mean": 1}\n', '{"step": null, "reward/mean": 1}\n'
    for name, text in (("good", good), ("bad", bad), ("empty", "")):
        (tmp_path / name).mkdir()
        written(tmp_path / name, text, "metrics.jsonl")
    written(tmp_path, '{"question": "Who?"}\n', "questions.jsonl")
    assert [log.name for log in read_logs(tmp_path)] == ["good"] and read_log(tmp_path).name == "good"
    told = caplog.text
    assert "bad/metrics.jsonl has no row of metrics" in told and "empty/metrics.jsonl is empty" in told
    for name in ("bad", "empty"):  # asked for by name it is an error
        with pytest.raises(DataError, match=name):
            read_logs(tmp_path / name)
    (tmp_path / "good" / "metrics.jsonl").unlink()
    with pytest.raises(DataError, match="has no row of metrics"):
        read_logs(tmp_path)


# ---- folders: one file must not end the reading of the others


def event_file(length: int) -> bytes:
    """A TensorBoard file whose first record says that it has so many bytes."""
    head = length.to_bytes(8, "little")
    return head + checksum(head).to_bytes(4, "little") + b"x" * 100


@pytest.mark.parametrize("length", [1 << 40, (1 << 63) + 5])
def test_a_record_longer_than_its_file_is_the_end_of_what_was_written(tmp_path: Path, length: int) -> None:
    path = written(tmp_path, event_file(length), "events.out.tfevents.1.host")
    with pytest.raises(DataError, match=r"has no event with a number\. The file ends within a record"):
        read_log(path)


def test_whatever_a_reader_raises_in_a_folder_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("good", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(PLAIN)
        (tmp_path / f"{name}.csv").write_text("step,reward\n1,0.5\n2,0.5\n")
    recognise = find.reader_of

    def broken(path: Path, *_: Any) -> Any:
        if path.suffix == ".csv":
            raise KeyError("of a bug")
        return recognise(path)

    monkeypatch.setattr(tables, "_csv_rows", broken)
    assert sorted(log.name for log in read_logs(tmp_path)) == ["good", "other"]  # while they are read
    monkeypatch.setattr(find, "reader_of", broken)  # while they are looked for
    assert sorted(log.name for log in read_logs(tmp_path)) == ["good", "other"]
    for name in ("good.csv", "other.csv"):
        assert caplog.messages.count(f"left out: {tmp_path / name} cannot be read (KeyError: 'of a bug')") == 2
