"""A recipe with its machines, what follows from it for every host, and what it becomes there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path

from holdfast.base.errors import DataError
from holdfast.base.section import Refusal
from holdfast.hosts.host import Host
from holdfast.methods.penalties import CustomPenalty
from holdfast.methods.registry import Method
from holdfast.model.hub import stored
from holdfast.recipe import Config, setting_values
from holdfast.tasks.task_set import Questions, TaskSet


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


# ---- what it becomes in a host: options, or why it cannot run there


class Code(str):
    """A value that is code of the host, and is written without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Here(str):
    """A path in the launch folder, or a full path. The command writes the full path: workers run in other folders."""

    __slots__ = ()


class Reference(str):
    """A key of the host's own configuration, which it looks up."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a host; `why` names the settings it comes from, or the reason for its value."""

    name: str
    value: object
    why: str


class Noted(str):
    """What is reported of a setting that has no meaning in the host, if it is not the default."""

    __slots__ = ()


class Refused(str):
    """Why the host has nothing like a setting, and the nearest to it. An error, if it is not the default."""

    __slots__ = ()


Fates = Mapping[str, Noted | Refused]
"""What becomes of a setting, or of a section's settings, that are neither options nor in a file of the launch."""

ANYWHERE: Fates = {
    "train.anchor_every": Refused(
        "the host's loss has log-probs of the policy that sampled, but not of an older one. Leave it out, or use "
        "`holdfast train`"
    ),
    "reward.judge": Refused(
        "the host does not have holdfast's judge. Set reward.judge.weight = 0 and give the host a reward function "
        "that asks one, or use `holdfast train`"
    ),
}
"""Settings that only the local trainer has."""


def fate(fates: Fates, setting: str) -> Noted | Refused | None:
    """The entry for a setting: that of its own name, or else of its section."""
    return fates.get(setting) or fates.get(setting.rpartition(".")[0])


@dataclass(frozen=True, slots=True)
class Translation:
    """A method in a host: its options there, or why it cannot be."""

    options: tuple[Option, ...] = ()
    problems: tuple[Refusal | str, ...] = ()
    """What the host cannot do."""
    notes: tuple[str, ...] = ()
    """A sentence for each thing that the host does differently."""
    absent: str = ""
    """Why the host does not have the method."""


def absent(method: Method, reasons: Mapping[str, str]) -> Translation:
    """A method that a host does not have, for the reason under its name, or for the method's own."""
    why = reasons.get(method.name, method.elsewhere)
    problem = f"[{method.table()}]: {why}. Leave it out, or use `holdfast train`"
    return Translation(problems=(problem,), absent=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A recipe for one host."""

    host: str
    options: tuple[Option, ...]
    notes: tuple[str, ...]
    """A sentence for each thing that the host does differently, or not at all."""
    files: Mapping[str, str]
    """Text files by their path in the folder."""
    data: Mapping[str, str]
    """Files that `write_data` writes: path in the folder -> their source, in words."""
    write_data: Callable[[Path], None] = field(compare=False)
    """Writes the questions into a folder. Raises `DataError` for a data file that cannot be used."""
    schedule: str
    """How K, the optimizer steps per rollout batch, follows from options of the host."""
    first: tuple[str, ...]
    """Commands to run before `run.sh`, in the folder."""

    @property
    def values(self) -> dict[str, object]:
        """Options by name."""
        return {option.name: option.value for option in self.options}


@dataclass(frozen=True, slots=True)
class Launch:
    """How a recipe becomes a run of the host."""

    options: Callable[[Recipe], Iterator[Option]]
    """The options, in the order of the file that has them."""
    fates: Fates
    method: Callable[[Method, Config], Translation]
    problems: Callable[[Recipe], Iterator[Refusal | str]]
    """Combinations of settings that the host cannot do."""
    differences: Callable[[Recipe], Iterator[str]]
    """A sentence for each thing that the host does differently."""
    plan: Callable[[Recipe, tuple[Option, ...], tuple[str, ...]], Plan]
    """(recipe, options, notes) -> all of it, with the files of the folder."""


# ---- what the files of a launch folder are made from: templates that are filled in, and the questions


_PLACE = re.compile(r"«(\w+)»")
_IF = re.compile(r"«\?(\w+)»")


def filled(template: str, **texts: object) -> str:
    """A file of `launch/templates`, with a text at each «place». A line that begins with «?place» is there only if the
    text of that place is not empty."""
    lines = []
    for line in (files("holdfast.adapters.launch") / "templates" / template).read_text(encoding="utf-8").split("\n"):
        condition = _IF.match(line)
        if condition is None or texts[condition[1]]:
            rest = line[condition.end() :] if condition else line
            lines.append(_PLACE.sub(lambda match: str(texts[match[1]]), rest))
    return "\n".join(lines)


def questions_for(recipe: Recipe, host: str) -> Questions:
    """The questions of the task set.

    Raises `DataError` for a file that cannot be used, and for fewer questions than a rollout batch: both hosts leave
    out a batch that is not full, so they would not train at all.
    """
    questions, train = recipe.tasks.questions(), recipe.config.train
    if len(questions.train) < train.questions:
        raise DataError(
            f"data.train = {recipe.config.data.train!r} leaves {len(questions.train)} questions to train on, but a "
            f"rollout batch takes train.questions = {train.questions} and {host} skips a batch that is not full; "
            "lower it"
        )
    return questions
