"""The trackers' own files, as the trackers wrote them."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import struct
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import DataError
from holdfast.diagnose.log import Log
from holdfast.diagnose.readers import read_log, read_logs
from holdfast.diagnose.readers import text as text_module
from holdfast.diagnose.readers.event_file import checksum

from .conftest import LOGS, SETTINGS, STEPS, tracked

WANDB = LOGS / "wandb-offline" / "wandb" / "offline-run-20260101_120000-abcd1234" / "run-abcd1234.wandb"
EVENTS = LOGS / "tensorboard" / "calm-sun-1"
SWANLAB = LOGS / "swanlog" / "run-20260101_120000-abcd1234" / "run-abcd1234.swanlab"
STORES = {
    "wandb": WANDB,
    "tensorboard": EVENTS,
    "trackio": LOGS / "trackio.db",
    "mlflow files": LOGS.parent / "mlruns.zip",
    "mlflow": LOGS / "mlflow.db",
    "swanlab": SWANLAB,
}
READ_AS = {
    "reward/mean": ("train/reward", lambda x: x),
    "rollout/mixed_group_fraction": ("train/frac_reward_zero_std", lambda x: 1 - x),
    "grad/norm": ("train/grad_norm", lambda x: x),
    "entropy/mean": ("train/entropy", lambda x: x),
    "rollout/length": ("train/completions/mean_length", lambda x: x),
    "eval/reward/mean": ("eval/reward", lambda x: x),
}


def check_numbers(log: Log, seed: int = 0, steps: int = STEPS) -> None:
    """That a log has what `tracked` logged up to a step."""
    logged = [(step, row) for step, row in tracked(seed) if step <= steps]
    assert log.host == "trl" and log.steps.tolist() == [step for step, _ in logged]
    assert set(log.series) == set(READ_AS)
    for ours, (theirs, change) in READ_AS.items():
        expected = {step: change(row[theirs]) for step, row in logged if theirs in row}
        assert log.series[ours].steps.tolist() == list(expected)
        digits = 1e-6 if log.format == "tensorboard" else 0
        np.testing.assert_allclose(log.series[ours].values, list(expected.values()), rtol=digits)


@pytest.mark.parametrize("kind", STORES)
def test_every_number_is_read(kind: str, tmp_path: Path) -> None:
    path = STORES[kind]
    if path.suffix == ".zip":
        shutil.unpack_archive(path, tmp_path)
    log, *others = read_logs(tmp_path / "mlruns" if path.suffix == ".zip" else path)
    check_numbers(log)
    assert log.format == kind.split()[0] and log.name == "calm-sun-1"
    assert log.settings == ({} if kind == "tensorboard" else SETTINGS)
    assert [note[:11] for note in log.notes] == ["The run was"] * (kind == "tensorboard")  # it was resumed
    assert [other.name for other in others] == ["wild-moon-2"] * (kind == "trackio")
    for other in others:
        check_numbers(other, seed=1)


# ---- damage


def blocks_of(records: list[bytes], mark: bytes = b":W&B\xe1\xbe\x00") -> bytes:
    """Records in LevelDB's log format."""
    result = bytearray(mark)
    for record in records:
        first = True
        while True:
            left = 32768 - len(result) % 32768
            if left < 7:
                result += bytes(left)
                continue
            part, record = record[: left - 7], record[left - 7 :]
            kind = (1 if first else 4) if not record else (2 if first else 3)
            result += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
            first = False
            if not record:
                break
    return bytes(result)


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    result = bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes([*result, value])


def history(**values: Any) -> bytes:
    """A record of W&B with a row; values as JSON."""
    return field(2, b"".join(field(1, field(1, k.encode()) + field(16, str(v).encode())) for k, v in values.items()))


