"""Errors of pydantic as sentences: the setting, its value, the reason, and the name that may have been meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from holdfast.base.errors import nearest_name
from holdfast.base.section import (
    Refused,
    Root,
    as_toml,
    choice_of,
    field_of,
    join_or,
    kind_of,
    sections,
    sentence,
    setting,
    setting_names,
)

_MAX_SHOWN = 120

# Names of settings in other toolkits. They are suggested, never accepted.
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


def explain(errors: Iterable[Any], root: Root, typed: Collection[str]) -> list[str]:
    """One sentence for each refusal. Settings in `typed` came from the command line, and are shown as it has them."""
    sentences: list[str] = []
    for dotted, same in _by_name((_dotted(error["loc"], root), error) for error in errors).items():
        error, name = same[0], dotted.partition('."')[0]
        origin = "--" * (name in typed)
        if error["type"] == "value_error" and setting(root, name) is None:  # the error is that of a whole section
            sentences += [text for error in same for text in _of_section(error, typed)]
        elif error["type"] == "extra_forbidden":
            misplaced = _misplaced(dotted, error, root, origin)
            names = _unknown_names(dotted, error["input"], root)
            sentences += [misplaced] if misplaced else [f"{name}: {unknown(name, root)}" for name in names]
        elif error["type"] == "union_tag_invalid":
            name, written = f"{dotted}.name", error["input"]["name"]
            sentences.append(f"{'--' * (name in typed)}{name} = {_brief(written)}: {_reason(error)}")
        else:
            value = "" if error["type"] == "missing" else f" = {_brief(error['input'])}"
            sentences.append(f"{origin}{dotted}{value}: {_reasons(same)}")
    return sentences


def _of_section(error: Any, typed: Collection[str]) -> list[str]:
    refused = error.get("ctx", {}).get("error")
    return [sentence(r, typed) for r in refused.refusals] if isinstance(refused, Refused) else [_message(error)]


def explain_call(errors: Iterable[Any], section: Root) -> str:
    """The errors in the arguments of a section that Python code creates, as one text.

    >>> from holdfast.methods.penalties import LLDS
    >>> LLDS(coef=-1, threshold="low")
    Traceback (most recent call last):
    holdfast.base.errors.ConfigError: LLDS(coef=-1) must be 0 or more; LLDS(threshold='low') must be a number
    """
    sentences: list[str] = []
    for key, same in _by_name((str(error["loc"][0]) if error["loc"] else "", error) for error in errors).items():
        call = f"{section.__name__}({key}={same[0]['input']!r})"
        if not key:  # an error of several values together
            sentences += map(_message, same)
        elif same[0]["type"] == "extra_forbidden":
            sentences.append(f"{call}: there is no such argument; {nearest_name(key, section.model_fields)}")
        elif same[0]["type"] == "missing":
            sentences.append(f"{section.__name__}() needs {key}: it has no default")
        else:
            sentences.append(f"{call} {_reasons(same)}")
    return "; ".join(sentences)


def _brief(value: Any) -> str:
    """A value for a sentence, at most 120 letters of it."""
    text = as_toml(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _by_name(errors: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    errors_by_name: dict[str, list[Any]] = {}
    for name, error in errors:
        errors_by_name.setdefault(name, []).append(error)
    return errors_by_name


def _misplaced(dotted: str, error: Any, root: Root, origin: str) -> str | None:
    """For a setting of a section that was not chosen: the chosen section, and those that have the setting."""
    section, _, key = dotted.rpartition(".")
    field = field_of(root, section)
    readers = [choice_of(kind) for kind in sections(field.annotation) if key in kind.model_fields] if field else []
    if not readers:
        return None
    return (
        f"{origin}{dotted} = {_brief(error['input'])} with {section}.name = {error['loc'][-2]!r}, which does not use "
        f"it. Leave it out, or set {section}.name = {join_or([repr(reader) for reader in readers])}"
    )


def _unknown_names(dotted: str, value: Any, root: Root) -> list[str]:
    """The unknown setting; of an unknown section that is like no other, the settings in it."""
    like_a_section = any(name.startswith(f"{near}.") for near in nearest(dotted, root) for name in setting_names(root))
    if like_a_section or not isinstance(value, dict):
        return [dotted]
    return [f"{dotted}.{key}" for key in value] or [dotted]


def unknown(dotted: str, root: Root) -> str:
    """A sentence for an unknown setting, with the name that may have been meant."""
    near = nearest(dotted, root)
    if near and near[0] == dotted:
        inside = [name for name in setting_names(root) if name.startswith(f"{dotted}.")]
        return f"this is a section of {len(inside)} settings; name one of them, such as {inside[0]}"
    if not near:
        return "there is no such setting; `holdfast recipe show` prints all"
    return f"there is no such setting; did you mean {' or '.join(near)}?"


def nearest(dotted: str, root: Root) -> list[str]:
    """Settings or sections that `dotted` may mean, at most three, best first."""
    names = setting_names(root)
    tables = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    if dotted in names or dotted in tables:
        return [dotted]
    section, _, key = dotted.rpartition(".")

    def likeness(name: str) -> tuple[float, int]:
        """Likeness, mostly of the last parts, because many names share a section. The shorter of equal names wins."""
        table, _, last = name.rpartition(".")
        return 0.7 * _ratio(key, last) + 0.3 * _ratio(section, table), -len(name)

    elsewhere = [_ELSEWHERE[key]] if _ELSEWHERE.get(key) in names else []
    without_section = [name for name in names + tables if name.endswith(f".{dotted}")]
    if elsewhere or without_section:
        return [*elsewhere, *sorted(without_section, key=len)][:3]
    wrong_section = [name for name in names if name.rpartition(".")[2] == key]
    misspelt = [name for name in names + tables if _ratio(key, name.rpartition(".")[2]) >= 0.6]
    return sorted(wrong_section or misspelt, key=likeness)[-1:]


def _ratio(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


def _dotted(loc: Sequence[int | str], root: Root) -> str:
    """The name of the setting in a pydantic location, without the parts for tuple items and members of unions.

    A value inside a table has its key in quotes: `reward.custom."my_code:brevity"`.
    """
    names: list[str] = []
    models: Sequence[Root] = (root,)
    info = None
    for part in loc:
        if not models:
            if info is not None and kind_of(info.annotation) == "a table" and isinstance(part, str):
                names[-1] += f'."{part}"'
            break
        if len(models) > 1:  # the name of the chosen section
            models = [model for model in models if choice_of(model) == part]
            continue
        names.append(str(part))
        info = models[0].model_fields.get(str(part))
        models = sections(info.annotation) if info else ()
    return ".".join(names)


def _reasons(errors: Sequence[Any]) -> str:
    """Why a value was refused. If a setting may have several kinds, there is one error for each kind."""
    first, *others = dict.fromkeys(map(_reason, errors))
    return ", or ".join([first, *(reason.removeprefix("must be ") for reason in others)])


def _reason(error: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    match kind:
        case "literal_error" | "union_tag_invalid":
            names = re.findall(
                "'([^']*)'", context["expected"] if kind == "literal_error" else context["expected_tags"]
            )
            written = error["input"] if kind == "literal_error" else error["input"]["name"]
            near = difflib.get_close_matches(written, names, n=1, cutoff=0.5) if isinstance(written, str) else []
            return f"must be {join_or(list(map(repr, names)))}" + (f" (did you mean {near[0]!r}?)" if near else "")
        case "int_type":
            return "must be a whole number"
        case "float_type":
            return "must be a number"
        case "finite_number":
            return "must be a finite number"
        case "bool_type":
            return "must be true or false"
        case "string_type":
            return "must be a string, in quotes"
        case "model_type" | "model_attributes_type":
            return "is a section; write its settings below a [section] line"
        case "tuple_type":
            return "must be a list, in brackets"
        case "missing" | "too_long":
            return "must be a list of two numbers, [A, B]"
        case "dict_type":
            return 'must be a table, such as { "my_code:brevity" = 1.0 }'
        case "greater_than":
            return f"must be more than {_number(context['gt'])}"
        case "greater_than_equal":
            return f"must be {_number(context['ge'])} or more"
        case "less_than":
            return f"must be less than {_number(context['lt'])}"
        case "less_than_equal":
            return f"must be {_number(context['le'])} or less"
    message = _message(error)
    return f"{message[0].lower()}{message[1:]}"


def _message(error: Any) -> str:
    return str(error["msg"]).removeprefix("Value error, ")


def _number(value: float) -> str:
    return f"{value:g}"
