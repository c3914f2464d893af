"""`benchmarks/scoring_speed.py`: both sides score alike, and the script prints a row a mode."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from holdfast.base.scoring import MODES, exact_match

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_both_sides_score_alike() -> None:
    from scoring_speed import cases, plain_exact_match

    made = cases(2000)
    for mode in MODES:
        ours = [exact_match(prediction, golds, mode=mode) for prediction, golds in made]
        plain = [plain_exact_match(prediction, golds, mode) for prediction, golds in made]
        differ = [case for case, a, b in zip(made, ours, plain, strict=True) if a != b]
        if mode == "table":  # the one deviation: texts of which nothing is left
            differ = [case for case in differ if not set(case[0].split()) <= {"the", "a", "an"}]
        assert differ == []
        assert 500 < sum(ours) < 1500


def test_a_row_for_each_mode(run: Run, tmp_path: Path) -> None:
    done = run("scoring_speed.py", "--count", 200, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["mode", *MODES]
    numbers = json.loads((tmp_path / "out.json").read_text())
    assert all(row["per_second"] > 0 and row["plain_per_second"] > 0 for row in numbers.values())
