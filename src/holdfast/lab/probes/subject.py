"""What is probed: a policy with its questions, its retriever and the recipe it is, or would be, trained by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from holdfast.batch import TokenBatch
from holdfast.config import Config
from holdfast.data import Example, Sampler
from holdfast.errors import CheckpointError, ConfigError
from holdfast.train.checkpoint import (
    STAGE_MODEL,
    find_damage,
    has_optimizer,
    list_checkpoints,
    model_folder,
    step_folder,
)
from holdfast.train.episodes import learnable, training_rollouts
from holdfast.train.events import Observer
from holdfast.train.model import LanguageModel, Reference, load_model, refuse_other_shape, take_weights
from holdfast.train.session import Workspace, open_workspace, recipe_of
from holdfast.train.start import starting_policy
from holdfast.train.trainer import set_up_torch
from holdfast.train.update import Forward, Keeper
from holdfast.trajectory import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A policy, ready to be probed."""

    name: str
    """The folder the weights came from, or the hub id."""
    workspace: Workspace
    language_model: LanguageModel
    forward: Forward
    """Of the policy, at the recipe's temperature."""
    reference: Forward | None
    """Of the policy the run started from; None when the recipe's loss has no KL to it."""
    keeper: Keeper | None = None
    """Of the policy and its sampler, where the recipe keeps the sampling mask."""
    moments: Path | None = None
    """The checkpoint whose optimizer state every update begins with; None for a fresh optimizer."""

    @property
    def config(self) -> Config:
        return self.workspace.config


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """A group of scored episodes for every question, in their order."""

    examples: tuple[Example, ...]
    groups: tuple[Group, ...]

    @property
    def mean_searches(self) -> float:
        """Searches per episode that did not fail: what an adaptive answer weight goes by."""
        counts = [t.searches for group in self.groups for t in group.trajectories if not t.status.is_failure]
        return sum(counts) / max(len(counts), 1)


def open_run(
    run_dir: Path,
    checkpoint: str,
    overrides: Sequence[str],
    observer: Observer,
    *,
    with_reference: bool,
    moments: bool = False,
) -> Subject:
    """The policy of a run's checkpoint (`last`, `best` or the number of its step), with the recipe of the run.

    `overrides` change its settings. `with_reference`: updates will be made, so the policy the run started from is
    needed if the loss has a KL to it. `moments`: they go on with the run's optimizer, as its next step would. Raises
    `CheckpointError` when there is no such checkpoint, or `moments` are asked of one that has none.
    """
    config = recipe_of(run_dir, overrides)
    saved_step = checkpoint_folder(run_dir, checkpoint)
    folder = saved_step / "model"
    if moments and not has_optimizer(saved_step):
        raise CheckpointError(
            f"--moments: {saved_step} holds a policy without its optimizer; give --checkpoint last, or a step"
        )
    workspace = _workspace(config, observer)
    if with_reference and config.loss.kl_coef > 0:
        refuse_other_shape(config.model, folder)
        # The reference is the policy the run started from, so that one is built first and then given the weights.
        language_model = starting_policy(workspace, observer)
        reference: Forward | None = Reference(language_model).forward(config.sampling.temperature)
        take_weights(language_model, config.model, folder)
    else:
        observer.stage("loading the model")
        language_model, reference = load_model(config.model, folder, workspace.device), None
    subject = _subject(str(folder), workspace, language_model, reference)
    return replace(subject, moments=saved_step if moments else None)


def open_model(config: Config, observer: Observer, *, with_reference: bool) -> Subject:
    """The policy a recipe starts from: `model.path`, warm-started if the recipe says so. It is its own reference."""
    workspace = _workspace(config, observer)
    language_model = starting_policy(workspace, observer)
    reference: Forward | None = None
    if with_reference and config.loss.kl_coef > 0:
        reference = Reference(language_model).forward(config.sampling.temperature)
    return _subject(config.model.path, workspace, language_model, reference)


def _workspace(config: Config, observer: Observer) -> Workspace:
    set_up_torch(config)
    observer.stage("questions and index")
    return open_workspace(config, note=observer.note)


def _subject(name: str, workspace: Workspace, language_model: LanguageModel, reference: Forward | None) -> Subject:
    return Subject(
        name=name,
        workspace=workspace,
        language_model=language_model,
        forward=language_model.forward(workspace.config.sampling.temperature),
        reference=reference,
        keeper=language_model.keeper(workspace.config.sampling),
    )


def checkpoint_folder(run_dir: Path, which: str) -> Path:
    """The whole checkpoint of a run that `last`, `best` or a step's number means. Raises `CheckpointError`."""
    if which in ("last", "best"):
        folder = model_folder(run_dir, which).parent
        if folder == run_dir:
            raise CheckpointError(
                f"{run_dir} has a model and no steps; probe it as a model: {run_dir / STAGE_MODEL} --recipe "
                f"{run_dir / 'config.toml'}"
            )
        return folder
    kept = [folder for folder in list_checkpoints(run_dir) if folder.is_dir()]
    numbers = ", ".join(str(int(folder.name.removeprefix("step-"))) for folder in reversed(kept)) or "none yet"
    if not which.isdigit() or (folder := step_folder(run_dir, int(which))) not in kept:
        raise CheckpointError(
            f"--checkpoint {which}: {run_dir} has no such checkpoint; give last, best, or a step it "
            f"has kept ({numbers})"
        )
    if (problem := find_damage(folder)) is not None:
        raise CheckpointError(f"--checkpoint {which}: {folder} is refused: {problem}; give another")
    return folder


def roll_out_questions(subject: Subject, count: int, seed: int, observer: Observer) -> Rollouts:
    """Groups of the recipe's size for `count` training questions, sampled as the recipe trains.

    Which questions, and the randomness of each episode, depend on `seed` alone: two policies are asked the same.
    Raises `ConfigError` when there are not that many questions.
    """
    questions = subject.workspace.train
    if not 1 <= count <= len(questions):
        raise ConfigError(
            f"--questions {count}, but the recipe has {len(questions)} training questions; give 1 to {len(questions)}"
        )
    examples = Sampler(questions, seed=seed).next(count)
    size = max(8, -(-count // 10))  # enough for a full batch of episodes, few enough for a time left
    groups: list[Group] = []
    observer.stage("rollouts", count)
    for start in range(0, count, size):
        part = examples[start : start + size]
        groups += training_rollouts(subject.language_model, part, subject.workspace, seed=("probe", seed))
        observer.advance(len(groups))
    return Rollouts(examples=tuple(examples), groups=tuple(groups))


def batch_of(subject: Subject, groups: Sequence[Group]) -> TokenBatch:
    """Tensors with the recipe's advantages of the episodes that did not fail, in order."""
    pad_token_id, device = subject.language_model.pad_token_id, subject.workspace.device
    return learnable(groups, subject.config.loss, pad_token_id=pad_token_id, device=device)


@contextmanager
def borrowed_weights(model: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """The weights that train, to be changed at will: afterwards all is what it was, bit for bit.

    Costs a second copy of them for as long as it lasts.
    """
    trained: list[torch.Tensor] = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    try:
        yield trained
    finally:
        with torch.no_grad():
            for parameter, value in zip(trained, start, strict=True):
                parameter.copy_(value)
                parameter.grad = None


def generator_of(seed: int) -> torch.Generator:
    """What deals the rollouts of an update to its optimizer steps."""
    return torch.Generator().manual_seed(seed)