@pytest.mark.parametrize("path", [WANDB, SWANLAB, min(EVENTS.iterdir())])
def test_a_file_cut_anywhere_is_read_up_to_there(path: Path, tmp_path: Path) -> None:
    raw, target = path.read_bytes(), tmp_path / path.name
    lengths = set()
    for end in range(len(raw) // 2, len(raw), 197):
        target.write_bytes(raw[:end])
        log = read_log(target)
        whole = [step for step, _ in tracked()]
        assert log.steps.tolist() == whole[: len(log.steps)]
        assert all("ends within a record" in note for note in log.notes)
        lengths.add(len(log.steps))
    assert len(lengths) > 4


def test_a_flipped_byte_costs_a_block_of_a_wandb_file(tmp_path: Path) -> None:
    rows = [history(**{"train/global_step": step, "train/reward": step / 10, "pad": 1}) for step in range(1, 2001)]
    raw = bytearray(blocks_of(rows))
    raw[40_000] ^= 1
    path = tmp_path / "run-x.wandb"
    path.write_bytes(raw)
    log = read_log(path)
    lost = sorted(set(range(1, 2001)) - set(log.steps.tolist()))
    assert 0 < len(lost) < 600 and lost == list(range(lost[0], lost[-1] + 1))
    assert log.notes[0] == "1 block with a damaged record: the rest of it was skipped (block 2)."


@pytest.mark.parametrize("left", [0, 6, 7, 15])
def test_a_block_may_end_anywhere(tmp_path: Path, left: int) -> None:
    """`left` bytes of the first block remain for the second record: none, too few for a head, a head alone, or
    part of the record. The third is longer than a block."""
    first = history(_step=1, x=1)
    filling = 32768 - 7 - 7 - left - len(first) - 9  # 9: the field's own bytes around the filling
    long = {f"metric/{i}": i for i in range(5000)}
    rows = [first + field(9, bytes(filling + 9 - 4)), history(_step=2, x=2), history(_step=3, x=3, **long)]
    path = tmp_path / "run-x.wandb"
    path.write_bytes(blocks_of(rows))
    log = read_log(path)
    assert log.series["x"].values.tolist() == [1, 2, 3] and log.notes == ()
    assert log.series["metric/4999"].values.tolist() == [4999]


def test_values_of_wandb_in_other_dress(tmp_path: Path) -> None:
    """Typed fields, nested names, a step beside the row, media, and texts."""
    typed = [
        field(1, field(2, b"a") + field(2, b"b") + varint(6 << 3 | 1) + struct.pack("<d", 0.5)),
        field(1, field(1, b"flag") + varint(4 << 3) + varint(1)),
        field(1, field(1, b"less") + varint(5 << 3) + varint(5)),  # zigzag: -3
        field(1, field(1, b"text") + field(7, b"no number")),
        field(1, field(2, b"table") + field(2, b"_type") + field(16, b'"table-file"')),
        field(1, field(2, b"table") + field(2, b"nrows") + field(16, b"7")),
        field(1, field(1, b"image") + field(16, b'{"_type": "image-file", "size": 9}')),
        field(2, varint(1 << 3) + varint(4)),
    ]
    path = tmp_path / "run-x.wandb"
    path.write_bytes(blocks_of([field(2, b"".join(typed))]))
    log = read_log(path)
    assert {name: part.values.tolist() for name, part in log.series.items()} == {
        "a.b": [0.5],
        "flag": [1],
        "less": [-3],
    }
    assert log.steps.tolist() == [4] and log.notes == ("Left out 1 value: not a number (block 1: text is a string).",)


@pytest.mark.parametrize(
    ("at", "note"),
    [
        (30, "Skipped 1 record with a bad checksum (record 1)."),
        (3, "The length of a record is damaged: only the part of the file before it was read (record 1)."),
    ],
)
def test_a_flipped_byte_in_an_event_file(tmp_path: Path, at: int, note: str) -> None:
    first, second = sorted(EVENTS.iterdir())
    for path in (first, second):
        shutil.copy(path, tmp_path)
    raw = bytearray(first.read_bytes())
    raw[at] ^= 4
    (tmp_path / first.name).write_bytes(raw)
    log = read_log(tmp_path)
    assert log.notes[0].startswith(note) and log.last_step == STEPS


def event(step: int, tag: bytes, value: float) -> bytes:
    body = b"\x09" + bytes(8) + b"\x10" + varint(step)
    body += field(5, field(1, field(1, tag) + b"\x15" + struct.pack("<f", value)))
    head = struct.pack("<Q", len(body))
    return head + struct.pack("<I", checksum(head)) + body + struct.pack("<I", checksum(body))


def test_series_with_steps_of_their_own_are_no_resumed_run(tmp_path: Path) -> None:
    """The machine's load is counted by itself, beside the trainer's steps. A resumed run goes back in its own."""
    events = []
    for step in range(1, 41):
        events += [event(10 * step, b"train/reward", step), event(step, b"system/load", 1.0), event(step, b"more", 1.0)]
    for step in (310, 320, 400, 410):
        events += [event(step // 10 + 10, b"system/load", 1.0), event(step, b"train/reward", 0.0)]
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(b"".join(event(0, b"train/reward", value) for value in (1.0, 2.0, 3.0)))
    assert read_log(path).steps.tolist() == [1, 2, 3], "without steps they are numbered"
    path.write_bytes(b"".join(events))
    log = read_log(path)
    assert log.series["system/load"].steps.tolist() == [*range(1, 43), 50, 51]
    assert log.series["reward/mean"].steps.tolist() == [*range(10, 310, 10), 310, 320, 400, 410]
    assert len(log.notes) == 1 and "once, from step 400 back to step 310: left out 10 rows" in log.notes[0]


def test_every_attempt_in_a_folder_is_a_run(tmp_path: Path) -> None:
    """A file that begins again is one; a file that goes on, or that has other series, is not."""
    steps = {"1": (1, 2, 3), "2": (1, 2), "3": (3, 4)}
    for number, of_file in steps.items():
        path = tmp_path / f"events.out.tfevents.{number}.host"
        path.write_bytes(b"".join(event(step, b"train/reward", step) for step in of_file))
    (tmp_path / "events.out.tfevents.4.host").write_bytes(event(1, b"system/load", 1.0))
    first, second = read_logs(tmp_path)
    assert (first.steps.tolist(), second.steps.tolist()) == ([1, 2, 3], [1, 2, 3, 4])
    assert "system/load" in second.series and "system/load" not in first.series


# ---- databases


@contextmanager
def writer_of(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA journal_mode = {mode}")
    yield connection
    connection.close()


@pytest.mark.parametrize("name", ["trackio.db", "mlflow.db"])
@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_reading_a_database_writes_nothing(name: str, mode: str, tmp_path: Path) -> None:
    path = tmp_path / name
    shutil.copy(LOGS / name, path)
    with writer_of(path, mode):
        pass
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    check_numbers(read_logs(path)[0])
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_rows_that_are_only_in_the_write_ahead_log_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trackio.db"
    shutil.copy(LOGS / "trackio.db", path)
    with writer_of(path, "WAL") as writer:
        run, name = writer.execute("SELECT run_id, run_name FROM metrics").fetchone()
        row = '{"train/global_step": 25, "train/reward": 0.9}'
        writer.execute(
            "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, '', ?, 24, ?)",
            (run, name, row),
        )
        log = read_logs(path)[0]
    assert log.last_step == 25 and log.series["reward/mean"].values[-1] == 0.9


def test_a_locked_database_is_read_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    shutil.copy(LOGS / "mlflow.db", path)
    with writer_of(path, "DELETE") as writer:
        writer.execute("BEGIN EXCLUSIVE")
        log = read_log(path)
    check_numbers(log)
    assert log.notes == ("Another program is writing to the database: its newest rows may be missing.",)


def test_a_database_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with writer_of(path, "DELETE") as writer:
        writer.execute("CREATE TABLE metrics (a, b)")
    with pytest.raises(DataError, match="is an SQLite database without a run of trackio or MLflow"):
        read_log(path)
    shutil.copy(LOGS / "verl-file.jsonl", tmp_path)
    assert [log.format for log in read_logs(tmp_path)] == ["verl"]


def test_what_is_broken_in_a_database_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "trackio.db"
    shutil.copy(LOGS / "trackio.db", path)
    with writer_of(path, "DELETE") as writer:
        writer.execute("UPDATE metrics SET metrics = 'no JSON' WHERE id = 1")
        writer.execute("UPDATE configs SET config = '[1]'")
        writer.execute("""UPDATE metrics SET metrics = '{"train/reward": "Infinity"}' WHERE id = 2""")
    log = read_logs(path)[0]
    assert log.steps.tolist() == list(range(3, STEPS + 1)) and log.settings == {}
    assert set(log.notes) == {
        "The settings are unknown: they cannot be read.",
        "Skipped 1 row: not a JSON object (row 1).",
        "Skipped 1 row: no step (row 2).",
    }


def test_a_database_whose_metrics_are_a_query_has_no_run(tmp_path: Path) -> None:
    path = tmp_path / "trackio.db"
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    with writer_of(path, "DELETE") as writer:
        columns = "i AS id, 'run' AS run_name, i AS step, '{}' AS metrics"
        writer.execute(f"CREATE VIEW Metrics AS {endless} SELECT {columns} FROM n")
    with pytest.raises(DataError, match="is an SQLite database without a run of trackio or MLflow"):
        read_logs(path)


def test_a_value_that_a_database_computes_has_a_longest_length(tmp_path: Path) -> None:
    path = tmp_path / "trackio.db"
    with writer_of(path, "DELETE") as writer:
        writer.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name, step, metrics)")
        writer.execute("""INSERT INTO metrics VALUES (1, 'run', 1, '{"train/reward": 0.5}')""")
        writer.execute("CREATE TABLE configs (run_name, config AS (hex(zeroblob(50000000))))")
        writer.execute("INSERT INTO configs VALUES ('run')")
    tracemalloc.start()
    assert read_log(path).steps.tolist() == [1]
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def test_pages_that_are_in_others_many_times_are_not_read_for_ever(tmp_path: Path) -> None:
    path, size = tmp_path / "trackio.db", 512
    with writer_of(path, "DELETE") as writer:
        writer.execute(f"PRAGMA page_size = {size}")
        writer.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name, step, metrics)")
        rows = [(step, "run", step, '{"train/reward": 0.5}' + " " * 400) for step in range(50)]
        writer.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?)", rows)
        (root,) = writer.execute("SELECT rootpage FROM sqlite_master").fetchone()
    assert len(read_log(path).steps) == 50
    pages = bytearray(path.read_bytes())

    def children(page: int) -> list[int]:
        """Where an inner page has the numbers of the pages below it."""
        at = size * (page - 1)
        (cells,) = struct.unpack_from(">H", pages, at + 3)
        return [at + 8, *(at + cell for cell in struct.unpack_from(f">{cells}H", pages, at + 12))]

    inner, page = bytes(pages[size * (root - 1) : size * root]), root
    *layers, leaf = [struct.unpack_from(">I", pages, at)[0] for at in children(root)[:6]]
    for below in [*layers, leaf]:
        if below != leaf:
            pages[size * (below - 1) : size * below] = inner
        for at in children(page):
            struct.pack_into(">I", pages, at, below)
        page = below
    path.write_bytes(pages)  # 50 ** 6 rows
    assert "The database is damaged: only the part before the damage was read." in read_log(path).notes


@pytest.mark.parametrize("name", ["mlflow.db", "trackio.db"])
def test_a_database_of_more_numbers_than_memory_holds_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "MAX_NUMBERS", 10)
    with pytest.raises(DataError, match="contains more than 10 rows and numbers"):
        read_logs(LOGS / name)


