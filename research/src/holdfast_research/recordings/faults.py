"""What is done to a run of the local engine, from outside: each function changes a trainer and returns its step.

`start` is the number of rollout batches before it begins. None of this exists in the package.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from holdfast.config import Config
from holdfast.data import Example, QuestionOrder
from holdfast.errors import HoldfastError, RetrievalError
from holdfast.loading import load_questions
from holdfast.retrieval.types import Hit, Retriever
from holdfast.train.learner import make_learner
from holdfast.train.trainer import Trainer
from holdfast.world.bundle import world_of

Step = Callable[[], Any]
CRASHES = (HoldfastError, RuntimeError, ValueError, IndexError)  # what broken weights raise somewhere


def _with(config: Config, section: str, **values: Any) -> Config:
    """The config with other values in a section, unchecked."""
    return config.model_copy(update={section: getattr(config, section).model_copy(update=values)})


def _at(trainer: Trainer, start: int, change: Callable[[], None]) -> Step:
    """The trainer's step, with a change made once `start` rollout batches are done."""

    def step() -> Any:
        if trainer.completed == start:
            change()
        return trainer.step()

    return step


# ---- the retriever


class Broken:
    """A retriever that, from a moment on, fails for a share of the queries, or finds nothing."""

    in_process = True

    def __init__(self, inner: Retriever) -> None:
        self.inner, self.failing, self.empty, self._asked = inner, 0.0, False, 0

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
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
    """No search is answered any more, and the run goes on: what is left are episodes that guess."""
    return _breaking(trainer, start, failing=1.0)


def ailing_retriever(trainer: Trainer, start: int) -> Step:
    """Most calls fail, retries included."""
    return _breaking(trainer, start, failing=0.85)


def empty_retriever(trainer: Trainer, start: int) -> Step:
    """The server answers, and finds nothing: a wrong index behind it."""
    return _breaking(trainer, start, empty=True)


# ---- the batch


def masked_leak(trainer: Trainer, start: int) -> Step:
    """The loss mask takes in what the retriever said, as when a chat template is masked at the wrong place."""
    make = trainer.make_batch

    def batch(groups: Any) -> Any:
        made = make(groups)
        if trainer.completed < start:
            return made
        said = made.loss_mask
        heard = made.attention_mask.bool() & (said.long().cumsum(-1) > 0)  # everything after the first sampled token
        return replace(made, loss_mask=said | heard, action_ids=made.action_ids.clamp(min=0))

    trainer.make_batch = batch  # type: ignore[method-assign]
    return trainer.step


def poisoned(trainer: Trainer, start: int) -> Step:
    """Rewards that are not a number in every batch: no gradient is finite, every step is skipped."""
    make = trainer.make_batch

    def batch(groups: Any) -> Any:
        made = make(groups)
        bad = torch.full_like(made.advantages, float("nan"))
        return replace(made, advantages=bad) if trainer.completed >= start else made

    trainer.make_batch = batch  # type: ignore[method-assign]
    return trainer.step


def length_bonus(trainer: Trainer, start: int) -> Step:
    """Long episodes are preferred, by a slip in the advantage: they grow until they are cut off."""
    make = trainer.make_batch

    def batch(groups: Any) -> Any:
        made = make(groups)
        long = made.loss_mask.sum(-1, keepdim=True).float()
        bonus = (long - long.mean()) / long.std().clamp(min=1e-3)
        return replace(made, advantages=made.advantages * 0.3 + bonus) if trainer.completed >= start else made

    trainer.make_batch = batch  # type: ignore[method-assign]
    return trainer.step


# ---- the sampler


def stale_sampler(trainer: Trainer, start: int) -> Step:
    """The rollouts come from weights of long ago: the weight sync has stopped."""
    roll_out = trainer.roll_out
    old: dict[str, torch.Tensor] = {}

    def rollout(examples: Any) -> Any:
        if trainer.completed < start:
            return roll_out(examples)
        if trainer.completed == start:
            old.update(copy.deepcopy(_model(trainer).state_dict()))
        new = copy.deepcopy(_model(trainer).state_dict())
        _model(trainer).load_state_dict(old)
        try:
            return roll_out(examples)
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
    """Change the rollouts' sampler, and not what the learner takes it for."""
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
    """One optimizer step per rollout batch beside a penalty, which a recipe refuses: it is always zero."""
    trainer.config = config = _with(trainer.config, "train", optimizer_steps_per_rollout=1)
    learner = trainer.learner
    trainer.learner = make_learner(config, learner.language_model, learner.reference)
    return trainer.step


# ---- the questions


def no_answers(trainer: Trainer, start: int) -> Step:
    """Golden answers that nothing matches, as when the wrong column is read: every group is all wrong."""
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
    """Questions of two hops only, of which the starting policy gets few right."""
    hard = _of_hops(trainer, 2)
    return _at(trainer, start, lambda: _ask(trainer, [e for e in _asked(trainer) if e.id in hard]))


def _asked(trainer: Trainer) -> list[Example]:
    return list(load_questions(trainer.config).train)


def _of_hops(trainer: Trainer, hops: int) -> set[str]:
    """Ids of the training questions with so many."""
    return {q.example.id for q in world_of(trainer.config.world).questions["train"] if len(q.hops) == hops}


def _ask(trainer: Trainer, examples: Sequence[Example]) -> None:
    trainer.question_order = QuestionOrder(examples, seed=trainer.config.run.seed)


# ---- the run


def _model(trainer: Trainer) -> Any:
    return trainer.learner.language_model.model


def resumed(trainer: Trainer, start: int) -> Step:
    """Stopped at `start`, resumed from ten steps before, and logged on into the same file: steps repeat."""
    kept: dict[str, Any] = {}

    def step() -> Any:
        if trainer.completed == start - 10 and not kept:
            kept.update(model=copy.deepcopy(_model(trainer).state_dict()))
            kept.update(
                optimizer=copy.deepcopy(trainer.learner.optimizer.state_dict()), sampler=trainer.question_order.state()
            )
        elif trainer.completed == start and kept.get("model"):
            _model(trainer).load_state_dict(kept.pop("model"))
            trainer.learner.optimizer.load_state_dict(kept["optimizer"])
            trainer.question_order.restore(kept["sampler"])
            trainer.completed = start - 10
        return trainer.step()

    return step
