"""`pages.curves` makes a page of the documentation from a folder of finished runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast_research.experiments import find
from holdfast_research.pages import curves
from holdfast_research.plan import Plan

SCORES = {"em": 0.2, "em_greedy": 0.4}
ROW = {"reward/mean": 0.5, "sampler/mask_mass": 0.9, "grad/norm": 1.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Plain GRPO on two seeds, one of which is finished."""
    out = tmp_path / "lab"
    experiment = find("death-spiral")
    Plan(experiment=experiment, arms=(experiment.arm("GRPO"),), seeds=(11, 12), settings={}).save(out)
    for seed, results in ((11, {"before": SCORES, "after": SCORES, "seconds": 1.0}), (12, None)):
        run = out / "runs" / f"grpo-s{seed}"
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text("".join(json.dumps({"step": i, **ROW}) + "\n" for i in range(1, 9)))
        if results is not None:
            (run / "results.json").write_text(json.dumps(results))
    return out


def test_the_words_of_the_page_and_its_figures(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    docs, kept = tmp_path / "docs", tmp_path / "kept"
    (kept / "death-spiral").mkdir(parents=True)
    old, other = docs / "figures" / "death-spiral-77-gone.svg", docs / "figures" / "sapo-00-reward-mean.svg"
    old.parent.mkdir(parents=True)
    old.write_text("")
    other.write_text("")
    monkeypatch.setattr(curves, "DOCS", docs)
    monkeypatch.setattr(curves, "KEPT_RUNS", kept)
    monkeypatch.setattr("sys.argv", ["curves.py", str(folder)])
    curves.main()

    page = (docs / "death-spiral.md").read_text()
    assert capsys.readouterr().out.strip() == str(docs / "death-spiral.md")
    assert page.startswith("# The death spiral and its remedies\n") and "## Curves" in page
    assert (kept / "death-spiral" / "runs.csv").read_text().splitlines()[1].startswith("GRPO,11,")
    drawn = sorted(path.name for path in (docs / "figures").glob("death-spiral-*.svg"))
    assert drawn and all(f"(figures/{name})" in page for name in drawn)
    assert any("mask_mass" in name for name in drawn) and not any("grad-norm" in name for name in drawn)
    assert not old.exists() and other.exists()
    svg = (docs / "figures" / drawn[0]).read_text()
    assert "currentColor" not in svg and 'fill="#ffffff"' in svg  # a file of its own has no page behind it


def test_unfinished_runs_are_left_out(folder: Path) -> None:
    experiment, runs = curves.runs_of(folder)
    assert experiment.name == "death-spiral"
    assert [(run.arm, run.seed) for run in runs["GRPO"]] == [("GRPO", 11)]
