"""A recipe with its machines, and what follows from it for every host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from holdfast.adapters.launch.translation import Option, Translation
from holdfast.base.section import Refusal
from holdfast.hosts.host import Host
from holdfast.methods.penalties import CustomPenalty
from holdfast.methods.registry import Method
from holdfast.model.models import stored
from holdfast.recipe import Config, setting_values
from holdfast.tasks.task_set import TaskSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The machines the host runs on. They are not in the recipe, which is the same on one GPU and on eight."""

    gpus: int = 1
    """GPUs of each machine, or processes if it has none."""
    nodes: int = 1
    """Machines."""

    @property
    def total(self) -> int:
        """GPUs of all machines."""
        return self.gpus * self.nodes

    def __str__(self) -> str:
        gpus = f"{self.gpus} GPU{'s' if self.gpus > 1 else ''}"
        return gpus if self.nodes == 1 else f"{self.nodes} machines with {gpus} each"


@dataclass(frozen=True)
class Recipe:
    """A recipe, the machines that it runs on, and its task set."""

    config: Config
    machines: Machines
    tasks: TaskSet

    @cached_property
    def values(self) -> dict[str, object]:
        """Every setting by its dotted name."""
        return setting_values(self.config)

    @cached_property
    def changed(self) -> list[str]:
        """Names of the settings whose value is not the default."""
        default = setting_values(Config())
        return [name for name, value in self.values.items() if name not in default or value != default[name]]

    def refusal(self, settings: str, why: str, instead: str) -> Refusal:
        """A refusal of settings, whose names have blanks between them."""
        return Refusal({name: self.values[name] for name in settings.split()}, why, instead)

    @property
    def model_path(self) -> str:
        """`model.path`; of a hub id that `holdfast model get` has stored, the folder."""
        folder = stored(self.config.model.path)
        return self.config.model.path if folder is None else str(folder.resolve())

    @property
    def trackers(self) -> list[str]:
        """The trackers of the recipe, by the names that hosts use."""
        track = self.config.track
        return [name for name, used in (("wandb", track.wandb), ("tensorboard", track.tensorboard)) if used]


def same(host: Host, recipe: Recipe, *settings: str) -> Iterator[Option]:
    """The options that have the value of a setting, by the host's names."""
    for setting in settings:
        yield Option(host.settings[setting], recipe.values[setting], setting)


def methods(recipe: Recipe, translate: Callable[[Method, Config], Translation]) -> Translation:
    """All methods of a recipe as one translation."""
    parts = [translate(method, recipe.config) for method in recipe.config.loss.methods.used]
    return Translation(
        options=tuple(option for part in parts for option in part.options),
        problems=tuple(problem for part in parts for problem in part.problems),
        notes=tuple(note for part in parts for note in part.notes),
    )


def schedule_problem(recipe: Recipe, fits: Callable[[int, int], bool], why: str) -> Iterator[Refusal]:
    """A refusal where a host cannot take K equal optimizer steps, with the nearest settings with which it can.

    Args:
        fits: whether the host can take so many steps for so many questions.
        why: what it needs, for the sentence.
    """
    train, machines = recipe.config.train, recipe.machines
    questions, steps = train.questions, train.optimizer_steps_per_rollout
    if fits(questions, steps):
        return
    # A multiple of both always fits. K = 1 is not proposed: the penalties would be inert.
    largest = questions + steps * machines.total
    ways = [f"train.questions = {_nearest(questions, (q for q in range(1, largest + 1) if fits(q, steps)))}"]
    fewer = [k for k in range(2, questions * train.group_size + 1) if fits(questions, k)]
    if fewer:
        ways.append(f"train.optimizer_steps_per_rollout = {_nearest(steps, fewer)}")
    yield recipe.refusal(
        "train.optimizer_steps_per_rollout train.questions",
        f"on {machines}, {why}",
        f"The nearest that can: {' or '.join(ways)}",
    )


def _nearest(target: int, numbers: Iterable[int]) -> int:
    """Of several numbers the nearest; of two equally near the smaller."""
    return min(numbers, key=lambda n: (abs(n - target), n))


def truncation(config: Config, remedy: str) -> Iterator[str]:
    """A note on a truncated sampler whose loss is over the whole vocabulary. `remedy`: what to do, before
    "sampling.top_p = 1"."""
    sampling = config.sampling
    if (sampling.top_p < 1 or sampling.top_k) and not sampling.mask_logprobs:
        yield (
            f"top_p = {sampling.top_p:g} and top_k = {sampling.top_k} truncate the sampler, while the log-probs of "
            f"the loss are over the whole vocabulary: that mismatch alone can make a run collapse. {remedy} "
            "sampling.top_p = 1 and sampling.top_k = 0, unless you repeat a published run"
        )


def local_notes(recipe: Recipe) -> Iterator[str]:
    """A note for what was found on this machine, and the host must find too: a stored model, and each import path of
    the recipe, which `plan` has imported."""
    config = recipe.config
    if not Path(config.model.path).is_dir() and stored(config.model.path):
        yield (
            f"model.path = {config.model.path!r}: the model is in holdfast's cache, so the files name its folder "
            f"{recipe.model_path}, and need no hub. On another machine write the hub id, or a folder there"
        )
    penalty = [config.loss.penalty.path] if isinstance(config.loss.penalty, CustomPenalty) else []
    for path in (*penalty, *config.reward.custom):
        module = path.partition(":")[0]
        yield (
            f"{path} was imported to check it. Python must find {module} where this runs too; install it there, "
            "or let PYTHONPATH in run.sh name its folder"
        )
