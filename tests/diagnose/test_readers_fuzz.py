"""Real logs, broken at random: every one is read, or refused in a sentence. Never a traceback, never a bent series."""

from __future__ import annotations

import copy
import gzip
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import DataError
from holdfast.diagnose.log import Log
from holdfast.diagnose.readers import read_logs

from .conftest import LOGS, tracked

CASES = 250  # for each kind of log, of each kind of damage
PARTS = 5  # tests that share the cases, of which `make test` runs some

WEIRD: list[Any] = [
    *(None, True, False, "", "NaN", "x" * 300, "\ud800", "1_000", -1, 0.5, 10**30, 10**400, math.nan, math.inf),
    *([], {}, [1], {"a": 1}, {"step": {"step": {}}}, "[" * 50, "np.float64(", 2**63, -(2**63), 1e308, -math.inf),
]  # fmt: skip
PIECES = [
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\n", b"\n\n\n", b"\r", b'"', b"{", b"}", b"[", b"]", b",", b":", b" - "),
    *(b"step:3 - ", b'"step": 1', b"NaN", b"Infinity", b"1e999", b"9" * 400, b"\x1b[36m", b"\\ud800", b"\xc3"),
    *(b"{'actor_rollout_ref'", b'"log_history": [', b"(" * 40, b"import", b"_step,", b"\x1f\x8b", b"\xe2\x80\xa8"),
    *(b"{'loss': 1", b" | ", b"\t", b"50%|#| 1/2 [", b"'", b"nan"),
]  # fmt: skip


def weird(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(WEIRD))


def originals() -> dict[str, bytes]:
    state = json.loads((LOGS / "trl-observed/checkpoint-6/trainer_state.json").read_text())
    console = (LOGS / "verl-console.log").read_bytes().splitlines(keepends=True)
    ours = [
        {"step": i, "time": 1.7e9, "reward/mean": i / 9, "dropped": ["grad/norm"] if i % 3 else []} for i in range(9)
    ]
    return {
        "metrics.jsonl": lines_of(ours),
        "trainer_state.json": json.dumps(state, indent=2).encode(),
        "verl.jsonl": (LOGS / "verl-file.jsonl").read_bytes(),
        "verl.log": b"".join(console[:12] + console[-12:]),
        "wandb.csv": (LOGS / "wandb-trl.csv").read_bytes(),
        "chart.csv": (LOGS / "wandb-chart.csv").read_bytes(),
        "wandb.jsonl": (LOGS / "wandb-trl.jsonl").read_bytes(),
        **{name: (LOGS / name).read_bytes() for name in ("trl-console.log", "openrlhf.log", "skyrl.log")},
        "strings.log": (LOGS / "trl-strings.log").read_bytes().rpartition(b"\n")[0],
        **{name: (LOGS / name).read_bytes() for name in ("swift-logging.jsonl", "notebook.md", "notebook.txt")},
    }


def stores() -> dict[str, bytes]:
    """The trackers' own files."""
    return {
        "run-x.wandb": next(LOGS.glob("wandb-offline/wandb/*/*.wandb")).read_bytes(),
        "run-x.swanlab": next(LOGS.glob("swanlog/*/*.swanlab")).read_bytes(),
        "events.out.tfevents.1.host": min(LOGS.glob("tensorboard/*/events*")).read_bytes(),
        "trackio.db": (LOGS / "trackio.db").read_bytes(),
        "mlflow.db": (LOGS / "mlflow.db").read_bytes(),
        "reward": "".join(f"{17 * 10**11 + step} {row['train/reward']} {step}\n" for step, row in tracked()).encode(),
    }


