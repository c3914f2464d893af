"""A recorded run of the local trainer, and the faults put into it from outside.

Each fault changes a trainer and returns its step; it begins after `start` rollout batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from holdfast.base.errors import HoldfastError, RetrievalError
from holdfast.base.run_folder import CONFIG, METRICS
from holdfast.data.questions import Example, QuestionOrder
from holdfast.data.world.bundle import world_of
from holdfast.recipe import Config, dump
from holdfast.retrieval.types import Hit, Retriever
from holdfast.train.learner import make_learner
from holdfast.train.loading import load_questions, load_retrievers
from holdfast.train.start import starting_policy
from holdfast.train.threads import set_up_torch
from holdfast.train.tracking import MetricsFile
from holdfast.train.trainer import Trainer, make_trainer
from holdfast_research.recordings.plan import Planned, config_of

Step = Callable[[], Any]
_CRASHES = (HoldfastError, RuntimeError, ValueError, IndexError)  # what broken weights raise somewhere


def record(planned: Planned, folder: Path) -> None:
    """Make the run, from the start, into `folder`: metrics.jsonl and config.toml. A run that dies leaves its log."""
    config = config_of(planned)
    folder.mkdir(parents=True, exist_ok=True)
    metrics_file = MetricsFile(folder / METRICS)
    metrics_file.path.unlink(missing_ok=True)
    set_up_torch(config)
    questions, retriever = load_questions(config), load_retrievers(config).train
    trainer = make_trainer(config, starting_policy(config, questions, retriever), questions.train, retriever)
    step = FAULTS[planned.arm.fault](trainer, planned.arm.start) if planned.arm.fault else trainer.step
    (folder / CONFIG).write_text(dump(trainer.config), encoding="utf-8")
    try:
        while trainer.completed_steps < planned.length:
            metrics_file.step(step())
    except _CRASHES as error:
        print(f"{planned.name}: ended after step {trainer.completed_steps}: {str(error)[:160]}", flush=True)
    finally:
        metrics_file.close()


def _with(config: Config, section: str, **values: Any) -> Config:
    """The config with other values in a section, unchecked."""
    return config.model_copy(update={section: getattr(config, section).model_copy(update=values)})


def _at(trainer: Trainer, start: int, change: Callable[[], None]) -> Step:
    """The trainer's step, with a change made once `start` rollout batches are done."""

    def step() -> Any:
        if trainer.completed_steps == start:
            change()
        return trainer.step()

    return step


# ---- the retriever


class Broken:
    """A retriever that can be made to fail for a fraction of the calls, or to find nothing."""

    in_process = True

    def __init__(self, inner: Retriever) -> None:
        self.inner, self.failing, self.empty, self._asked = inner, 0.0, False, 0

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Raises `RetrievalError` for the fraction `failing` of the calls."""
        self._asked += 1
        if self.failing and (self._asked * 0.618) % 1 < self.failing:
            raise RetrievalError("the server does not answer")
        return [[] for _ in queries] if self.empty else self.inner.search(queries, k)


def _breaking(trainer: Trainer, start: int, **what: Any) -> Step:
    retriever = Broken(trainer.agent.retriever)
    trainer.config = _with(trainer.config, "run", max_failed_fraction=1.0)
    trainer.agent = replace(trainer.agent, retriever=retriever)
    return _at(trainer, start, lambda: vars(retriever).update(what))


def dead_retriever(trainer: Trainer, start: int) -> Step:
    """Every search fails, and the run continues: the rollouts left are those that guess without a search."""
    return _breaking(trainer, start, failing=1.0)


def ailing_retriever(trainer: Trainer, start: int) -> Step:
    """Most calls fail, retries included."""
    return _breaking(trainer, start, failing=0.85)


def empty_retriever(trainer: Trainer, start: int) -> Step:
    """The server answers and finds nothing, as with a wrong index behind it."""
    return _breaking(trainer, start, empty=True)


# ---- the batch


def _changed_batches(trainer: Trainer, start: int, change: Callable[[Any], Any]) -> Step:
    """The trainer's step, with `change` applied to every batch after `start` rollout batches."""
    make = trainer.make_batch

    def changed(groups: Any) -> Any:
        batch = make(groups)
        return change(batch) if trainer.completed_steps >= start else batch

    trainer.make_batch = changed  # type: ignore[method-assign]
    return trainer.step


