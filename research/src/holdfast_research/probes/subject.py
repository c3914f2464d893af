"""The subject of a probe: a policy with its questions, its retriever and its recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from holdfast.agent.agent import SearchAgent
from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Group, Trajectory
from holdfast.base.errors import CheckpointError, ConfigError, RolloutError
from holdfast.base.run_folder import CONFIG, MODEL, list_checkpoints
from holdfast.model.checkpoint import checkpoint_of, has_optimizer, load_anchor, load_optimizer
from holdfast.model.language_model import LanguageModel, load_model, pick_device, take_weights
from holdfast.recipe import Config
from holdfast.tasks.machine import set_up_torch
from holdfast.tasks.opening import load_recipe, make_agent
from holdfast.tasks.questions import Example, QuestionOrder
from holdfast.train.learner import Learner, Reference, make_learner
from holdfast.train.listener import Listener
from holdfast.train.objective import Objective
from holdfast.train.prepare import Prepared, prepare
from holdfast.train.rollouts import roll_out, score, training_batch
from holdfast.train.saving import refuse_other_shape
from holdfast.train.start import starting_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A policy, ready to be probed."""

    name: str
    """The folder the weights came from, or the hub id."""
    config: Config
    questions: tuple[Example, ...]
    """Training questions."""
    agent: SearchAgent
    """As it rolls out in training."""
    language_model: LanguageModel
    reference: Reference | None = None
    """The policy the run started from; None when the recipe's loss has no KL to it."""
    optimizer_state: Path | None = None
    """The checkpoint whose optimizer state every update begins with; None for a fresh optimizer."""
    anchor: tuple[torch.Tensor, ...] = ()
    """The weights of the run's anchor, with which the penalty of its next step would compare; empty without one."""

    def learner(self, config: Config | None = None) -> Learner:
        """A learner of the policy, with the loss of `config`, by default that of the subject."""
        config = config or self.config
        learner = make_learner(config, self.language_model, self.reference)
        if self.optimizer_state is not None:
            load_optimizer(self.optimizer_state, learner.optimizer)
        if self.anchor and config.train.anchor_every:
            learner.renew_anchor(self.anchor)
        return learner


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """A group of scored rollouts for every question, in the order of the questions."""

    examples: tuple[Example, ...]
    groups: tuple[Group, ...]

    @property
    def mean_searches(self) -> float:
        """Searches per rollout that did not fail, which sets an adaptive answer weight."""
        counts = [t.searches for t in self._all() if not t.status.is_failure]
        return sum(counts) / max(len(counts), 1)

    def learnable(self) -> list[Trajectory]:
        """Rollouts with sampled tokens, in the order of `batch_of`. Raises `RolloutError` when there are none."""
        if not (learnable := [t for t in self._all() if any(t.loss_mask)]):
            raise RolloutError(f"all {len(self._all())} rollouts failed; check the retriever")
        return learnable

    def correct_count(self) -> str:
        """How many rollouts are correct, in words, for an error."""
        correct = [t.correct for t in self._all()]
        return f"{sum(correct)} of {len(correct)} rollouts on {len(self.groups)} questions are correct"

    def _all(self) -> list[Trajectory]:
        return [t for group in self.groups for t in group.trajectories]


