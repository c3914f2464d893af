"""A whole run: start, train, evaluate, save, and the closing words. `trainer.py` owns the method."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from holdfast.config import Config
from holdfast.config.validation import check_training
from holdfast.data import Example, dev_questions
from holdfast.errors import CheckpointError, GuardStop, RolloutError
from holdfast.tracking import Tracker, open_tracker
from holdfast.train.alarms import Alarms, stopped
from holdfast.train.checkpoint import (
    STAGE_MODEL,
    newest_whole,
    prune,
    save_checkpoint,
    save_whole_model,
    settle,
    step_folder,
)
from holdfast.train.checks import doubts
from holdfast.train.evaluate import Evaluation, evaluate
from holdfast.train.events import Observer, Sample, Silent, Summary
from holdfast.train.folder import RunFolder
from holdfast.train.live_report import LiveReport
from holdfast.train.model import LanguageModel, refuse_other_shape, take_weights
from holdfast.train.session import open_workspace
from holdfast.train.start import starting_policy
from holdfast.train.trainer import Trainer, set_up_torch
from holdfast.train.verdict import verdict_of


def train(config: Config, run_dir: Path, *, observer: Observer | None = None) -> Summary:
    """Train from the start into a fresh run folder."""
    folder = RunFolder(run_dir)
    folder.begin(config)
    with folder.writing():  # what is built before the first step takes minutes, and is somebody's already
        return _Run(config, folder, observer or Silent()).from_start()


def resume(run_dir: Path, *, observer: Observer | None = None) -> Summary:
    """Continue a run from its newest whole checkpoint, as if it had never stopped.

    Without a checkpoint it begins again; a run that is finished is left as it is, so that its test questions are read
    once. Raises `CheckpointError` for the folder of a warm start alone, which has a model and no steps to go on from.
    """
    observer = observer or Silent()
    folder = RunFolder(run_dir)
    config = folder.config()
    summary = folder.summary()
    if summary is not None and summary.steps >= config.train.steps:
        observer.note(f"{run_dir} is finished: all {summary.steps} steps are made, and these are its results")
        return summary
    if (model := run_dir / STAGE_MODEL).is_dir():
        raise CheckpointError(
            f"{run_dir} holds a finished warm start, not a run to resume. Train on from it with --model.path {model} "
            "--warm_start.steps 0 --warm_start.plain_steps 0"
        )
    with folder.writing():
        return _Run(config, folder, observer).from_checkpoint()


def warm_start_only(config: Config, run_dir: Path, *, observer: Observer | None = None) -> Path:
    """Supervised learning alone; the folder of the saved model, which `model.path` and `from_pretrained` load."""
    check_training(config, stage="warm-start")
    folder = RunFolder(run_dir)
    folder.begin(config)
    with folder.writing():
        return _Run(config, folder, observer or Silent()).warm_start_only()


class _Run:
    def __init__(self, config: Config, folder: RunFolder, observer: Observer) -> None:
        self.config, self.folder, self.observer = config, folder, observer
        self.started = time.monotonic()
        self.seconds_before = 0.0
        self.best: dict[str, float] | None = None
        set_up_torch(config)
        observer.stage("questions and index")
        self.workspace = open_workspace(config, note=observer.note)

    # ---- three ways in

    def from_start(self) -> Summary:
        return self._train(Trainer(self.workspace, starting_policy(self.workspace, self.observer)))

    def from_checkpoint(self) -> Summary:
        settle(self.folder.path)
        checkpoint = newest_whole(self.folder.path, self.observer.note)
        if checkpoint is not None:
            refuse_other_shape(self.config.model, checkpoint / "model")
        # The reference is the policy the run started from, so that one is built first and then given the weights.
        trainer = Trainer(self.workspace, starting_policy(self.workspace, self.observer))
        if checkpoint is None:
            self.observer.note("there is no checkpoint yet, so the run begins again")
        else:
            take_weights(trainer.language_model, self.config.model, checkpoint / "model")
            state = trainer.restore(checkpoint)
            self.best, self.seconds_before = state["best"], state["seconds"]
            self.observer.note(f"resumed after step {trainer.completed}")
            if changed := [k for k, v in self._machine().items() if state["machine"][k] != v]:
                before, now = ([f"{k} {m[k]}" for k in changed] for m in (state["machine"], self._machine()))
                self.observer.note(
                    f"the run goes on with {', '.join(now)} instead of {', '.join(before)}: sums are rounded "
                    "otherwise, so its metrics will drift away from those of a run that never stopped"
                )
        self.folder.forget_after(trainer.completed if checkpoint else -1)
        return self._train(trainer)

    def warm_start_only(self) -> Path:
        made = starting_policy(self.workspace, self.observer)
        folder = self.folder.path / STAGE_MODEL
        save_whole_model(folder, made)
        return folder

    # ---- the run

    def _train(self, trainer: Trainer) -> Summary:
        config, observer, total = self.config, self.observer, self.config.train.steps
        for doubt in doubts(self.workspace):
            observer.note(doubt)
        tracker: Tracker = open_tracker(config, self.folder.path)
        report = LiveReport(self.folder.path, observer.note)
        alarms = Alarms(config, self.folder, observer)
        observer.stage("training", total)
        try:
            if trainer.completed == 0 and config.eval.every:
                metrics = self._evaluate(trainer)
                tracker.log(0, metrics)
                observer.step(0, total, metrics)
                alarms.observe(0, metrics)
            while trainer.completed < total:
                try:
                    metrics, groups, examples = trainer.step()
                except RolloutError:
                    if trainer.completed and not step_folder(self.folder.path, trainer.completed).exists():
                        self._save(trainer)  # the steps that were made are good
                    raise
                step = trainer.completed
                if config.eval.every and step % config.eval.every == 0:
                    metrics |= self._evaluate(trainer)
                tracker.log(step, metrics)
                self.folder.add_samples(step, groups, examples, config.track.trajectories, trainer.displacement)
                observer.step(step, total, metrics)
                finding = alarms.observe(step, metrics)
                due = step == total or (config.checkpoint.every and step % config.checkpoint.every == 0)
                if due or finding is not None:
                    self._save(trainer)
                report.step()
                if finding is not None and step < total:
                    raise GuardStop(stopped(finding, self.folder.path))
        finally:
            tracker.close()
            alarms.close()
            report.write()
        return self._close(trainer)

    def _save(self, trainer: Trainer) -> None:
        trainer.save(self.folder.path, best=self.best, seconds=self._seconds(), machine=self._machine())
        prune(self.folder.path, self.config.checkpoint.keep)

    def _evaluate(self, trainer: Trainer) -> dict[str, float]:
        """Scores on dev; keeps the policy if it is the best a step has made so far."""
        questions = dev_questions(self.workspace.dev, self.config.eval.questions)
        scores = self._scores(trainer.language_model, questions).scores
        if trainer.completed and (self.best is None or scores["em"] > self.best["em"]):
            self.best = {"step": trainer.completed, "em": scores["em"]}
            save_checkpoint(self.folder.path / "checkpoints" / "best", trainer.language_model, state=self.best)
        return {f"eval/{name}": value for name, value in scores.items()}

    def _close(self, trainer: Trainer) -> Summary:
        """The one reading of the test questions: by the trained policy, then by the one the run started from."""
        workspace = self.workspace
        split, questions = ("test", workspace.test) if workspace.test else ("dev", workspace.dev)
        self.observer.stage(f"final evaluation on {split}", 2)
        trainer.forget_optimizer()
        after = self._scores(trainer.language_model, questions)
        self.observer.advance(1)
        # Made once more, from the cache or the model's folder, so that no run has to hold it from the start.
        before = self._scores(starting_policy(workspace, Silent()), questions)
        self.observer.advance(2)
        summary = Summary(
            run_dir=self.folder.path,
            seconds=round(self._seconds(), 1),
            steps=trainer.completed,
            verdict=verdict_of(self.folder.metrics.read(), before.scores, after.scores, split),
            before=before.scores,
            after=after.scores,
            split=split,
            samples=_samples(after, questions),
        )
        self.folder.finish(summary, len(questions))
        return summary

    def _scores(self, policy: LanguageModel, questions: Sequence[Example]) -> Evaluation:
        return evaluate(policy, questions, self.workspace, samples=self.config.eval.samples, seed=self.config.run.seed)

    def _seconds(self) -> float:
        """Of the run, what went before a resume included."""
        return self.seconds_before + time.monotonic() - self.started

    def _machine(self) -> dict[str, Any]:
        """What rounding depends on."""
        return {
            "threads": torch.get_num_threads(),
            "device": self.workspace.device.type,
            "torch": torch.__version__,
        }


def _samples(evaluation: Evaluation, questions: Sequence[Example]) -> tuple[Sample, ...]:
    """Three episodes a person can read: the longest right one, a middling one, and a wrong one, as far as there are."""
    by_id = {example.id: example for example in questions}
    said = [t for t in evaluation.sampled if t.turns]
    right = sorted((t for t in said if t.correct), key=lambda t: -len(t.turns))
    wrong = [t for t in said if not t.correct]
    ranked = [*right[:1], *right[1:][len(right) // 2 - 1 :][:1], *wrong[:1]]
    chosen = ranked + [t for t in (*right, *wrong) if t not in ranked]
    return tuple(
        Sample(
            question=by_id[t.example_id].question,
            golden_answers=by_id[t.example_id].golden_answers,
            turns=tuple((turn.text, turn.observation_text) for turn in t.turns),
            answer=t.answer,
            reward=t.reward or 0.0,
        )
        for t in chosen[:3]
    )
