"""Names, overrides and error sentences for a tree of pydantic models: the machinery behind `config.py`."""

from __future__ import annotations

import difflib
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic.fields import FieldInfo

from holdfast.errors import ConfigError

Root = type[BaseModel]
_DEEPEST, _LONGEST = 50, 120

# What other toolkits call some settings. Only ever suggested, never accepted.
_ELSEWHERE = {
    "batch_size": "train.questions",
    "beta": "loss.kl_coef",
    "cliprange": "loss.clip_low",
    "epsilon": "loss.clip_low",
    "epsilon_high": "loss.clip_high",
    "lambda": "loss.penalty.coef",
    "learning_rate": "train.lr",
    "loss_type": "loss.reduction",
    "max_grad_norm": "train.grad_clip",
    "max_steps": "train.steps",
    "model_name": "model.path",
    "model_name_or_path": "model.path",
    "num_generations": "train.group_size",
    "num_iterations": "train.optimizer_steps_per_rollout",
    "output_dir": "run.dir",
    "run_name": "run.name",
    "warmup_steps": "train.warmup",
}


class Section(BaseModel):
    """A table of a recipe. It holds what TOML can: whole numbers of 64 bits, and texts that UTF-8 can write."""

    # Strict: a quoted number or a `true` where a number belongs is a slip to be told of, not a value.
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _can_be_written(cls, value: Any) -> Any:
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, int) and not -(2**63) <= part < 2**63:
                raise ValueError("must be a whole number of 64 bits")
            if isinstance(part, str) and ("\0" in part or any("\ud800" <= letter <= "\udfff" for letter in part)):
                raise ValueError("must be a text of UTF-8, without NUL")
        return value


def setting_names(root: Root, prefix: str = "") -> list[str]:
    """All dotted names of a tree, in the order they are declared."""
    names = []
    for key, info in root.model_fields.items():
        section = _section(info.annotation)
        names += setting_names(section, f"{prefix}{key}.") if section else [prefix + key]
    return names


def setting_values(tree: BaseModel, prefix: str = "") -> dict[str, Any]:
    """Every setting of a tree by its dotted name."""
    values: dict[str, Any] = {}
    for key, value in tree:
        values |= setting_values(value, f"{prefix}{key}.") if isinstance(value, BaseModel) else {prefix + key: value}
    return values


def setting(root: Root, dotted: str) -> FieldInfo | None:
    """The field behind a dotted name; None when there is no such setting (a section is none)."""
    *sections, key = dotted.split(".")
    model: Root | None = root
    for name in sections:
        info = model.model_fields.get(name) if model else None
        model = _section(info.annotation) if info else None
    info = model.model_fields.get(key) if model else None
    return None if info is None or _section(info.annotation) else info


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises `ConfigError`."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        _refuse_depth(data)
        return data
    except FileNotFoundError:
        raise ConfigError(f"there is no recipe {path}; give the path of a TOML file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; give a TOML file, or --resume {path} to continue a run") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except (RecursionError, ValueError):
        raise ConfigError(
            f"{path} is not a recipe: it nests hundreds deep, or has numbers of thousands of digits"
        ) from None


def _refuse_depth(data: Any, depth: int = 0) -> None:
    """Raise `RecursionError` for what nobody could print. No recipe is deeper than four."""
    if depth > _DEEPEST:
        raise RecursionError
    for value in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        _refuse_depth(value, depth + 1)


def parse_overrides(arguments: Sequence[str], root: Root) -> dict[str, Any]:
    """Values by dotted name of `--a.b value` and `--a.b=value`; a true-or-false setting may stand alone, meaning true.

    A dash in a name is an underscore; of two values for one name the last counts; `none` clears what may be absent.
    A value that is none of the setting's kind is left as text, for validation to explain. Raises `ConfigError`.
    """
    values: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--") or len(argument) < 3:
            raise ConfigError(f"cannot read the argument {argument!r}; settings are written --section.key value")
        name, equals, text = argument[2:].partition("=")
        name = name.replace("-", "_")
        info = setting(root, name)
        if info is None:
            raise ConfigError(f"--{name}: {unknown(name, root)}")
        if not equals:
            may_stand_alone = info.annotation is bool
            if rest and not rest[0].startswith("--") and (not may_stand_alone or rest[0].lower() in TRUTH):
                text = rest.pop(0)
            elif may_stand_alone:
                text = "true"
            else:
                raise ConfigError(f"--{name} needs a value; write --{name} {_example(info)}")
        values[name] = read(text, info.annotation)
    return values


