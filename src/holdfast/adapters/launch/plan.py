"""The plan that a translation gives, and writing it to a folder."""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from holdfast.adapters.launch.view import Machines, Recipe, launch_of
from holdfast.base.errors import ConfigError, DataError, raise_all
from holdfast.hosts import HOSTS
from holdfast.hosts.host import Noted, Option, Refused
from holdfast.recipe import Config, absolute
from holdfast.recipe.validation import code_errors
from holdfast.tasks.opening import open_tasks
from holdfast.tasks.task_set import Questions


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
    launch = launch_of(host)
    refuse(host, code_errors(config))
    config = absolute(config)
    recipe = Recipe(host, config, machines or Machines(), open_tasks(config))
    refuse(HOSTS[host].known_as, (*recipe.fated(Refused), *launch.problems(recipe)))
    options = tuple(launch.options(recipe))
    writer = importlib.import_module(f"holdfast.adapters.launch.{host}_files").written
    notes = (*recipe.fated(Noted), *launch.differences(recipe))
    return Plan(host=host, options=options, notes=notes, **writer(recipe, options))


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


def refuse(host: str, problems: Iterable[str]) -> None:
    """Raise one `ConfigError` for all problems, if there are any."""
    raise_all(f"this recipe cannot run in {host} as it is", problems)


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