def masked_leak(trainer: Trainer, start: int) -> Step:
    """The loss mask includes observations, as when a chat template is masked at the wrong place."""

    def leak(batch: Any) -> Any:
        sampled = batch.loss_mask
        later = batch.attention_mask.bool() & (sampled.long().cumsum(-1) > 0)  # all after the first sampled token
        return replace(batch, loss_mask=sampled | later, action_ids=batch.action_ids.clamp(min=0))

    old_pass = trainer.learner.old_pass

    def unwatched(batch: Any, plan: Any, *_: Any) -> Any:
        """Without control tokens: they are looked for in what was sampled, and this mask has more."""
        return old_pass(batch, plan)

    trainer.learner.old_pass = unwatched  # type: ignore[method-assign, assignment]
    return _changed_batches(trainer, start, leak)


def poisoned(trainer: Trainer, start: int) -> Step:
    """Advantages that are not a number: no gradient is finite, every step is skipped."""

    def poison(batch: Any) -> Any:
        return replace(batch, advantages=torch.full_like(batch.advantages, float("nan")))

    return _changed_batches(trainer, start, poison)


def length_bonus(trainer: Trainer, start: int) -> Step:
    """Long rollouts are preferred, by a slip in the advantage: they grow until they are cut off."""

    def lengthen(batch: Any) -> Any:
        lengths = batch.loss_mask.sum(-1, keepdim=True).float()
        bonus = (lengths - lengths.mean()) / lengths.std().clamp(min=1e-3)
        return replace(batch, advantages=batch.advantages * 0.3 + bonus)

    return _changed_batches(trainer, start, lengthen)


# ---- the sampler


def stale_sampler(trainer: Trainer, start: int) -> Step:
    """Rollouts come from the weights of `start`: the weight sync has stopped."""
    roll_out = trainer.roll_out
    old: dict[str, torch.Tensor] = {}

    def rollout(examples: Any, *further: int) -> Any:
        if trainer.completed_steps < start:
            return roll_out(examples, *further)
        if trainer.completed_steps == start:
            old.update(copy.deepcopy(_model(trainer).state_dict()))
        new = copy.deepcopy(_model(trainer).state_dict())
        _model(trainer).load_state_dict(old)
        try:
            return roll_out(examples, *further)
        finally:
            _model(trainer).load_state_dict(new)

    trainer.roll_out = rollout  # type: ignore[method-assign]
    return trainer.step


def hot_sampler(trainer: Trainer, start: int) -> Step:
    """The sampler's temperature is 1.5, the trainer's 1: a setting that reached only one of them."""
    return _at(trainer, start, lambda: _sample_with(trainer, temperature=1.5))


def truncated_sampler(trainer: Trainer, start: int) -> Step:
    """Top-k 2, with log-probs over the whole vocabulary."""
    return _at(trainer, start, lambda: _sample_with(trainer, top_k=2))


def _sample_with(trainer: Trainer, **settings: Any) -> None:
    """Change the sampler of rollouts; the learner still assumes the recipe's."""
    policy = trainer.agent.policy
    present = {name: getattr(policy, name) for name in ("temperature", "top_p", "top_k")}
    trainer.agent = replace(trainer.agent, policy=policy.with_sampling(**present | settings))


# ---- the optimizer


def overflow(trainer: Trainer, start: int) -> Step:
    """A learning rate that overflows the weights."""
    return _at(trainer, start, lambda: _set_rate(trainer, 1e38))


def giant_steps(trainer: Trainer, start: int) -> Step:
    """The learning rate times 30, from one step to the next."""
    return _at(trainer, start, lambda: _set_rate(trainer, trainer.config.train.lr * 30))


