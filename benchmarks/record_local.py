"""A run of the local engine for the library: the trainer as it is, and a fault put in from outside."""

from __future__ import annotations

from pathlib import Path

import record_faults
from holdfast.config import Config, dump, load
from holdfast.tracking import METRICS_FILE, MetricsFile
from holdfast.train.events import Silent
from holdfast.train.session import open_workspace
from holdfast.train.start import starting_policy
from holdfast.train.trainer import Trainer, set_up_torch
from record_plan import Planned

RECIPES = Path(__file__).parents[1] / "recipes"


def config_of(planned: Planned) -> Config:
    """The recipe of a run, valid; what a recipe refuses is put in by its fault."""
    own = planned.organism
    seed = ("--run.seed", str(planned.seed), "--train.steps", str(planned.length))
    return load(RECIPES / f"{own.recipe}.toml", [*own.settings, *own.school, *planned.settings, *seed])


def record(planned: Planned, folder: Path) -> None:
    """Make the run, from the start, into `folder`: metrics.jsonl and config.toml."""
    config = config_of(planned)
    folder.mkdir(parents=True, exist_ok=True)
    metrics_file = MetricsFile(folder / METRICS_FILE)
    metrics_file.path.unlink(missing_ok=True)
    set_up_torch(config)
    workspace = open_workspace(config)
    trainer = Trainer(workspace, starting_policy(workspace, Silent()))
    step = getattr(record_faults, planned.fault)(trainer, planned.start) if planned.fault else trainer.step
    (folder / "config.toml").write_text(dump(trainer.config), encoding="utf-8")
    try:
        while trainer.completed < planned.length:
            metrics, *_ = step()
            metrics_file.log(trainer.completed, metrics)
    except record_faults.CRASHES as error:  # a run that dies leaves its log
        print(f"{planned.name}: ended after step {trainer.completed}: {str(error)[:160]}", flush=True)
    finally:
        metrics_file.close()