def assign(data: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a dotted name in nested dicts. Raises `ConfigError` when a section of it holds a plain value."""
    *sections, key = dotted.split(".")
    for depth, section in enumerate(sections, start=1):
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            name = ".".join(sections[:depth])
            raise ConfigError(f"{name} = {shown(data)}, but {name} is a section: write [{name}] and its settings below")
    data[key] = value


TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def read(text: str, annotation: Any) -> Any:
    """A command line's text as the first kind of the setting that can hold it; else the text itself."""
    kinds = _kinds(annotation)
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    for kind in kinds:
        if kind is bool and text.lower() in TRUTH:
            return TRUTH[text.lower()]
        if kind is str or (typing.get_origin(kind) is Literal and text in typing.get_args(kind)):
            return text
        if kind in (int, float):
            try:
                number = float(text) if kind is float else _whole(text)
            except (ValueError, OverflowError):
                continue
            return number
        if typing.get_origin(kind) is tuple:
            try:
                return tomllib.loads(f"v = [{text.strip().removeprefix('[').removesuffix(']')}]")["v"]
            except (ValueError, RecursionError):
                continue
    return text


def explain(errors: Iterable[Any], root: Root, given: Mapping[str, str]) -> list[str]:
    """One sentence for each setting that pydantic refused; `given` holds what to write before the names of some."""
    problems: dict[str, list[Any]] = {}
    for error in errors:
        problems.setdefault(_dotted(error["loc"], root), []).append(error)
    sentences = []
    for dotted, found in problems.items():
        origin = given.get(dotted, "")
        if not dotted:
            sentences += [str(e["msg"]).removeprefix("Value error, ") for e in found]
        elif found[0]["type"] == "extra_forbidden":
            sentences.append(f"{dotted}: {unknown(dotted, root)}")
        else:
            # A setting of several kinds is refused once for each.
            reasons = dict.fromkeys(
                _reason(e).removeprefix("must be ") if i else _reason(e) for i, e in enumerate(found)
            )
            reason = ", or ".join(reasons)
            value = found[0]["input"] if found[0]["type"] != "missing" else ...
            sentences.append(f"{origin}{dotted}{'' if value is ... else f' = {_brief(value)}'}: {reason}")
    return sentences


def unknown(dotted: str, root: Root) -> str:
    """That there is no such setting, and which one may have been meant."""
    near = nearest(dotted, root)
    if near and near[0] == dotted:
        inside = [name for name in setting_names(root) if name.startswith(f"{dotted}.")]
        return f"this is a section of {len(inside)} settings; name one of them, such as {inside[0]}"
    if not near:
        return "there is no such setting; `holdfast train --dry-run` prints all"
    return f"there is no such setting; did you mean {' or '.join(near)}?"


def nearest(dotted: str, root: Root) -> list[str]:
    """Settings or sections somebody who wrote `dotted` may have meant, at most three, best first."""
    names = setting_names(root)
    sections = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    if dotted in names or dotted in sections:
        return [dotted]
    section, _, key = dotted.rpartition(".")

    def likeness(name: str) -> tuple[float, int]:
        """Mostly of the last parts: a section in common says little. Of equals, the shorter name."""
        own_section, _, own_key = name.rpartition(".")
        return 0.7 * _ratio(key, own_key) + 0.3 * _ratio(section, own_section), -len(name)

    if without_section := [name for name in names + sections if name.endswith(f".{dotted}")]:
        return sorted(without_section, key=len)[:3]
    if key in _ELSEWHERE and _ELSEWHERE[key] in names:
        return [_ELSEWHERE[key]]
    wrong_section = [name for name in names if name.rpartition(".")[2] == key]
    misspelt = [name for name in names + sections if _ratio(key, name.rpartition(".")[2]) >= 0.6]
    return sorted(wrong_section or misspelt, key=likeness)[-1:]


def _ratio(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


def shown(value: Any) -> str:
    """A value as a recipe would write it.

    >>> shown(True), shown("llds"), shown((4, 10)), shown({"steps": 5})
    ('true', "'llds'", '[4, 10]', '{ steps = 5 }')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {shown(item)}' for key, item in value.items())} }}"
    return repr(value) if isinstance(value, str) else str(value)


def _brief(value: Any) -> str:
    """For a sentence, which a value of a thousand letters would bury."""
    text = shown(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def kind_of(annotation: Any) -> str:
    """What a setting may hold, in words: `a whole number`, `'token' or 'sequence'`.

    >>> kind_of(float | None)
    'a number or none'
    """
    words: list[str] = []
    for kind in _kinds(annotation):
        if typing.get_origin(kind) is Literal:
            words += map(shown, typing.get_args(kind))
        elif typing.get_origin(kind) is tuple:
            words.append(f"a list of {len(typing.get_args(kind))} whole numbers")
        else:
            words.append(_KINDS.get(kind, getattr(kind, "__name__", str(kind))))
    return _either(words)


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "none"}


def _section(annotation: Any) -> Root | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _kinds(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)  # 1e3
        if not number.is_integer():
            raise
        return int(number)


def _example(info: FieldInfo) -> str:
    return "VALUE" if info.default is None or info.default == "" else str(info.default)


def _dotted(loc: Sequence[int | str], root: Root) -> str:
    """The setting's name in a pydantic location, without what pydantic adds for tuple items and members of unions."""
    names: list[str] = []
    model: Root | None = root
    for part in loc:
        if model is None:
            break
        names.append(str(part))
        info = model.model_fields.get(str(part))
        model = _section(info.annotation) if info else None
    return ".".join(names)


def _reason(error: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    match kind:
        case "literal_error":
            expected = str(context["expected"])
            written = error["input"] if isinstance(error["input"], str) else ""
            near = difflib.get_close_matches(written, re.findall("'([^']*)'", expected), n=1, cutoff=0.5)
            return f"must be {expected}" + (f" (did you mean {near[0]!r}?)" if near else "")
        case "int_type":
            return "must be a whole number"
        case "float_type":
            return "must be a number"
        case "finite_number":
            return "must be a finite number"
        case "bool_type":
            return "must be true or false"
        case "string_type":
            return "must be a text, in quotes"
        case "model_type":
            return "is a section; write its settings below a [section] line"
        case "tuple_type" | "missing" | "too_long":
            return "must be a list of two whole numbers, such as [4, 10]"
        case "greater_than":
            return f"must be more than {_number(context['gt'])}"
        case "greater_than_equal":
            return f"must be {_number(context['ge'])} or more"
        case "less_than":
            return f"must be less than {_number(context['lt'])}"
        case "less_than_equal":
            return f"must be {_number(context['le'])} or less"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]}"


def _number(value: float) -> str:
    return f"{value:g}"


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


Implied = Mapping[str, Mapping[str, Any]]
"""Value of a setting -> what it says of other settings of its section that are not set."""


def implied(section: Any, key: str, default: str, table: Implied) -> Any:
    """A section as it was read, with what its `key` implies where nothing is set.

    >>> implied({"name": "b"}, "name", "a", {"b": {"size": 2}}), implied({"size": 1}, "name", "a", {"a": {"size": 2}})
    ({'name': 'b', 'size': 2}, {'size': 1})
    """
    name = section.get(key, default) if isinstance(section, dict) else None
    own = table.get(name, {}) if isinstance(name, str) else {}
    missing = {other: value for other, value in own.items() if section.get(other) is None}
    return {**section, **missing} if missing else section


def forget_implied(data: Any, section: str, key: str, default: str, table: Implied) -> None:
    """Take out of a resolved recipe what its `key` had implied: it says nothing of another value of that key."""
    values = _table(data, section)
    own = table.get(str(values.get(key, default)), {})
    forget(data, section, [other for other, value in own.items() if values.get(other) == value])


def forget(data: Any, section: str, keys: Iterable[str]) -> None:
    """Take settings of a section out of a recipe, as far as they are there."""
    values = _table(data, section)
    for key in keys:
        values.pop(key, None)


def _table(data: Any, section: str) -> dict[str, Any]:
    """The table of a section; an empty one where the recipe has none, or something else in its place."""
    for part in section.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}
