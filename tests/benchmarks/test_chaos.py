"""`make chaos`, small: a case of each group holds, and a campaign can fail."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
Run = Callable[..., Any]

CASES = {
    "stops": "SIGTERM",
    "damage": "bit flip in weights",
    "disks": "read-only",
    "pairs": "two resumed at once",
    "searches": "searches by threads",
    "inputs": "broken recipes",
}


@pytest.mark.long
@pytest.mark.slow
def test_a_case_of_each_group_holds(run: Run, tmp_path: Path) -> None:
    only = [word for name in CASES.values() for word in ("--only", name)]
    done = run("chaos.py", "--small", *only, "--json", tmp_path / "out.json", "--keep", tmp_path / "work")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert {group: list(of) for group, of in found.items()} == {group: [name] for group, name in CASES.items()}
    assert "exit code 143" in found["stops"]["SIGTERM"]["said"]
    assert done.stdout.splitlines()[-3].split()[:7] == ["all", "6", "0", "0", "0", "0", "0"]


@pytest.fixture
def a_run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    model = run / "checkpoints" / "step-000002" / "model"
    model.mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"step": 1, "time": 5.0, "reward/mean": 0.25}\n{"step": 2, "time": 6.0}\n')
    (run / "results.json").write_text('{"after": {"em": 0.5}, "seconds": 3.0}')
    (model / "model.safetensors").write_bytes(b"weights")
    (model.parent / "state.json").write_text('{"step": 2, "seconds": 1.5}')
    return run


def changed(run: Path, file: str, old: str, new: str) -> Path:
    other = run.with_name("other")
    shutil.copytree(run, other)
    (other / file).write_text((other / file).read_text().replace(old, new))
    return other


@pytest.mark.parametrize(
    ("file", "old", "new", "differing", "lost"),
    [
        ("metrics.jsonl", "6.0", "7.0", 0, 0),
        ("results.json", "3.0", "4.0", 0, 0),
        ("checkpoints/step-000002/state.json", "1.5", "2.5", 0, 0),
        ("metrics.jsonl", "0.25", "0.24", 1, 0),
        ("results.json", "0.5", "0.4", 1, 0),
        ("checkpoints/step-000002/model/model.safetensors", "w", "v", 1, 0),
        ("checkpoints/step-000002/model/model.safetensors", "ghts", "gh", 2, 0),
        ("metrics.jsonl", '{"step": 2, "time": 6.0}\n', "", len('\n{"step": 2}'), 1),
    ],
)
def test_bytes_that_differ_are_counted_and_times_are_not(
    a_run: Path, file: str, old: str, new: str, differing: int, lost: int
) -> None:
    from chaos_kit import compare

    outcome = compare(a_run, changed(a_run, file, old, new))
    assert (outcome.differing, outcome.lost) == (differing, lost)
    assert (file in outcome.said) == bool(differing)


def test_a_missing_checkpoint_counts_whole(a_run: Path) -> None:
    from chaos_kit import compare

    other = changed(a_run, "metrics.jsonl", "", "")
    shutil.rmtree(other / "checkpoints")
    assert compare(a_run, other).differing > len(b"weights")


@pytest.mark.parametrize(
    ("ends", "code", "counts"),
    [
        (["held"], 0, [1, 0, 0, 0, 0, 0]),
        (["held", "late"], 0, [2, 0, 0, 0, 0, 1]),
        (["differs", "held"], 1, [2, 3, 0, 0, 0, 0]),
        (["traceback"], 1, [1, 0, 2, 0, 0, 0]),
        (["breaks"], 1, [1, 0, 0, 0, 1, 0]),
    ],
)
def test_the_exit_code_is_that_of_the_counts(
    ends: list[str],
    code: int,
    counts: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import chaos
    from chaos_kit import Ended, Outcome, OutOfTime

    def late() -> Outcome:
        raise OutOfTime

    def breaks() -> Outcome:
        raise KeyError("the case")

    done: dict[str, Callable[[], Outcome]] = {
        "held": Outcome,
        "late": late,
        "breaks": breaks,
        "differs": lambda: Outcome(differing=3),
        "traceback": lambda: Ended(0, 2 * "Traceback (most recent call last)\n").judged(0),
    }
    monkeypatch.setattr(chaos, "GROUPS", {"group": lambda *_: [(name, done[name]) for name in ends]})
    assert chaos.main(["--keep", str(tmp_path), "--json", str(tmp_path / "out.json")]) == code
    printed = capsys.readouterr().out
    (row,) = (line.split() for line in printed.splitlines() if line.startswith("all "))
    assert [int(cell) for cell in row[1:7]] == counts
    assert ("Not reached in 15 minutes: group: late" in printed) == ("late" in ends)
    assert (json.loads((tmp_path / "out.json").read_text())["cases"]["group"].get("late", 0) is None) == (
        "late" in ends
    )


def test_time_that_is_up_counts_nothing_as_held(tmp_path: Path) -> None:
    import chaos
    from chaos_kit import Bench

    bench = Bench(tmp_path, seed=0, deadline=time.monotonic() - 1)
    cases = chaos.chosen(bench, ["stops", "broken logs"])
    (_, stops, inputs) = rows = [list(cases), cases["stops"], cases["inputs"]]
    assert rows[0] == ["stops", "inputs"] and [name for name, _ in inputs] == ["broken logs"]
    summed = chaos.summary(chaos.campaign(bench, cases))[-1]
    assert summed[1] == summed[6] == len(stops) + 1


def test_a_case_that_does_not_exist_is_said(tmp_path: Path) -> None:
    import chaos

    with pytest.raises(SystemExit, match=r"--only stop: there is no such .* stops, damage"):
        chaos.main(["--only", "stop", "--keep", str(tmp_path)])
