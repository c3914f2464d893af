"""A recipe from a file and the command line, and back to TOML.

`load("recipe.toml", ["--loss.penalty.name", "none"])` reads the file, applies the overrides, and validates the
whole. An unknown key is an error that names the nearest match. `dump(config)` is the resolved recipe as TOML;
`holdfast train` writes it to the run folder, and reading it back gives an equal config.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from holdfast.agent.tools import PRESETS
from holdfast.base import section
from holdfast.base.errors import CheckpointError, ConfigError, nearest_name, raise_all
from holdfast.base.importing import search_in
from holdfast.base.refusals import explain
from holdfast.base.run_folder import CONFIG, is_run
from holdfast.base.section import field_values, setting_values
from holdfast.methods.registry import Methods
from holdfast.recipe.code import code_of
from holdfast.recipe.config import Config
from holdfast.recipe.overrides import UNSET, assign, clears, parse_overrides, read_toml, unset
from holdfast.recipe.paths import in_folder, is_path

BUNDLED = Path(__file__).parent / "bundled"
"""The folder of the bundled recipes."""

PASSAGES = {"retrieval.corpus", "retrieval.index", "retrieval.url"}
"""Ways to the passages. What a file or a command line names of them replaces all that a recipe below it names."""


def bundled() -> dict[str, Path]:
    """Name without `.toml` -> file, for each bundled recipe."""
    return {path.stem: path for path in sorted(BUNDLED.glob("*.toml"))}


def find_recipe(recipe: str) -> Path:
    """The TOML file of a recipe, given as a path or as the name of a bundled one. Raises `ConfigError`."""
    path, known = Path(recipe), bundled()
    if path.is_file() or (path.exists() and recipe not in known):  # `runs/flaky` does not hide the recipe `flaky`
        return path
    if recipe in known:
        return known[recipe]
    if path.suffix == ".toml" and path.stem in known and path.parent.name in ("", "recipes"):
        return known[path.stem]  # `recipes/flaky.toml`, typed outside a checkout
    remedy = nearest_name(path.stem, known, f"give the path of a TOML file, or one of {', '.join(known)}")
    raise ConfigError(f"there is no recipe {recipe!r}; {remedy}", hint="holdfast recipe list")


def load(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """The config of a TOML file (None: all defaults) with `overrides` such as `["--train.steps", "50"]` applied.

    A file that begins with `extends = "NAME"` changes another: a bundled recipe, or a file, by its path relative to
    this one. `unset = ["section.key"]` beside it takes settings of that recipe out, as `--unset section.key` does.
    Paths in a file are relative to its folder. Those of a run are absolute, those of bundled recipes the user's.

    >>> load(overrides=["--train.steps", "50", "--loss.penalty.name=none", "--track.tensorboard"]).train.steps
    50

    Raises `ConfigError`, which names every problem at once.
    """
    chosen: dict[str, Any] = {} if path is None else _with_bases(Path(path))
    values = parse_overrides(overrides, Config)
    _apply(chosen, values)
    data: dict[str, Any] = {}
    for name, value in chosen.items():
        assign(data, name, value)
    config = validate(data, where="" if path is None else str(path), overridden=tuple(values))
    if config.run.code is not None and code_of(config):
        search_in(config.run.code)
    return config


def load_run(run_dir: Path, overrides: Sequence[str] = ()) -> Config:
    """The recipe that a run began with, with overrides. Raises `CheckpointError` where there is no run, or no
    recipe."""
    if not is_run(run_dir):
        raise CheckpointError(
            f"{run_dir} is not a run folder: it has no {CONFIG}. Give the folder that `holdfast train` named"
        )
    if (run_dir / CONFIG).stat().st_size == 0:  # which is a recipe too: the default one
        raise CheckpointError(
            f"{run_dir / CONFIG} is empty, so the recipe of this run is lost. Restore the file, or start the run "
            "again with --overwrite"
        )
    return load(run_dir / CONFIG, overrides)


def _with_bases(path: Path) -> dict[str, Any]:
    """The settings of a file by dotted name, on top of those of the recipe it extends, which may extend another."""
    files: dict[Path, dict[str, Any]] = {}
    named = ""
    while True:
        try:
            values, base = _with_base(path)
        except ConfigError as error:
            raise ConfigError(f"{named}{error}") if named else error from None
        files[path.resolve()] = values
        if base is None:
            break
        named = f"{path}: extends = {base!r}"
        path = BUNDLED / f"{base}.toml" if (BUNDLED / f"{base}.toml").is_file() else path.parent / base
        if path.resolve() in files:
            raise ConfigError(f"{named} leads back to this file; extend a recipe that does not extend this one")
        named += ": "
    extended: dict[str, Any] = {}
    for values in reversed(files.values()):
        _apply(extended, values)
    return extended


def _with_base(path: Path) -> tuple[dict[str, Any], str | None]:
    """What a file says of settings, by dotted name, and the name of the recipe it extends."""
    data = read_toml(path)
    base = data.pop("extends", None)
    if not isinstance(base, str | None) or "\0" in (base or ""):
        raise ConfigError(f"{path}: extends = {section.as_toml(base)} is not the name of a recipe, in quotes")
    values = unset(data.pop("unset", []), Config, f"{path}: unset") | dict(_leaves(data))
    as_it_is = path.name == CONFIG or path.parent == BUNDLED  # absolute in a run; of bundled ones the user's
    return in_folder(Path() if as_it_is else path.parent, values), base


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of every setting in tables; of an unknown one too, which validation will name."""
    for key, value in table.items():
        info = section.setting(Config, prefix + key)
        if isinstance(value, dict) and info is None:
            if not value and section.setting(Config, f"{prefix}{key}.on"):
                yield f"{prefix}{key}.on", True  # the empty table of a method
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, None if info and clears(value, info.annotation) else value