def smaller_rate(trainer: Trainer, start: int) -> Step:
    """A healthy change: a fifth of the learning rate."""
    return _at(trainer, start, lambda: _set_rate(trainer, trainer.config.train.lr / 5))


def larger_rate(trainer: Trainer, start: int) -> Step:
    """A healthy change: twice the learning rate."""
    return _at(trainer, start, lambda: _set_rate(trainer, trainer.config.train.lr * 2))


def _set_rate(trainer: Trainer, lr: float) -> None:
    trainer.config = _with(trainer.config, "train", lr=lr)


def one_step(trainer: Trainer, start: int) -> Step:
    """One optimizer step per rollout batch with a penalty, which is then always zero: a recipe refuses it."""
    trainer.config = config = _with(trainer.config, "train", optimizer_steps_per_rollout=1)
    learner = trainer.learner
    trainer.learner = make_learner(config, learner.language_model, learner.reference)
    return trainer.step


# ---- the questions


def no_answers(trainer: Trainer, start: int) -> Step:
    """Golden answers that nothing matches, as when the wrong column is read: every rollout is incorrect."""
    return _at(trainer, start, lambda: _ask(trainer, [replace(e, golden_answers=("-x-",)) for e in _asked(trainer)]))


def other_questions(trainer: Trainer, start: int) -> Step:
    """A healthy change: questions of one hop first, of two hops and of one mixed from `start` on."""
    everything = _asked(trainer)
    easy = _of_hops(trainer, 1)
    _ask(trainer, [e for e in everything if e.id in easy])
    return _at(trainer, start, lambda: _ask(trainer, everything))


def easier_questions(trainer: Trainer, start: int) -> Step:
    """A healthy change: mixed questions first, of one hop only from `start` on."""
    easy = _of_hops(trainer, 1)
    return _at(trainer, start, lambda: _ask(trainer, [e for e in _asked(trainer) if e.id in easy]))


def hard_questions(trainer: Trainer, start: int) -> Step:
    """Questions of two hops only, which the starting policy rarely answers correctly."""
    hard = _of_hops(trainer, 2)
    return _at(trainer, start, lambda: _ask(trainer, [e for e in _asked(trainer) if e.id in hard]))


def _asked(trainer: Trainer) -> list[Example]:
    return list(load_questions(trainer.config).train)


def _of_hops(trainer: Trainer, hops: int) -> set[str]:
    """Ids of the training questions with this number of hops."""
    return {q.example.id for q in world_of(trainer.config.world).questions["train"] if len(q.hops) == hops}


def _ask(trainer: Trainer, examples: Sequence[Example]) -> None:
    trainer.question_order = QuestionOrder(examples, seed=trainer.config.run.seed)


# ---- the run


def _model(trainer: Trainer) -> Any:
    return trainer.learner.language_model.model


def resumed(trainer: Trainer, start: int) -> Step:
    """Stopped at `start`, resumed from ten steps before, and logged on into the same file: steps repeat."""
    saved: dict[str, Any] = {}

    def step() -> Any:
        if trainer.completed_steps == start - 10 and not saved:
            saved.update(model=copy.deepcopy(_model(trainer).state_dict()))
            saved.update(
                optimizer=copy.deepcopy(trainer.learner.optimizer.state_dict()),
                question_order=trainer.question_order.state(),
            )
        elif trainer.completed_steps == start and saved.get("model"):
            _model(trainer).load_state_dict(saved.pop("model"))
            trainer.learner.optimizer.load_state_dict(saved["optimizer"])
            trainer.question_order.restore(saved["question_order"])
            trainer.completed_steps = start - 10
        return trainer.step()

    return step


FAULTS: dict[str, Callable[[Trainer, int], Step]] = {
    fault.__name__: fault
    for fault in (
        *(dead_retriever, ailing_retriever, empty_retriever, masked_leak, poisoned, length_bonus),
        *(stale_sampler, hot_sampler, truncated_sampler, overflow, giant_steps, smaller_rate, larger_rate, one_step),
        *(no_answers, other_questions, easier_questions, hard_questions, resumed),
    )
}
