"""Translating a recipe for a host, and writing the plan to a folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from holdfast.adapters.launch import trl_files, trl_options, verl_files, verl_options
from holdfast.adapters.launch.recipe import Fates, Launch, Machines, Noted, Plan, Recipe, Refused, fate
from holdfast.base.errors import ConfigError, raise_all
from holdfast.base.section import Refusal, sentence
from holdfast.hosts import HOSTS
from holdfast.recipe import Config, absolute
from holdfast.recipe.config import code_errors
from holdfast.tasks.opening import open_tasks

LAUNCHES: Mapping[str, Launch] = {
    host: Launch(options.options, options.FATES, options.method, options.problems, options.differences, files.planned)
    for host, options, files in (("trl", trl_options, trl_files), ("verl", verl_options, verl_files))
}
"""Hosts that recipes are translated for, by their ids."""


def launch_of(host: str) -> Launch:
    """How recipes are translated for a host. Raises `ConfigError` for one that they are not."""
    if host not in LAUNCHES:
        raise ConfigError(f"there is no launcher for {host!r}; choose {' or '.join(LAUNCHES)}")
    return LAUNCHES[host]


def plan(host: str, config: Config, machines: Machines | None = None) -> Plan:
    """The recipe translated for `host`, `trl` or `verl`. Reads no data, and imports the code that the recipe names.

    Raises one `ConfigError` that holds every reason why the recipe cannot run there.
    """
    launch = launch_of(host)
    refuse(host, code_errors(config))
    config = absolute(config)
    recipe = Recipe(config, machines or Machines(), open_tasks(config))
    refuse(HOSTS[host].known_as, (*_fated(recipe, launch.fates, Refused), *launch.problems(recipe)))
    notes = (*_fated(recipe, launch.fates, Noted), *launch.differences(recipe))
    return launch.plan(recipe, tuple(launch.options(recipe)), notes)


def _fated(recipe: Recipe, fates: Fates, kind: type[Noted | Refused]) -> Iterator[str]:
    """A sentence for each setting that the recipe changes, and of which the host's table says this."""
    for name in recipe.changed:
        if isinstance(why := fate(fates, name), kind):
            yield f"{name} = {recipe.values[name]!r}: {why}"


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


def refuse(host: str, problems: Iterable[Refusal | str]) -> None:
    """Raise one `ConfigError` for all problems, if there are any."""
    raise_all(f"this recipe cannot run in {host} as it is", map(sentence, problems))
