"""The table's one command on the bundled world, in its short form: killed, gone on with, complete."""

from __future__ import annotations

from pathlib import Path

from holdfast.cli.recipes import find as find_recipe
from holdfast_research.jobs import TrainingJob
from holdfast_research.tables.make import Plan
from holdfast_research.tables.rows import rows_of


def test_a_row_waits_for_the_row_it_starts_from(tmp_path: Path) -> None:
    plan = Plan(recipe=find_recipe("quickstart"), rows=rows_of(["RAG"]), seeds=(11, 12), settings={}, out=tmp_path)
    *trainings, first_evaluation, _, _, last_evaluation = plan.jobs()
    assert [job.name for job in trainings] == [
        f"{row}, seed {seed}" for seed in (11, 12) for row in ("SFT on search demonstrations", "RAG after SFT")
    ]
    start, rag = trainings[2:]
    assert isinstance(rag, TrainingJob) and rag.needs == (start,) and start.needs == ()
    assert rag.config.model.path == str(start.folder / "model")
    assert rag.command()[2:6] == ["holdfast_research", "baseline", "rag-sft", str(plan.recipe)]
    assert first_evaluation.needs == (trainings[0],) and "--bare" not in first_evaluation.command()
    assert last_evaluation.folder == tmp_path / "evals" / "rag-after-sft-s12" and "--bare" in last_evaluation.command()