def test_infinity_and_deleted_runs_of_mlflow(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    shutil.copy(LOGS / "mlflow.db", path)
    with writer_of(path, "DELETE") as writer:
        writer.execute("UPDATE metrics SET value = 1.7976931348623157e308 WHERE key = 'train/reward' AND step = 3")
    assert read_log(path).series["reward/mean"].values[2] == np.inf
    with writer_of(path, "DELETE") as writer:
        writer.execute("UPDATE runs SET lifecycle_stage = 'deleted'")
    with pytest.raises(DataError, match="without a run of trackio or MLflow"):
        read_log(path)


def test_settings_in_a_pipe_are_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / SWANLAB.name
    shutil.copy(SWANLAB, path)
    (tmp_path / "files").mkdir()
    os.mkfifo(tmp_path / "files" / "config.yaml")
    found: list[Log] = []
    reader = threading.Thread(target=lambda: found.append(read_log(path)), daemon=True)
    reader.start()
    reader.join(10)
    assert [log.settings for log in found] == [{}]


# ---- one run in several files


def project(folder: Path) -> Path:
    """A folder with all of these."""
    for part in ("wandb-offline/wandb", "tensorboard", "swanlog"):
        shutil.copytree(LOGS / part, folder / Path(part).name)
    shutil.unpack_archive(LOGS.parent / "mlruns.zip", folder)
    for part in ("trackio.db", "mlflow.db"):
        shutil.copy(LOGS / part, folder)
    return folder


def test_a_run_in_several_files_is_read_once(tmp_path: Path) -> None:
    logs = read_logs(project(tmp_path))
    assert [log.name for log in logs] == ["calm-sun-1", "wild-moon-2"]
    check_numbers(logs[0])
    assert logs[0].notes[0].startswith("Read ") and logs[0].notes[0].count(" and ") == 4
    assert not logs[1].notes


def test_an_equal_schedule_alone_does_not_make_one_run_of_two(tmp_path: Path) -> None:
    schedule = [i / 10 for i in range(1, 9)]
    rows = [{"step": step, "lr": lr, "grad_norm": 1.0} for step, lr in enumerate(schedule)]
    (tmp_path / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"{step},{lr},0.5" for step, lr in enumerate(schedule)]
    (tmp_path / "two.csv").write_text("\n".join(["step,lr,entropy", *lines]))
    assert [log.name for log in read_logs(tmp_path)] == ["one", "two"]


def test_the_file_that_goes_on_is_read(tmp_path: Path) -> None:
    """A trainer's state ends at its last checkpoint, a tracker's file where the run ended."""
    history = [{"step": step, "reward": row["train/reward"]} for step, row in tracked() if step <= 16]
    state = {"log_history": history}
    folder = tmp_path / "output" / "checkpoint-16"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps(state))
    shutil.copytree(EVENTS, tmp_path / "output" / "runs" / "May01_host")
    log = read_log(tmp_path / "output")
    assert log.format == "tensorboard" and log.name == "output"
    check_numbers(log)
    assert "checkpoint-16/trainer_state.json, which ends at step 16" in log.notes[0]
    # A tracker's file of an earlier attempt is not one more run
    history[3]["reward"] = 0.9
    (folder / "trainer_state.json").write_text(json.dumps(state))
    log = read_log(tmp_path / "output")
    assert log.format == "trl" and log.last_step == 16 and log.notes == ()


def test_a_wandb_folder_is_read_without_its_own_logs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(LOGS / "wandb-offline" / "wandb", tmp_path / "wandb")
    run = next((tmp_path / "wandb").iterdir())
    (run / "logs").mkdir()
    (run / "logs" / "debug-internal.log").write_text('{"level": "INFO", "step": 1}\n')
    os.symlink(run / "logs" / "debug-internal.log", tmp_path / "wandb" / "debug-internal.log")
    os.symlink(run, tmp_path / "wandb" / "latest-run")
    assert [log.name for log in read_logs(tmp_path)] == ["calm-sun-1"] and caplog.text == ""
    check_numbers(read_log(tmp_path / "wandb" / "latest-run"))
