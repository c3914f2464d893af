"""A recipe as the tables of `holdfast.hosts` read it.

Hosts count K differently, `train.optimizer_steps_per_rollout`, with which every rollout is used in one of K steps:

    TRL    K = steps_per_generation × num_iterations / gradient_accumulation_steps
    verl   K = train_batch_size / ppo_mini_batch_size × ppo_epochs, a mini-batch counted in questions: verl multiplies
           it by rollout.n. (Search-R1's own fork does not, so that its `ppo_mini_batch_size=256` with 512 × 5 rollouts
           is 10 steps there and 2 here.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from holdfast.adapters.verl_losses import LOSSES, loss_name
from holdfast.base.errors import ConfigError
from holdfast.base.section import as_toml
from holdfast.hosts import HOSTS
from holdfast.hosts.host import Launch, Noted, Option, Refused, Translation
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
    """A recipe and its machines: the sections by name, and what follows from several."""

    host: str
    config: Config
    machines: Machines
    tasks: TaskSet

    def __getattr__(self, section: str) -> Any:
        return getattr(self.config, section)

    @cached_property
    def values(self) -> dict[str, Any]:
        """Every setting by its dotted name."""
        return setting_values(self.config)

    @cached_property
    def changed(self) -> list[str]:
        """Names of the settings whose value is not the default."""
        default = setting_values(Config())
        return [name for name, value in self.values.items() if name not in default or value != default[name]]

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

    @property
    def correct_above(self) -> float | None:
        """The reward above which a rollout is correct: halfway between the best incorrect and the worst correct one.

        None if the two overlap, or may overlap: values of a custom part are not known. A correct answer has an F1 of 1.
        """
        reward = self.config.reward
        if any(reward.custom.values()):
            return None
        others = [reward.format, reward.retrieval]
        best_incorrect = sum(max(weight, 0.0) for weight in [reward.f1, *others])
        worst_correct = reward.em + reward.f1 + sum(min(weight, 0.0) for weight in [*others, reward.thrift])
        return (best_incorrect + worst_correct) / 2 if worst_correct > best_incorrect else None

    # ---- its optimizer steps

    @cached_property
    def trl_cut(self) -> dict[str, int]:
        """How TRL divides a rollout batch: K optimizer steps of equal size, in forward passes that hold
        `train.micro_batch_tokens` full-length rows.

        >>> from holdfast.tasks.opening import open_tasks
        >>> config = Config.model_validate({"train": {"questions": 512}})
        >>> list(Recipe("trl", config, Machines(gpus=8), open_tasks(config)).trl_cut.values())
        [4, 8, 80]
        """
        train = self.config.train
        rows = train.questions * train.group_size // (train.optimizer_steps_per_rollout * self.machines.total)
        fit = max(1, train.micro_batch_tokens // self.config.protocol.max_total_tokens)
        per_device = max(size for size in range(1, min(fit, rows) + 1) if rows % size == 0)
        return {
            "per_device_train_batch_size": per_device,
            "gradient_accumulation_steps": rows // per_device,
            "steps_per_generation": rows // per_device * train.optimizer_steps_per_rollout,
        }

    @property
    def verl_mini_batch(self) -> int:
        """`ppo_mini_batch_size`, in questions."""
        return self.config.train.questions // self.config.train.optimizer_steps_per_rollout

    @property
    def trl_schedule_problem(self) -> str | None:
        """Why TRL cannot take K equal steps, and the nearest settings it can take; None if it can."""
        questions, size = self.config.train.questions, self.config.train.group_size
        return self._schedule_problem(
            lambda questions, steps: questions * size % (steps * self.machines.total) == 0,
            f"TRL needs the same number of rollouts in every step and on every GPU, but {questions} × {size} rollouts "
            "cannot be divided like that",
        )

    @property
    def verl_schedule_problem(self) -> str | None:
        """Why verl cannot take K equal steps, and the nearest settings it can take; None if it can."""

        def fits(questions: int, steps: int) -> bool:
            mini, rest = divmod(questions, steps)
            return rest == 0 and mini > 0 and mini * self.config.train.group_size % self.machines.total == 0

        return self._schedule_problem(
            fits,
            "verl needs the same number of questions in every step, and their rollouts must divide evenly over the "
            f"GPUs; {self.config.train.questions} questions cannot be divided like that",
        )

    def _schedule_problem(self, fits: Callable[[int, int], bool], why: str) -> str | None:
        train, machines = self.config.train, self.machines
        questions, steps = train.questions, train.optimizer_steps_per_rollout
        if fits(questions, steps):
            return None
        # A multiple of both always fits. K = 1 is not proposed: the penalties would be inert.
        most = questions + steps * machines.total
        ways = [f"train.questions = {_nearest(questions, (q for q in range(1, most + 1) if fits(q, steps)))}"]
        fewer = [k for k in range(2, questions * train.group_size + 1) if fits(questions, k)]
        if fewer:
            ways.append(f"train.optimizer_steps_per_rollout = {_nearest(steps, fewer)}")
        return (
            f"train.optimizer_steps_per_rollout = {steps} with train.questions = {questions} on {machines}: {why}. The "
            f"nearest that can: {' or '.join(ways)}"
        )

    # ---- its methods and penalty

    @cached_property
    def translated(self) -> tuple[Translation, ...]:
        """What each method of the recipe is in the host."""
        return tuple(in_host(method, self.host, self) for method in self.config.loss.methods.used)

    @property
    def method_options(self) -> list[Option]:
        """Options of the host for the methods."""
        return [option for part in self.translated for option in part.options]

    @property
    def method_problems(self) -> list[str]:
        """A sentence for each method, or setting of one, that the host does not have."""
        return [problem for part in self.translated for problem in part.problems]

    @property
    def method_notes(self) -> list[str]:
        """A sentence for each thing that the host does differently in a method."""
        return [note for part in self.translated for note in part.notes]

    @property
    def verl_loss(self) -> str | None:
        """The penalty's name in verl's registry; None if it has none."""
        return loss_name(self.config.loss.penalty)

    @property
    def verl_penalty_settings(self) -> tuple[str, ...]:
        """Settings of the penalty that verl's configuration decides."""
        return LOSSES[str(self.verl_loss)].settings

    # ---- sentences

    @staticmethod
    def as_toml(value: Any) -> str:
        """A value as a recipe writes it."""
        return as_toml(value)

    def fated(self, kind: type[Noted | Refused]) -> Iterator[str]:
        """A sentence for each setting that the recipe changes, and of which the host's table says this."""
        for name in self.changed:
            if isinstance(why := launch_of(self.host).fate(name), kind):
                yield f"{name} = {self.values[name]!r}: {why}"

    def truncation(self, remedy: str) -> Iterator[str]:
        """A note on a truncated sampler whose loss is over the whole vocabulary. `remedy`: what to do, before
        "sampling.top_p = 1"."""
        sampling = self.config.sampling
        if (sampling.top_p < 1 or sampling.top_k) and not sampling.mask_logprobs:
            yield (
                f"top_p = {sampling.top_p:g} and top_k = {sampling.top_k} truncate the sampler, while the log-probs of "
                f"the loss are over the whole vocabulary: that mismatch alone can make a run collapse. {remedy} "
                "sampling.top_p = 1 and sampling.top_k = 0, unless you repeat a published run"
            )

    @property
    def local_notes(self) -> Iterator[str]:
        """A note for what was found on this machine, and the host must find too: a stored model, and each import path
        of the recipe, which `plan` has imported."""
        config = self.config
        if not Path(config.model.path).is_dir() and stored(config.model.path):
            yield (
                f"model.path = {config.model.path!r}: the model is in holdfast's cache, so the files name its folder "
                f"{self.model_path}, and need no hub. On another machine write the hub id, or a folder there"
            )
        penalty = [config.loss.penalty.path] if isinstance(config.loss.penalty, CustomPenalty) else []
        for path in (*penalty, *config.reward.custom):
            module = path.partition(":")[0]
            yield (
                f"{path} was imported to check it. Python must find {module} where this runs too; install it there, "
                "or let PYTHONPATH in run.sh name its folder"
            )


def _nearest(target: int, numbers: Iterable[int]) -> int:
    """Of several numbers the nearest; of two equally near the smaller."""
    return min(numbers, key=lambda n: (abs(n - target), n))


def launch_of(host: str) -> Launch:
    """How recipes are translated for a host. Raises `ConfigError` for one that they are not."""
    known = HOSTS.get(host)
    if known is None or known.launch is None:
        able = [name for name, one in HOSTS.items() if one.launch is not None]
        raise ConfigError(f"there is no launcher for {host!r}; choose {' or '.join(able)}")
    return known.launch


def in_host(method: Method, host: str, recipe: Any) -> Translation:
    """A method in a host."""
    known = launch_of(host).methods.get(method.name, method.elsewhere)
    if isinstance(known, str):
        return Translation(problems=(f"[{method.table()}]: {known}. Leave it out, or use `holdfast train`",))
    return known(method, recipe)