def open_run(
    run_dir: Path,
    checkpoint: str,
    overrides: Sequence[str],
    listener: Listener,
    *,
    with_reference: bool,
    optimizer_state: bool = False,
) -> Subject:
    """The policy of a checkpoint, as in `checkpoint_of`, with the recipe of the run.

    `overrides` change its settings. `with_reference`: the probe makes updates, so a loss with a KL needs the policy
    that the run started from. `optimizer_state`: updates start from the run's saved AdamW
    state, as its next step would.
    Raises `CheckpointError` for a missing checkpoint, for a run without steps, and for `optimizer_state` of a
    checkpoint without it.
    """
    config = load_recipe(run_dir, overrides)
    if (run_dir / MODEL).is_dir() and not list_checkpoints(run_dir):
        raise CheckpointError(
            f"{run_dir} has a model and no steps; probe it as a model: {run_dir / MODEL} --recipe {run_dir / CONFIG}"
        )
    saved_step = checkpoint_of(run_dir, checkpoint)
    folder = saved_step / MODEL
    if optimizer_state and not has_optimizer(saved_step):
        raise CheckpointError(
            f"--optimizer-state: {saved_step} holds a policy without its optimizer; give --checkpoint last, or a step"
        )
    prepared = _open(config, listener)
    reference = None
    if with_reference and config.loss.kl_coef > 0:
        refuse_other_shape(config, folder)
        # The reference is the policy the run started from, so that is built first. Then the weights are loaded into it.
        language_model = starting_policy(prepared, listener)
        reference = Reference(language_model)
        take_weights(language_model, config.model, folder)
    else:
        listener.stage("loading the model")
        language_model = load_model(config.model, folder, pick_device(config.run.device))
    return Subject(
        name=str(folder),
        config=config,
        questions=prepared.questions.train,
        agent=make_agent(config, language_model, prepared.retrievers.train, prepared.protocol),
        language_model=language_model,
        reference=reference,
        optimizer_state=saved_step if optimizer_state else None,
        anchor=tuple(load_anchor(saved_step)) if config.train.anchor_every else (),
    )


def open_model(config: Config, listener: Listener, *, with_reference: bool) -> Subject:
    """The policy a recipe starts from: `model.path`, warm-started if the recipe says so. It is also the reference."""
    prepared = _open(config, listener)
    language_model = starting_policy(prepared, listener)
    return Subject(
        name=config.model.path,
        config=config,
        questions=prepared.questions.train,
        agent=make_agent(config, language_model, prepared.retrievers.train, prepared.protocol),
        language_model=language_model,
        reference=Reference(language_model) if with_reference and config.loss.kl_coef > 0 else None,
    )


def _open(config: Config, listener: Listener) -> Prepared:
    set_up_torch(config)
    listener.stage("questions and index")
    return prepare(config, continued=True)


def roll_out_questions(subject: Subject, count: int, seed: int, listener: Listener) -> Rollouts:
    """Groups for `count` training questions, of the size of the recipe and sampled as in training.

    The questions and the randomness of each rollout depend on `seed` alone, so two policies get the same questions.
    Raises `ConfigError` when there are fewer questions.
    """
    config, questions = subject.config, subject.questions
    if not 1 <= count <= len(questions):
        raise ConfigError(
            f"--questions {count}, but the recipe has {len(questions)} training questions; give 1 to {len(questions)}"
        )
    examples = QuestionOrder(questions, seed=seed).next(count)
    size = max(8, -(-count // 10))  # enough rollouts to fill a batch, few enough to show progress
    groups: list[Group] = []
    listener.stage("rollouts", count)
    for start in range(0, count, size):
        part = examples[start : start + size]
        unscored, _ = roll_out(
            subject.agent,
            part,
            size=config.train.group_size,
            seed=("probe", seed),
            max_failed=config.run.max_failed_fraction,
        )
        groups += score(unscored, part, config.reward.weights())
        listener.advance(len(groups))
    return Rollouts(examples=tuple(examples), groups=tuple(groups))


def batch_of(subject: Subject, groups: Sequence[Group]) -> TokenBatch:
    """Tensors of the rollouts that did not fail, in order, with the advantages of the recipe."""
    if subject.config.loss.advantage == "gae":
        raise ConfigError(
            "loss.advantage = 'gae': a probe has no critic, so it cannot compute these advantages. For "
            "group-relative ones: --loss.advantage grpo --train.group_size 8"
        )
    language_model = subject.language_model
    return training_batch(
        groups,
        Objective(subject.config.loss),
        pad_token_id=language_model.pad_token_id,
        device=language_model.device,
    )


@contextmanager
def borrowed_weights(model: torch.nn.Module) -> Iterator[None]:
    """Within this context the trained weights may change. Afterwards they are the same as before, bit for bit.

    It holds a second copy of them.
    """
    trained: list[torch.Tensor] = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(trained, start, strict=True):
                parameter.copy_(value)
                parameter.grad = None
