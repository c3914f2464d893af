"""Saving and resuming a run: checkpoints of steps, the best policy on dev, the time so far."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from holdfast.base.errors import CheckpointError
from holdfast.base.run_folder import METRICS, best_folder, step_folder
from holdfast.base.stored import read_object
from holdfast.model.checkpoint import newest_whole, prune, recover_interrupted_saves, save_checkpoint
from holdfast.model.language_model import ADAPTERS_FILE, take_weights
from holdfast.recipe import Checkpoint, Config, Model
from holdfast.train.tracking import MetricsFile, forget_trajectories_after
from holdfast.train.trainer import Trainer


class Saver:
    """Saves one trainer into one run folder. `started` is when the run began, on `time.monotonic`."""

    def __init__(self, trainer: Trainer, run_dir: Path, settings: Checkpoint, *, started: float) -> None:
        self._trainer, self._run_dir, self._settings = trainer, run_dir, settings
        self._started, self._seconds_before = started, 0.0
        self._best: dict[str, float] | None = None

    @property
    def seconds(self) -> float:
        """Duration of the run, with the time before a resume."""
        return self._seconds_before + time.monotonic() - self._started

    def is_due(self, step: int) -> bool:
        """Whether `checkpoint.every` asks for a checkpoint after this step."""
        every = self._settings.every
        return every > 0 and step % every == 0

    def save(self) -> None:
        """Write an exact checkpoint of the present step."""
        trainer, learner, critic = self._trainer, self._trainer.learner, self._trainer.critic
        save_checkpoint(
            step_folder(self._run_dir, trainer.completed_steps),
            learner.language_model,
            optimizer=learner.optimizer,
            anchor=learner.anchor.weights if learner.anchor is not None else (),
            critic=(critic.weights, critic.optimizer) if critic is not None else None,
            state=trainer.state() | {"best": self._best, "seconds": self.seconds, "machine": self._machine()},
        )
        prune(self._run_dir, self._settings.keep)

    def save_if_missing(self) -> None:
        """Save, if there were steps and the last one is not saved."""
        step = self._trainer.completed_steps
        if step and not step_folder(self._run_dir, step).exists():
            self.save()

    def save_if_best(self, em: float) -> None:
        """Save the policy if its exact match on dev is the best after any step so far."""
        step = self._trainer.completed_steps
        if step and (self._best is None or em > self._best["em"]):
            self._best = {"step": step, "em": em}
            save_checkpoint(best_folder(self._run_dir), self._trainer.learner.language_model, state=self._best)

    def continue_from(self, checkpoint: Path | None, model: Model, note: Callable[[str], None]) -> None:
        """Reset the trainer and the run folder to a checkpoint, or to the beginning (None). Later rows of the logs are
        deleted: the run writes them again."""
        if checkpoint is None:
            note("there is no checkpoint yet, so the run starts from the beginning")
        else:
            self._restore(checkpoint, model, note)
        step = -1 if checkpoint is None else self._trainer.completed_steps  # step 0 is an evaluation, and runs again
        MetricsFile(self._run_dir / METRICS).truncate(step)
        forget_trajectories_after(self._run_dir, step)

    def _restore(self, checkpoint: Path, model: Model, note: Callable[[str], None]) -> None:
        """Restore weights and state, and the number of threads. Notes a change of machine that changes rounding."""
        take_weights(self._trainer.learner.language_model, model, checkpoint / "model")
        state = self._trainer.restore(checkpoint)
        self._best, self._seconds_before = state["best"], state["seconds"]
        note(f"resumed after step {self._trainer.completed_steps}")
        then = state["machine"]
        if not self._trainer.config.run.threads:
            torch.set_num_threads(min(then["threads"], os.cpu_count() or 1))
        now = self._machine()
        if changed := [name for name in now if then[name] != now[name]]:
            before, after = (", ".join(f"{name} {machine[name]}" for name in changed) for machine in (then, now))
            note(
                f"the run continues with {after} instead of {before}: sums are rounded differently, so its metrics "
                "will slowly differ from an uninterrupted run"
            )

    def _machine(self) -> dict[str, Any]:
        """Properties of the machine that rounding depends on."""
        return {
            "threads": torch.get_num_threads(),
            "device": self._trainer.learner.language_model.device.type,
            "torch": torch.__version__,
        }


def newest_checkpoint(run_dir: Path, config: Config, note: Callable[[str], None]) -> Path | None:
    """The checkpoint that a resumed run continues from, or None; first repairs what a killed process left. Raises
    `CheckpointError` when all are damaged or of a model of another shape."""
    recover_interrupted_saves(run_dir)
    checkpoint = newest_whole(run_dir, note)
    if checkpoint is not None:
        refuse_other_shape(config, checkpoint / "model")
    return checkpoint


_SHAPE = {
    "hidden_size": "world.model.hidden",
    "num_hidden_layers": "world.model.layers",
    "num_attention_heads": "world.model.heads",
}
"""Key in a model's config.json -> setting of the tiny model."""


def _settings_of(path: Path) -> dict[str, Any]:
    """What a file of a model says; nothing if there is none."""
    return read_object(path, CheckpointError, "copy it from the original model") if path.is_file() else {}


def refuse_other_shape(config: Config, saved: Path) -> None:
    """Raise `CheckpointError` where the recipe's model has another shape than the saved one, judging by their files.

    Checked before the starting policy is built, which may take a warm start.
    """
    path, is_tiny, tiny = config.model.path, config.model.is_tiny, config.world.model
    if is_tiny:
        expected = dict(zip(_SHAPE, (tiny.hidden, tiny.layers, tiny.heads), strict=True))
    else:
        expected = _settings_of(Path(path) / "config.json")
    saved_config = _settings_of(saved / "config.json")
    rank = config.model.lora_rank or _settings_of(Path(path) / ADAPTERS_FILE).get("r", 0)
    compared = [
        (
            name if is_tiny else f"model.path = {path!r}, whose {key}",
            expected.get(key),
            saved_config.get(key),
        )
        for key, name in _SHAPE.items()
    ]
    compared.append(("model.lora_rank", rank, _settings_of(saved / ADAPTERS_FILE).get("r", 0)))
    for name, configured, trained in compared:
        if None not in (configured, trained) and configured != trained:
            raise CheckpointError(
                f"{name} = {configured}, but {saved} was trained with {trained}, so the weights do not fit. Restore "
                "[model] of the recipe, or start a new run"
            )
