"""A whole run: start, train, evaluate, save, and the closing words. Owns the run folder; `trainer.py` owns the method."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.config import Config, dump, load
from holdfast.data import Example
from holdfast.errors import CheckpointError
from holdfast.rewards import score_trajectory
from holdfast.tracking import MetricsFile, Tracker, open_tracker
from holdfast.train.checkpoint import newest_whole, prune, save_checkpoint
from holdfast.train.evaluate import Evaluation, evaluate
from holdfast.train.events import Observer, Sample, Silent, Summary
from holdfast.train.model import LanguageModel, load_model
from holdfast.train.session import Workspace, open_workspace
from holdfast.train.start import starting_policy
from holdfast.train.trainer import Trainer, set_up_torch
from holdfast.train.verdict import verdict_of
from holdfast.trajectory import Group, Trajectory


def train(config: Config, run_dir: Path, *, observer: Observer | None = None) -> Summary:
    """Train from the start into a fresh run folder."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.toml").write_text(dump(config))
    return _Run(config, run_dir, observer or Silent()).from_start()


def resume(run_dir: Path, *, observer: Observer | None = None) -> Summary:
    """Continue a run from its newest whole checkpoint, as if it had never stopped."""
    if not (run_dir / "config.toml").is_file():
        raise CheckpointError(
            f"{run_dir} is no run folder: it has no config.toml. Give the folder `holdfast train` named"
        )
    return _Run(load(run_dir / "config.toml"), run_dir, observer or Silent()).from_checkpoint()


def warm_start_only(config: Config, run_dir: Path, *, observer: Observer | None = None) -> Path:
    """Supervised learning alone; the folder of the saved model, which `model.path` and `from_pretrained` load."""
    observer = observer or Silent()
    set_up_torch(config)
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.toml").write_text(dump(config))
    made = starting_policy(open_workspace(config), observer)
    made.model.save_pretrained(run_dir / "model")
    made.tokenizer.save_pretrained(run_dir / "model")
    return run_dir / "model"