def lines_of(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def broken_bytes(raw: bytes, rng: random.Random) -> bytes:
    """A few cuts, copies, flips and pieces that mean something to a parser."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 5, 30))):
        at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        to = min(to, at + rng.choice((1, 10, 1000, 10**6)))
        how = rng.randrange(6)
        if how == 0:
            del data[at:to]
        elif how == 1:
            data[at:at] = data[at:to][:20_000]
        elif how == 2:
            data[at:at] = rng.choice(PIECES)
        elif how == 3:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif how == 4:
            data[at:to] = rng.randbytes(min(to - at, 100))
        else:
            data[at : at + 40] = rng.choice(PIECES)
    return bytes(data)


def flipped_bits(raw: bytes, rng: random.Random) -> bytes:
    """A few bits, and now and then the end lost."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 3, 20))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])


def broken_structure(raw: bytes, rng: random.Random) -> bytes:
    """Lines and values moved, repeated, lost, replaced; still JSON or CSV where it was."""
    text = raw.decode()
    if text.startswith("{\n"):
        state = json.loads(text)
        state["log_history"] = broken_rows(state["log_history"], rng)
        for name in rng.sample(list(state), rng.randrange(3)):
            state[name] = weird(rng)
        return json.dumps(state, indent=rng.choice((None, 2))).encode("utf-8", "surrogatepass")
    if text.startswith("{"):
        return lines_of(broken_rows([json.loads(line) for line in text.splitlines()], rng))
    mark = "," if "," in text.partition("\n")[0] else " - "
    rows = broken_rows([dict(enumerate(line.split(mark))) for line in text.split("\n")], rng)
    return "\n".join(mark.join(map(str, cells_of(row))) for row in rows).encode("utf-8", "replace")


def cells_of(row: Any) -> list[Any]:
    return list(row.values()) if isinstance(row, dict) else [row]


def broken_rows(rows: list[Any], rng: random.Random) -> list[Any]:
    rows = [dict(row) for row in rows]
    for _ in range(rng.choice((1, 2, 5, 20))):
        i = rng.randrange(len(rows))
        row = rows[i] if isinstance(rows[i], dict) else {}
        row = row["data"] if rng.random() < 0.7 and isinstance(row.get("data"), dict) else row
        how = rng.randrange(8)
        if how == 0 and row:
            row[rng.choice(list(row))] = weird(rng)
        elif how == 1 and row:
            del row[rng.choice(list(row))]
        elif how == 2:
            rows.insert(rng.randrange(len(rows) + 1), json.loads(json.dumps(rows[i])) if rows[i] else {})
        elif how == 3:
            rows[i:] = reversed(rows[i:])
        elif how == 4:
            rows[i] = weird(rng)
        elif how == 5 and len(rows) > 1:
            del rows[i]
        elif how == 6:
            row[rng.choice(("step", "_step", "data", "dropped", "", "train/global_step", "\ud800"))] = weird(rng)
        elif isinstance(rows[i], dict) and "step" in rows[i]:
            rows[i]["step"] = rng.randrange(12)
    return rows


def wrapped(raw: bytes, rng: random.Random) -> bytes:
    """Now and then in another dress."""
    dress = rng.random()
    if dress < 0.05:
        packed = gzip.compress(raw, 1)
        return packed[: rng.randrange(1, len(packed) + 1)]
    if dress < 0.1:
        return b"\xff\xfe" + raw.decode("utf-8", "replace").encode("utf-16-le")[: rng.choice((None, -1))]  # type: ignore[misc]
    return raw


def check(log: Log) -> None:
    assert len(log.series) and all(name.isprintable() and name.strip() for name in log.series)
    for part in log.series.values():
        assert part.steps.dtype == np.int64 and part.values.dtype == np.float64
        assert part.steps.shape == part.values.shape == (len(part),) and len(part)
        assert (np.diff(part.steps) > 0).all() and part.steps[0] >= 0
    every = np.unique(np.concatenate([part.steps for part in log.series.values()]))
    assert np.array_equal(log.steps, every)
    for note in log.notes:
        assert note.endswith(".") and note.isprintable() and len(note) < 400
    assert log.name.isprintable()


def cases(damage: Callable[[bytes, random.Random], bytes], part: int) -> Iterator[tuple[str, int, bytes]]:
    for name, raw in originals().items():
        for seed in range(part, CASES, PARTS):
            rng = random.Random(f"{name} {seed}")
            yield name, seed, wrapped(damage(raw, rng), rng)


@pytest.mark.grid(5)  # of either damage a part
@pytest.mark.parametrize("damage", [broken_bytes, broken_structure])
@pytest.mark.parametrize("part", range(PARTS))
def test_a_broken_log_is_read_or_refused(
    tmp_path: Path, part: int, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    outcome: Counter[tuple[str, str]] = Counter()
    for name, seed, raw in cases(damage, part):
        path = tmp_path / name
        path.write_bytes(raw)
        try:
            for log in read_logs(path):
                check(log)
            outcome[name, "read"] += 1
        except DataError as error:
            assert str(error).startswith(str(path)) and str(error).count(str(path)) == 1, (name, seed)
            assert len(str(error)) < 2000
            outcome[name, "refused"] += 1
        except Exception as error:
            raise AssertionError(f"{damage.__name__}, {name}, seed {seed}") from error
    assert sum(outcome.values()) == len(range(part, CASES, PARTS)) * len(originals()) >= 200
    for name in originals():  # the damage is neither harmless nor total
        assert outcome[name, "read"] > len(range(part, CASES, PARTS)) // 4, outcome


@pytest.mark.parametrize("damage", [broken_bytes, flipped_bits])
@pytest.mark.parametrize("name", stores())
def test_a_broken_store_is_read_or_refused(
    tmp_path: Path, name: str, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    raw, whole = stores()[name], tmp_path
    path = tmp_path / name
    if name == "reward":  # a file of a store of files
        whole = tmp_path / "run"
        path = whole / "metrics" / name
        path.parent.mkdir(parents=True)
        (whole / "meta.yaml").write_text("run_name: x\n")
    outcome: Counter[str] = Counter()
    for seed in range(CASES):
        path.write_bytes(damage(raw, random.Random(f"{name} {seed}")))
        try:
            for log in read_logs(path if whole == tmp_path else whole):
                check(log)
            outcome["read"] += 1
        except DataError as error:
            assert len(str(error)) < 2000
            outcome["refused"] += 1
        except Exception as error:
            raise AssertionError(f"{damage.__name__}, {name}, seed {seed}") from error
    assert sum(outcome.values()) == CASES and outcome["read"] > CASES // 10, outcome


def test_undamaged_they_are_read_without_a_note(tmp_path: Path) -> None:
    for name, raw in originals().items():
        (tmp_path / name).write_bytes(raw)
        for log in read_logs(tmp_path / name):
            check(log)
            assert not [note for note in log.notes if note.startswith(("Skipped", "Replaced", "The "))]
