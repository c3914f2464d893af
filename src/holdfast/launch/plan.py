"""The value a translation gives, and writing it to a folder."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.config import Config, setting_names, setting_values
from holdfast.config.validation import code_errors
from holdfast.errors import ConfigError, raise_all
from holdfast.penalties import CustomPenalty

HOSTS = ("trl", "verl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What the host runs on. A recipe does not say, because it is the same run on one GPU and on eight."""

    gpus: int = 1
    """GPUs, or processes without one, of each machine."""
    nodes: int = 1
    """Machines."""

    @property
    def total(self) -> int:
        return self.gpus * self.nodes

    def __str__(self) -> str:
        gpus = f"{self.gpus} GPU{'s' if self.gpus > 1 else ''}"
        return gpus if self.nodes == 1 else f"{self.nodes} machines with {gpus} each"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the host, and the settings of the recipe it comes from, or the reason it is set."""

    name: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A recipe for one host."""

    host: str
    options: tuple[Option, ...]
    files: Mapping[str, str]
    """Text files by their path in the folder."""
    data: Mapping[str, str]
    """What `write_data` writes: path in the folder, and where it comes from, in words."""
    write_data: Callable[[Path], None] = field(compare=False)
    """Writes the questions into a folder. Reads the recipe's data files: `DataError` when one cannot be used."""
    schedule: str
    """Where the host's optimizer steps per rollout batch come from, in its own words."""
    first: tuple[str, ...]
    """Commands to give before `run.sh`, in the folder."""
    notes: tuple[str, ...]
    """What has no meaning in the host, or a different one: a sentence each."""

    @property
    def values(self) -> dict[str, Any]:
        """Options by name."""
        return {option.name: option.value for option in self.options}


def plan(host: str, config: Config, machines: Machines | None = None) -> Plan:
    """The recipe translated for `host`, `trl` or `verl`. Reads no data.

    Raises one `ConfigError` that holds every reason why the recipe cannot run there.
    """
    if host not in HOSTS:
        raise ConfigError(f"there is no launcher for {host!r}; choose {' or '.join(HOSTS)}")
    refuse(host, code_errors(config))
    translate: Callable[[Config, Machines], Plan] = importlib.import_module(f"holdfast.launch.{host}").translate
    return translate(config, machines or Machines())


def write_plan(plan: Plan, folder: Path, *, overwrite: bool = False) -> None:
    """Write the files and the questions of a plan into `folder`, made if it is not there.

    With `overwrite` a folder that holds something is written into: files of the plan replace theirs, others stay.
    Raises `ConfigError` for a folder in use, `DataError` for questions that cannot be read.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder} is a file; name a folder")
    in_use = folder.is_dir() and any(folder.iterdir())
    if in_use and not overwrite:
        raise ConfigError(f"the folder {folder} is not empty; add --overwrite, or name another with --out")
    existed = folder.is_dir()
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
            shutil.rmtree(folder)  # what failed before the first file leaves nothing behind


def value_of(config: Config, setting: str) -> Any:
    """The value behind a dotted name.

    >>> value_of(Config(), "train.group_size")
    5
    """
    value: Any = config
    for part in setting.split("."):
        value = getattr(value, part)
    return value


def section(name: str, *, but: tuple[str, ...] = ()) -> list[str]:
    """The settings of a section, without the keys in `but`.

    >>> section("sampling", but=("top_k", "mask_logprobs"))
    ['sampling.temperature', 'sampling.top_p']
    """
    return [
        dotted for dotted in setting_names() if dotted.rpartition(".")[0] == name and dotted.split(".")[-1] not in but
    ]


def changed(config: Config) -> list[str]:
    """Settings whose value is not the schema's default."""
    default = setting_values(Config())
    return [name for name, value in setting_values(config).items() if name not in default or value != default[name]]


def noted(config: Config, table: Mapping[str, str]) -> list[str]:
    """A sentence for each setting of the table that the recipe changes."""
    names = changed(config)
    return [f"{name} = {value_of(config, name)!r}: {why}" for name, why in table.items() if name in names]


def refused(config: Config, table: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each setting of the table that is changed, in the recipe or in its custom penalty."""
    yield from noted(config, table)
    if isinstance(config.loss.penalty, CustomPenalty):
        term = config.loss.penalty.term
        differs = {"normalizer": term.normalizer != "policy", "answer_weight": term.uses_answer_mask}
        for key in differs:
            if differs[key] and (why := table.get(f"loss.penalty.{key}")):
                yield f"loss.penalty.settings: {key} = {getattr(term, key, None)!r}: {why}"


def truncation(config: Config) -> Iterator[str]:
    """What a truncated sampler does where log-probs are over the whole vocabulary, as in both hosts."""
    sampling = config.sampling
    if sampling.top_p < 1 or sampling.top_k:
        yield (
            f"top_p = {sampling.top_p:g} and top_k = {sampling.top_k} truncate the sampler, while the log-probs of the "
            "loss are over the whole vocabulary: that mismatch alone can make a run collapse. Set sampling.top_p = 1 "
            "and sampling.top_k = 0, unless you repeat a published run"
        )


def code_notes(config: Config) -> Iterator[str]:
    """What the recipe names by import path must be there where the host runs."""
    penalty = [config.loss.penalty.path] if isinstance(config.loss.penalty, CustomPenalty) else []
    for path in (*penalty, *config.reward.custom):
        module = path.partition(":")[0]
        yield f"{path}: Python must find {module} where this runs; install it, or add its folder to PYTHONPATH"


def refuse(host: str, problems: Iterable[str]) -> None:
    """Raise one `ConfigError` for all problems, if there are any."""
    raise_all(f"this recipe cannot run in {host} as it is", problems)