class _Run:
    def __init__(self, config: Config, run_dir: Path, observer: Observer) -> None:
        self.config, self.run_dir, self.observer = config, run_dir, observer
        self.started = time.monotonic()
        set_up_torch(config)
        observer.stage("questions and index")
        self.workspace: Workspace = open_workspace(config)
        self.best: dict[str, float] | None = None

    def from_start(self) -> Summary:
        policy = starting_policy(self.workspace, self.observer)
        return self._train(Trainer(self.workspace, policy))

    def from_checkpoint(self) -> Summary:
        folder = newest_whole(self.run_dir, self.observer.note)
        # The reference is the policy the run started from, so that one is built first and then given the weights.
        start = starting_policy(self.workspace, self.observer)
        trainer = Trainer(self.workspace, start)
        saved = load_model(self.config.model, folder / "model", self.workspace.device)
        trainer.model.load_state_dict(saved.model.state_dict())
        self.best = trainer.restore(folder)
        MetricsFile(self.run_dir / "metrics.jsonl").truncate(trainer.completed)
        _truncate_trajectories(self.run_dir / "trajectories.jsonl", trainer.completed)
        self.observer.note(f"resumed after step {trainer.completed}")
        return self._train(trainer)

    def _train(self, trainer: Trainer) -> Summary:
        config, observer = self.config, self.observer
        total = config.train.steps
        tracker: Tracker = open_tracker(config, self.run_dir)
        observer.stage("training", total)
        try:
            if trainer.completed == 0 and config.eval.every:
                self._evaluate_dev(trainer, tracker, {})
            while trainer.completed < total:
                metrics, groups, examples = trainer.step()
                step = trainer.completed
                if config.eval.every and step % config.eval.every == 0:
                    self._evaluate_dev(trainer, tracker, metrics)
                else:
                    tracker.log(step, metrics)
                self._write_trajectories(step, groups, examples)
                observer.step(step, total, metrics)
                if step == total or (config.checkpoint.every and step % config.checkpoint.every == 0):
                    trainer.save(self.run_dir, self.best)
                    prune(self.run_dir, config.checkpoint.keep)
        finally:
            tracker.close()
        return self._close(trainer)

    def _evaluate_dev(self, trainer: Trainer, tracker: Tracker, metrics: dict[str, float]) -> None:
        """Evaluate on dev, log with the step's metrics, keep the policy if it is the best so far."""
        own = self.config.eval
        questions = self.workspace.dev[: own.questions]
        scores = evaluate(
            trainer.policy_model, questions, self.workspace, samples=own.samples, seed=self.config.run.seed
        ).scores
        metrics |= {f"eval/{name}": value for name, value in scores.items()}
        tracker.log(trainer.completed, metrics)
        if trainer.completed == 0:
            self.observer.step(0, self.config.train.steps, metrics)
        elif self.best is None or scores["em"] > self.best["em"]:
            self.best = {"step": trainer.completed, "em": scores["em"]}
            save_checkpoint(
                self.run_dir / "checkpoints" / "best",
                model=trainer.model,
                tokenizer=trainer.policy_model.tokenizer,
                optimizer=None,
                state=self.best,
            )

    def _close(self, trainer: Trainer) -> Summary:
        """The one reading of the test questions: the policy the run started from, then the trained one."""
        workspace, config = self.workspace, self.config
        split, questions = ("test", workspace.test) if workspace.test else ("dev", workspace.dev)
        self.observer.stage(f"final evaluation on {split}", 2)
        after = evaluate(trainer.policy_model, questions, workspace, samples=config.eval.samples, seed=config.run.seed)
        self.observer.advance(1)
        before = evaluate(
            self._start_again(trainer), questions, workspace, samples=config.eval.samples, seed=config.run.seed
        )
        self.observer.advance(2)
        results = {"split": split, "questions": len(questions), "before": before.scores, "after": after.scores}
        results |= {"seconds": round(time.monotonic() - self.started, 1), "steps": trainer.completed}
        (self.run_dir / "results.json").write_text(json.dumps(results, indent=1))
        series = MetricsFile(self.run_dir / "metrics.jsonl").read()
        return Summary(
            run_dir=self.run_dir,
            seconds=time.monotonic() - self.started,
            steps=trainer.completed,
            verdict=verdict_of(series, before.scores, after.scores, split),
            before=before.scores,
            after=after.scores,
            split=split,
            samples=_samples(after, questions),
        )

    def _start_again(self, trainer: Trainer) -> LanguageModel:
        """The starting policy once more, without holding its weights during the run."""
        del trainer
        return starting_policy(self.workspace, Silent())

    def _write_trajectories(self, step: int, groups: Sequence[Group], examples: Sequence[Example]) -> None:
        """A few episodes of the step, from different questions."""
        count = self.config.track.trajectories
        if not count:
            return
        with (self.run_dir / "trajectories.jsonl").open("a", encoding="utf-8") as file:
            for group, example in list(zip(groups, examples, strict=True))[:count]:
                row = _row(step, group.trajectories[0], example)
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _row(step: int, trajectory: Trajectory, example: Example) -> dict[str, Any]:
    return {
        "step": step,
        "id": trajectory.example_id,
        "question": example.question,
        "golden_answers": list(example.golden_answers),
        "turns": [{"text": t.text, "observation": t.observation_text, "hits": list(t.hits)} for t in trajectory.turns],
        "answer": trajectory.answer,
        "status": trajectory.status.value,
        "reward": trajectory.reward,
        "reward_parts": trajectory.reward_parts,
    }


def _truncate_trajectories(path: Path, step: int) -> None:
    """Drop what a stopped run wrote after its checkpoint, a cut last line included."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (json.JSONDecodeError, KeyError):
            continue
    path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def _samples(evaluation: Evaluation, questions: Sequence[Example]) -> tuple[Sample, ...]:
    """Three episodes a person can read: two right ones, the longer the better, and a wrong one."""
    by_id = {example.id: example for example in questions}
    right = sorted((t for t in evaluation.sampled if t.correct), key=lambda t: -len(t.turns))
    wrong = [t for t in evaluation.sampled if not t.correct and t.turns]
    chosen = (right[:1] + right[len(right) // 2 :][:1] + wrong[:1] + right[1:3])[:3]
    return tuple(
        Sample(
            question=by_id[t.example_id].question,
            golden_answers=by_id[t.example_id].golden_answers,
            turns=tuple((turn.text, turn.observation_text) for turn in t.turns),
            answer=t.answer,
            reward=score_trajectory(t, by_id[t.example_id].golden_answers).reward or 0.0,
        )
        for t in chosen
    )
