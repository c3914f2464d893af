"""A recipe as the tables of `holdfast.hosts` read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

from holdfast.adapters.launch.schedule import (
    Machines,
    TrlSchedule,
    trl_schedule,
    trl_schedule_problem,
    verl_mini_batch,
    verl_schedule_problem,
)
from holdfast.adapters.verl_losses import LOSSES, loss_name
from holdfast.base.errors import ConfigError
from holdfast.base.section import as_toml
from holdfast.hosts import HOSTS
from holdfast.hosts.host import Launch, Noted, Option, Refused, Translation
from holdfast.methods.penalties import CustomPenalty
from holdfast.methods.registry import Method
from holdfast.model.models import stored
from holdfast.recipe import Config, Reward, setting_values


@dataclass(frozen=True)
class Recipe:
    """A recipe and its machines: the sections by name, and what follows from several."""

    host: str
    config: Config
    machines: Machines

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
        """The reward above which a rollout is correct."""
        return correct_above(self.config.reward)

    # ---- its optimizer steps

    @cached_property
    def cut(self) -> TrlSchedule:
        """How TRL divides a rollout batch."""
        return trl_schedule(self.config, self.machines)

    @property
    def trl_schedule_problem(self) -> str | None:
        """Why TRL cannot take K equal steps."""
        return trl_schedule_problem(self.config.train, self.machines)

    @property
    def mini_batch(self) -> int:
        """verl's mini-batch, in questions."""
        return verl_mini_batch(self.config.train)

    @property
    def verl_schedule_problem(self) -> str | None:
        """Why verl cannot take K equal steps."""
        return verl_schedule_problem(self.config.train, self.machines)

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
        """A sentence for each setting that the recipe changes, and of which the host's table says this, in the order
        of the table."""
        launch = launch_of(self.host)
        order = list(launch.others)
        fates = [(order.index(fate[0]), name, fate[1]) for name in self.changed if (fate := launch.fate(name))]
        for _, name, why in sorted(fates, key=itemgetter(0)):
            if isinstance(why, kind):
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


def correct_above(reward: Reward) -> float | None:
    """The reward above which a rollout is correct: halfway between the best incorrect and the worst correct one.

    None if the two overlap, or may overlap: values of a custom part are not known. A correct answer has an F1 of 1.

    >>> correct_above(Reward(em=1.0)), correct_above(Reward(em=0.1, format=0.5))
    (0.5, None)
    """
    if any(reward.custom.values()):
        return None
    others = [reward.format, reward.retrieval]
    best_incorrect = sum(max(weight, 0.0) for weight in [reward.f1, *others])
    worst_correct = reward.em + reward.f1 + sum(min(weight, 0.0) for weight in [*others, reward.thrift])
    return (best_incorrect + worst_correct) / 2 if worst_correct > best_incorrect else None
