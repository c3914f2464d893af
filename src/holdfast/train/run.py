"""A whole run: start, train, evaluate, save, summarise. The method is in `trainer.py`."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from holdfast.agent.agent import SearchAgent
from holdfast.agent.trajectory import Invalid, Turn
from holdfast.base import run_folder
from holdfast.base.errors import CheckpointError, GuardStop, ModelError, RolloutError
from holdfast.base.jsonl import write_jsonl
from holdfast.diagnose.finding import Finding
from holdfast.model.checkpoint import read_state
from holdfast.recipe import Config, absolute, dump, load_run, setting_values
from holdfast.recipe.paths import with_values
from holdfast.tasks.machine import set_up_torch
from holdfast.tasks.opening import make_agent
from holdfast.tasks.questions import QuestionOrder, dev_questions
from holdfast.train.evaluate import EvaluationSums, Evaluator, KeptEvaluations, intervals_of
from holdfast.train.guard import Guard, LiveReport, why_stopped
from holdfast.train.listener import Listener, Listeners, StepResult
from holdfast.train.prepare import Prepared, prepare
from holdfast.train.saving import Saver, newest_checkpoint
from holdfast.train.start import starting_policy
from holdfast.train.start_cache import from_model
from holdfast.train.summary import Summary, read_summary, verdict_of, write_summary
from holdfast.train.tracking import MetricsFile, TrajectoryFiles, open_trackers
from holdfast.train.trainer import make_trainer

_IDLE = 64
"""So many rollouts without an action stop a run. If one in 20 has an action, one of 64 has it with 96 % probability."""


def train(config: Config, run_dir: Path, *, listener: Listener | None = None) -> Summary:
    """Train from the start into a new run folder. Raises `GuardStop` when the guard stops the run."""
    return train_prepared(prepare(config), run_dir, listener=listener)


def train_prepared(prepared: Prepared, run_dir: Path, *, listener: Listener | None = None) -> Summary:
    """`train`, for a recipe that is prepared."""
    prepared = replace(prepared, config=absolute(prepared.config))
    run_folder.begin(run_dir, dump(prepared.config))
    with run_folder.writing(run_dir):  # before the first step too: building the start can take minutes
        return _Run(prepared, run_dir, listener or Listener()).train()


def resume(run_dir: Path, *, moved: Sequence[str] = (), listener: Listener | None = None) -> Summary:
    """Continue a run from its newest complete checkpoint, as if it had never stopped. `moved` are overrides of its
    recipe, for files that are elsewhere now.

    A run without a checkpoint begins again. A finished run is left as it is, so that its test questions are read once.
    Raises `CheckpointError` for the folder of a warm start, which has a model and no steps.
    """
    listener = listener or Listener()
    config = load_run(run_dir, moved)
    if (summary := read_summary(run_dir)) is not None and summary.steps >= config.train.steps:
        listener.note(f"{run_dir} is finished after step {summary.steps}; these are its results")
        return summary
    if (model := run_dir / run_folder.MODEL).is_dir():
        raise CheckpointError(
            f"{run_dir} is a finished warm start, not a run to resume. Train from it with {from_model(config, model)}"
        )
    with run_folder.writing(run_dir):
        listener.stage("questions and index")
        prepared = prepare(config, continued=bool(run_folder.list_checkpoints(run_dir)))
        checkpoint = newest_checkpoint(run_dir, config, listener.note)
        run = _Run(prepared, run_dir, listener, checkpoint)
        run.saver.continue_from(checkpoint, config.model, listener.note)
        return run.train()


class _Run:
    """A trainer at its first step, with its evaluator and its saver."""

    def __init__(self, prepared: Prepared, run_dir: Path, listener: Listener, checkpoint: Path | None = None) -> None:
        self.prepared, config = prepared, prepared.config
        self.config = config
        self.run_dir, self.listener = run_dir, listener
        started = time.monotonic()
        set_up_torch(config)
        for note in prepared.notes:
            listener.note(note)
        self.questions, self.retrievers = prepared.questions, prepared.retrievers
        if checkpoint is not None:  # refused before a warm start, which may take minutes
            state = read_state(checkpoint, step=int, question_order=dict, generator=list, seconds=float, machine=dict)
            QuestionOrder(self.questions.train, seed=config.run.seed).restore(state["question_order"])
        policy = starting_policy(prepared, listener)
        # A checkpoint holds its critic: the one that the run began with may be gone.
        trained = config if checkpoint is None else with_values(config, {"critic.path": None})
        self.trainer = make_trainer(replace(prepared, config=trained), policy, run_dir)
        self.evaluator = self._evaluator(self.trainer.agent)
        self.saver = Saver(self.trainer, run_dir, config.checkpoint, started=started)
        self._idle: int | None = 0 if checkpoint is None else None
        """Rollouts so far, while none had an action or a reward; then None."""

    def train(self) -> Summary:
        """Run the remaining steps and the final evaluation."""
        if (finding := self._train()) is not None:
            raise GuardStop(why_stopped(finding, self.trainer.completed_steps, self.run_dir, self.config))
        return self._close()

    def _train(self) -> Finding | None:
        """Run the remaining steps. Returns the finding that the guard stopped the run for, if any."""
        config, total = self.config, self.config.train.steps
        trackers = open_trackers(config.track, self.run_dir, name=config.run.name, settings=config.model_dump())
        trajectories = TrajectoryFiles(self.run_dir, config.track.trajectories)
        report = LiveReport(self.run_dir, self.listener.note)
        guard = Guard(config.guard, self.run_dir, recipe=setting_values(config), on_finding=self.listener.finding)
        listeners = Listeners(trackers, trajectories, self.listener, guard, report)  # they get each step in this order
        self.listener.stage("training", total)
        try:
            if self.trainer.completed_steps == 0 and config.eval.every:
                listeners.step(StepResult(step=0, metrics=self._evaluate()))
            with held_stops(lambda: self.trainer.rolling_out, self.listener.note) as stops:
                while self.trainer.completed_steps < total and guard.stop is None and not stops:
                    result = self._step()
                    listeners.step(result)
                    self._refuse_idle(result)
                    if stops or guard.stop is not None or result.step == total or self.saver.is_due(result.step):
                        self.saver.save()
        finally:
            listeners.close()
        return guard.stop if self.trainer.completed_steps < total else None

    def _step(self) -> StepResult:
        """One training step, with the evaluation that is due after it."""
        try:
            result = self.trainer.step()
        except (RolloutError, KeyboardInterrupt, SystemExit):
            if self.trainer.rolling_out:
                self.saver.save_if_missing()  # the steps before this one are whole
            raise
        if self.config.eval.every and result.step % self.config.eval.every == 0:
            try:
                result = replace(result, metrics={**result.metrics, **self._evaluate()})
            except RolloutError as error:  # the step is whole; if searches still fail, the next one saves and stops
                self.listener.note(f"no evaluation on dev after step {result.step}: {error}")
        return result

    def _refuse_idle(self, result: StepResult) -> None:
        """Raise `ModelError` for a policy that neither calls a tool nor answers, and has never got a reward."""
        rollouts = [t for group in result.groups for t in group.trajectories]
        if self._idle is None or any(t.reward or any(map(_acts, t.turns)) for t in rollouts):
            self._idle = None
            return
        self._idle += len(rollouts)
        if self._idle >= _IDLE:
            raise ModelError(
                f"none of the first {self._idle} rollouts called a tool or answered, so every reward was 0, and there "
                "is nothing to learn from. Read some in trajectories.jsonl. A model that does not follow the prompt "
                "needs demonstrations first: set warm_start.data and warm_start.steps, or more steps if they were set"
            )

    def _evaluate(self) -> dict[str, float]:
        """Scores on dev. Saves the policy if it is the best so far."""
        scores = self.evaluator(dev_questions(self.questions.dev, self.config.eval.questions)).scores
        self.saver.save_if_best(scores["em"])
        return {f"eval/{name}": value for name, value in scores.items()}

    def _close(self) -> Summary:
        """Evaluate on the test questions, once: the trained policy, with `eval.start` also the one it started from."""
        config = self.config
        split, questions = ("test", self.questions.test) if self.questions.test else ("dev", self.questions.dev)
        self.listener.stage(f"final evaluation on {split}", (1 + config.eval.start) * len(questions))
        self.trainer.free_training_state()
        of = {
            "split": split,
            "questions": len(questions),
            "steps": config.train.steps,
            "seed": config.run.seed,
            "data": config.data.model_dump(mode="json"),
            "eval": config.eval.model_dump(),
        }
        kept = KeptEvaluations(self.run_dir / run_folder.FINAL_EVALUATION, of)
        after = kept.run("after", self.evaluator, questions, self.listener.advance)
        before = EvaluationSums()
        if config.eval.start:
            # Loaded again from where it is kept, so that the run need not hold it in memory.
            agent = make_agent(config, starting_policy(self.prepared), self.retrievers.eval, self.prepared.protocol)
            evaluator = self._evaluator(agent)
            before = kept.run("before", evaluator, questions, lambda done: self.listener.advance(len(questions) + done))
        intervals, scores = intervals_of(before, after), before.scores if before.questions else {}
        rows = MetricsFile(self.run_dir / run_folder.METRICS).read()
        summary = Summary(
            run_dir=self.run_dir,
            seconds=round(self.saver.seconds, 1),
            steps=self.trainer.completed_steps,
            verdict=verdict_of(rows, scores, after.scores, split, len(questions), intervals),
            before=scores,
            after=after.scores,
            split=split,
            samples=after.samples,
            questions=len(questions),
            intervals=intervals,
        )
        write_jsonl(self.run_dir / run_folder.ANSWERS, after.answers)
        write_summary(summary)
        kept.delete()
        return summary

    def _evaluator(self, agent: SearchAgent) -> Evaluator:
        config, agent = self.config, replace(agent, retriever=self.retrievers.eval)
        return Evaluator(agent, config.eval.samples, seed=config.run.seed, max_failed=config.run.max_failed_fraction)


def _acts(turn: Turn) -> bool:
    return not isinstance(turn.action, Invalid)


# ---- Ctrl-C and `kill` wait while a step changes the policy, so that every stop can be saved


@contextmanager
def held_stops(may_stop: Callable[[], bool], note: Callable[[str], None]) -> Iterator[list[int]]:
    """A list of the signals SIGINT and SIGTERM that arrived within this context, for the code inside to end soon.

    A signal takes effect at once while `may_stop()`, or if it is the second; else at the end of the context, and `note`
    gets a sentence. Signals that are ignored stay so. Outside the main thread nothing is held.
    """
    arrived: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    previous = {number: handler for number, handler in handlers.items() if handler not in (None, signal.SIG_IGN)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def hold(number: int, _: object) -> None:
        arrived.append(number)
        if may_stop() or len(arrived) > 1:
            restore()
            signal.raise_signal(number)
        note("stopping as soon as this step is finished and saved; the same signal again stops at once")

    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return
    for number in previous:
        signal.signal(number, hold)
    try:
        yield arrived
    finally:
        restore()
    if arrived:
        signal.raise_signal(arrived[0])
