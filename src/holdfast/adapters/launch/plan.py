"""The plan that a translation gives, writing it to a folder, and what the translations of both hosts share."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from holdfast.base.errors import ConfigError, DataError, raise_all
from holdfast.data import factbook
from holdfast.data.files import read_questions
from holdfast.data.questions import Example, hold_out
from holdfast.methods.method import Option, Translation
from holdfast.methods.penalties import CustomPenalty
from holdfast.model.models import stored
from holdfast.recipe import Config, absolute, require, setting_names, setting_values
from holdfast.recipe.paths import QUESTIONS
from holdfast.recipe.validation import code_errors

HOSTS = ("trl", "verl")

LOCAL_ONLY: Mapping[str, str] = {
    "train.anchor_every": "the host's loss has log-probs of the policy that sampled, but not of an older one. Leave it "
    "out, or use `holdfast train`",
}
"""Settings that only the local trainer has -> why a host refuses them. Methods say it of themselves."""

METHODS = frozenset(name for name in setting_names() if name.startswith("loss.methods."))
"""Settings of methods, which each method translates itself."""

CRITIC = frozenset(name for name in setting_names() if name.startswith("critic.") or name == "reward.kl")
"""Settings of PPO, which a recipe may have with `loss.advantage = "gae"` only."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A recipe for one host."""

    host: str
    options: tuple[Option, ...]
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
    notes: tuple[str, ...]
    """A sentence for each thing that the host does differently, or not at all."""

    @property
    def values(self) -> dict[str, Any]:
        """Options by name."""
        return {option.name: option.value for option in self.options}


def plan(host: str, config: Config, machines: Machines | None = None) -> Plan:
    """The recipe translated for `host`, `trl` or `verl`. Reads no data, and imports the code that the recipe names.

    Raises one `ConfigError` that holds every reason why the recipe cannot run there.
    """
    if host not in HOSTS:
        raise ConfigError(f"there is no launcher for {host!r}; choose {' or '.join(HOSTS)}")
    refuse(host, code_errors(config))
    translate: Callable[[Config, Machines], Plan] = importlib.import_module(
        f"holdfast.adapters.launch.{host}"
    ).translate
    return translate(absolute(config), machines or Machines())


