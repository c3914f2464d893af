"""A run of the local engine for the library: the trainer as it is, and a fault put in from outside."""

from __future__ import annotations

from pathlib import Path

from holdfast.cli.recipes import find
from holdfast.config import Config, dump, load
from holdfast.language_model import set_up_torch
from holdfast.loading import load_questions, load_retrievers
from holdfast.run_folder import CONFIG, METRICS
from holdfast.tracking import MetricsFile
from holdfast.train.start import starting_policy
from holdfast.train.trainer import make_trainer
from holdfast_research.recordings import faults as record_faults
from holdfast_research.recordings.plan import Planned


def config_of(planned: Planned) -> Config:
    """The recipe of a run, valid; what a recipe refuses is put in by its fault."""
    own = planned.organism
    seed = ("--run.seed", str(planned.seed), "--train.steps", str(planned.length))
    return load(find(own.recipe), [*own.settings, *own.school, *planned.settings, *seed])


def record(planned: Planned, folder: Path) -> None:
    """Make the run, from the start, into `folder`: metrics.jsonl and config.toml."""
    config = config_of(planned)
    folder.mkdir(parents=True, exist_ok=True)
    metrics_file = MetricsFile(folder / METRICS)
    metrics_file.path.unlink(missing_ok=True)
    set_up_torch(config)
    questions, retriever = load_questions(config), load_retrievers(config).train
    trainer = make_trainer(config, starting_policy(config, questions, retriever), questions.train, retriever)
    step = getattr(record_faults, planned.fault)(trainer, planned.start) if planned.fault else trainer.step
    (folder / CONFIG).write_text(dump(trainer.config), encoding="utf-8")
    try:
        while trainer.completed < planned.length:
            metrics_file.step(step())
    except record_faults.CRASHES as error:  # a run that dies leaves its log
        print(f"{planned.name}: ended after step {trainer.completed}: {str(error)[:160]}", flush=True)
    finally:
        metrics_file.close()