def _apply(data: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Put settings by dotted name into others. What belonged to a choice that they change is dropped first."""
    given = {name for name, value in values.items() if value is not None and value is not UNSET}
    if passages := given & PASSAGES:  # they are other ways to the passages than those of the recipe
        _drop(data, *(PASSAGES - passages))
    default = setting_values(Config())
    chosen = {name: default.get(name) if value is UNSET else value for name, value in values.items()}
    before = data.get("data.train", default["data.train"])
    train = chosen.get("data.train", before)
    if train != before and not (is_path("data.train", train) and is_path("data.train", before)):
        _drop(data, "world.", "faults.", "data.dev", "data.test")  # the recipe now has another task set
    if chosen.get("loss.advantage", "gae") != "gae":
        _drop(data, "critic.", "reward.kl")  # the recipe has no critic now, whose alone these are
    penalty = data.get("loss.penalty.name", "llds")
    if chosen.get("loss.penalty.name", penalty) != penalty:
        _drop(data, "loss.penalty.")  # settings of another penalty
    if "protocol.preset" in chosen:
        former = PRESETS.get(str(data.get("protocol.preset", "clean")))
        if former is not None and data.get("protocol.max_turns") == former.max_turns:
            _drop(data, "protocol.max_turns")  # the default of the former preset, which a resolved recipe has
        if chosen["protocol.preset"] != "tools":
            _drop(data, "protocol.tools")
    if _is_another_prompt(data, chosen):
        _drop(data, "protocol.prompt", *["model.chat_template"] * _is_whole_prompt(data))
    data |= values
    _drop(data, *(name for name, value in values.items() if value is UNSET))


def _is_another_prompt(data: Mapping[str, Any], chosen: Mapping[str, Any]) -> bool:
    """Whether the prompt of a recipe does not go with the preset, or with the chat template, that is now chosen."""
    preset = data.get("protocol.preset", "clean")
    template = chosen.get("model.chat_template", "none")
    return chosen.get("protocol.preset", preset) != preset or (template != "none" and _is_whole_prompt(data))


def _is_whole_prompt(data: Mapping[str, Any]) -> bool:
    """Whether the prompt is written to do without a chat template."""
    return "protocol.prompt" in data and data.get("model.chat_template") == "none"


def _drop(data: dict[str, Any], *names: str) -> None:
    """Drop settings; a name that ends with a dot is a section."""
    sections = tuple(name for name in names if name.endswith("."))
    for name in [name for name in data if name in names or name.startswith(sections)]:
        del data[name]


def validate(data: Mapping[str, Any], *, where: str = "", overridden: Sequence[str] = ()) -> Config:
    """`data` as a `Config`. Raises one `ConfigError` for all problems, unknown names with the nearest match.

    `where` is the file they are in; settings in `overridden` came from the command line, and errors show them as such:
    what none of its own settings caused is not blamed on the file.
    """
    try:
        return Config.model_validate(dict(data))
    except ValidationError as error:
        problems = explain(error.errors(include_url=False), Config, overridden)
    typed = all(any(f"--{name}" in problem for name in overridden) for problem in problems)
    raise_all("these settings cannot work", problems, where="" if typed else where)
    raise AssertionError("pydantic refused it without a reason")


def on_one_line(value: Any) -> str:
    """A value as TOML, tables and lists on one line.

    >>> on_one_line({"my_code:brevity": 0.2, "words": ("a", True)})
    '{ "my_code:brevity" = 0.2, "words" = ["a", true] }'
    """
    if isinstance(value, Mapping):
        items = ", ".join(f"{on_one_line(key)} = {on_one_line(item)}" for key, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(on_one_line, value))}]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").strip()


def dump(config: Config) -> str:
    """The config as TOML. Keys that are None, and sections and methods that are not used, are left out: they read back
    equal."""
    unused: dict[str, Any] = dict.fromkeys(config.unused(), True)
    methods = field_values(config.loss.methods)
    untouched = {name for name, method in methods.items() if method == Methods.model_fields[name].default}
    unused["loss"] = {"methods": untouched if len(untouched) < len(methods) else True}
    return tomli_w.dumps(config.model_dump(exclude_none=True, exclude=unused))