def write_plan(plan: Plan, folder: Path, *, overwrite: bool = False) -> None:
    """Write the files and the questions of a plan into `folder`, which is created if necessary.

    With `overwrite` the folder may hold files: those of the plan are replaced, others stay. Raises `ConfigError` for a
    folder that is not empty or cannot be written, `DataError` for questions that cannot be read.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder} is a file; name a folder")
    existed = folder.is_dir()
    if existed and any(folder.iterdir()) and not overwrite:
        raise ConfigError(f"the folder {folder} is not empty; add --overwrite, or name another with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plan.write_data(folder)
        for name, text in plan.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if path.suffix == ".sh":
                path.chmod(path.stat().st_mode | 0o111)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error.strerror}); name another folder with --out") from error
    finally:
        if not existed and folder.is_dir() and not any(folder.iterdir()):
            shutil.rmtree(folder)  # after an error before the first file


def section(name: str, *, but: tuple[str, ...] = ()) -> list[str]:
    """The dotted names of the settings in a section, without the keys in `but`.

    >>> section("sampling", but=("top_k", "mask_logprobs"))
    ['sampling.temperature', 'sampling.top_p']
    """
    return [
        dotted for dotted in setting_names() if dotted.rpartition(".")[0] == name and dotted.split(".")[-1] not in but
    ]


def model_path(config: Config) -> str:
    """`model.path`; of a hub id that `holdfast model get` has stored, the folder."""
    folder = stored(config.model.path)
    return config.model.path if folder is None else str(folder.resolve())


def code_folder(config: Config) -> Iterator[str]:
    """The line of `run.sh` with which Python finds the code of the recipe."""
    if config.run.code is not None:
        yield f"export PYTHONPATH={quote(config.run.code)}${{PYTHONPATH:+:$PYTHONPATH}}  # run.code"


def trackers(config: Config) -> list[str]:
    """The trackers of the recipe, by the names that both hosts use."""
    track = config.track
    return [name for name, used in (("wandb", track.wandb), ("tensorboard", track.tensorboard)) if used]


def changed(config: Config) -> list[str]:
    """Names of the settings whose value is not the default."""
    default = setting_values(Config())
    return [name for name, value in setting_values(config).items() if name not in default or value != default[name]]


def noted(config: Config, table: Mapping[str, str]) -> list[str]:
    """A sentence for each setting of the table that the recipe changes."""
    values, names = setting_values(config), changed(config)
    return [f"{name} = {values[name]!r}: {why}" for name, why in table.items() if name in names]


def truncation(config: Config, remedy: str = "Set") -> Iterator[str]:
    """A note on a truncated sampler whose loss is over the whole vocabulary. `remedy`: what to do, ending in "or"."""
    sampling = config.sampling
    if (sampling.top_p < 1 or sampling.top_k) and not sampling.mask_logprobs:
        yield (
            f"top_p = {sampling.top_p:g} and top_k = {sampling.top_k} truncate the sampler, while the log-probs of the "
            f"loss are over the whole vocabulary: that mismatch alone can make a run collapse. {remedy} sampling.top_p "
            "= 1 and sampling.top_k = 0, unless you repeat a published run"
        )


def methods_in(host: str, config: Config) -> Translation:
    """What the methods of the recipe are in a host, all together."""
    parts = [method.translated(host, config) for method in config.loss.methods.used]
    return Translation(
        options=tuple(option for part in parts for option in part.options),
        problems=tuple(problem for part in parts for problem in part.problems),
        notes=tuple(note for part in parts for note in part.notes),
    )


def local_notes(config: Config) -> Iterator[str]:
    """A note for what was found on this machine, and the host must find too: a stored model, and each import path of
    the recipe, which `plan` has imported."""
    if not Path(config.model.path).is_dir() and stored(config.model.path):
        yield (
            f"model.path = {config.model.path!r}: the model is in holdfast's cache, so the files name its folder "
            f"{model_path(config)}, and need no hub. On another machine write the hub id, or a folder there"
        )
    penalty = [config.loss.penalty.path] if isinstance(config.loss.penalty, CustomPenalty) else []
    for path in (*penalty, *config.reward.custom):
        module = path.partition(":")[0]
        yield (
            f"{path} was imported to check it. Python must find {module} where this runs too; install it there, or let "
            "PYTHONPATH in run.sh name its folder"
        )


def refuse(host: str, problems: Iterable[str]) -> None:
    """Raise one `ConfigError` for all problems, if there are any."""
    raise_all(f"this recipe cannot run in {host} as it is", problems)


def questions_of(path: str, split: str) -> Sequence[Example]:
    """The questions of a file, or those of the Factbook that the path names. Raises `DataError`."""
    return factbook.load_questions(path) if factbook.is_factbook(path) else read_questions(path, split=split).examples


def train_and_dev(config: Config, host: str) -> tuple[Sequence[Example], Sequence[Example]]:
    """The questions to train on and those to evaluate on while training, held out if the recipe names no dev file.

    Raises `ConfigError` for a missing file, `DataError` for one that cannot be used or has fewer questions than a
    rollout batch: both hosts leave out a batch that is not full, so they would not train at all.
    """
    data = config.data
    require(config, *QUESTIONS)
    train = questions_of(data.train, "train")
    train, dev = hold_out(train) if data.dev is None else (train, questions_of(data.dev, "dev"))
    if len(train) < config.train.questions:
        raise DataError(
            f"data.train = {data.train!r} leaves {len(train)} questions to train on, but a rollout batch takes "
            f"train.questions = {config.train.questions} and {host} skips a batch that is not full; lower it"
        )
    return train, dev
