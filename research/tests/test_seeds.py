"""`holdfast_research.pages.seeds` reads finished runs and prints the table of docs/reference/results.md."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_finished_runs_become_the_table(run: Run, tmp_path: Path) -> None:
    for seed, after in ((1, 0.5), (2, 0.7)):
        folder = tmp_path / f"collapse-grpo--sane-step--lr---5-s{seed}"
        folder.mkdir()
        rows = [
            {"step": s, "reward/mean": s / 10, "entropy/mean": 1.5, "displacement/correct": 0.01} for s in range(1, 8)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        scores = {"before": {"em": 0.2, "em_greedy": 0.3}, "after": {"em": after, "em_greedy": 0.6}, "seconds": 9.0}
        (folder / "results.json").write_text(json.dumps(scores))
    done = run("pages.seeds", "collapse", "--out", tmp_path, "--seeds", 1, 2, "--arms", "sane step")
    assert done.returncode == 0, done.stderr
    # Means of five steps of .1 … .7: .3, .4, .5. At .4 a fifth of the peak is missing, which is not near it.
    assert (
        "| GRPO, sane step (lr / 5) | 1 | 0.30 → 0.50 (7) → 0.50 (0.50) | 1 | 1.50 → 1.50 | +0.0100 | 0.200 → 0.500 | "
        "0.300 → 0.600 |" in done.stdout
    )
    assert "sampled EM +0.400 (seeds +0.300 to +0.500), greedy +0.300" in done.stdout
    assert done.stdout.rstrip().endswith("collapsed on 0 of 2 seeds")
    assert (tmp_path / "collapse.md").read_text() == done.stdout
