"""One row as an `Example`, and back, in the four forms that trainers exchange.

    jsonl     FlashRAG's, one object a line: id, question, golden_answers, metadata; ours adds data_source, split, index
    searchr1  Search-R1's columns: prompt, reward_model.ground_truth.target, extra_info.split and .index, and FlashRAG's
    verl      its search example's: data_source with a prefix, extra_info.tools_kwargs, an agent that calls tools
    skyrl     its search example's: reward_spec in place of reward_model, env_class

A row is read by its fields, whatever its form: the forms differ in where a value is, not in what it means. Rows as the
sets publish them are read too (`tasks/fields.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from holdfast.agent.protocol import SEARCH_R1, prompt_text
from holdfast.base.errors import DataError
from holdfast.base.jsonl import BadField, clean_text, fields_in, json_kind
from holdfast.base.stored import bounded_json
from holdfast.tasks.catalogue import Form
from holdfast.tasks.fields import ANSWERS, answer_names, answers_in, question_name, texts_of
from holdfast.tasks.questions import Example

PREFIX = "searchR1_"
"""verl and SkyRL prefix the name of the set with it, and choose the reward by it."""

TOOL_AGENT = "tool_agent"
"""verl's agent loop that calls tools. Without it a row is answered in one turn, without a search."""

_TOOLS = replace(
    SEARCH_R1,
    prompt=(
        "Find the answer to the question. Think between <think> and </think> whenever you learn something. If you lack "
        "a fact, call the search tool inside <tool_call> and </tool_call>; what it finds comes back between "
        "<tool_response> and </tool_response>. Search as often as you need. As soon as you know enough, write the "
        "answer alone between <answer> and </answer>.\nQuestion: {question}\n"
    ),
)
_SEARCH_ARGUMENTS = ("tools_kwargs", "search", "create_kwargs")
_IN_EXTRA_INFO = ("split", "index", "question", "need_tools_kwargs", "tools_kwargs")
_CONSTANTS = {"ability": "fact-reasoning", "env_class": "search", "agent_name": TOOL_AGENT}
_PLACED = ("question", "golden_answers", "data_source", "split", "index", "reward_model", "reward_spec", "extra_info")


def example_of(
    row: Mapping[str, Any], *, source: str, split: str, index: int, on_taken: Callable[[str], None] | None = None
) -> Example:
    """A row of any form. `source`, `split` and `index` are for a row that does not name its own. `on_taken` gets the
    place of its golden answers.

    All other fields go to `metadata`. A null field counts as absent, because parquet fills missing columns with null.
    Raises `BadField`.
    """
    row = {key: value for key, value in row.items() if value is not None and value == value}  # NaN is pandas' null
    extra = _mapping(row, "extra_info")
    extra = {key: value for key, value in extra.items() if value is not None}
    source, split, index = _identity(row, extra, source, split, index)
    taken, golds = _golds(row, extra)
    if on_taken is not None:
        on_taken(taken)
    read = {*_PLACED, question_name(row), *answer_names(row)}
    other = {key: value for key, value in row.items() if key not in read and _CONSTANTS.get(key) != value}
    if rest := {key: value for key, value in extra.items() if key not in _IN_EXTRA_INFO}:
        other["extra_info"] = rest
    if (metadata := _object(other.get("metadata"))) is not None:  # JSON in parquet, see `row_of`
        other["metadata"] = metadata
    if (fields := _object(other.get("fields"))) is not None:
        del other["fields"]
        other |= fields
    if "prompt" in other:
        _check_messages(other["prompt"])
    example = Example(
        source=source,
        split=split,
        index=index,
        question=_question(row, extra),
        golden_answers=golds,
        metadata=other,
    )
    if other.get("id") == example.id:
        del other["id"]
    return example


def row_of(example: Example, form: Form, *, reword: bool = False) -> dict[str, Any]:
    """A row in this form. `example_of` turns it back into an equal example.

    The `prompt` column is the example's, if it has one and `reword` is not set. Else it is our prompt: with tags for
    `searchr1` and `skyrl`, with tool calls for `verl`. In parquet forms `metadata` and all other
    fields are JSON texts, because the columns of a parquet file cannot change their type from row to row.
    """
    other = dict(example.metadata)
    for key, value in other.items():
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"{example.id}: {key} cannot be written as JSON ({error}); drop that column") from None
    golds = list(example.golden_answers)
    identity = {"id": other.pop("id", example.id), "question": example.question, "golden_answers": golds}
    if reword:
        other.pop("prompt", None)
    if form == "jsonl":
        place = {"data_source": example.source, "split": example.split, "index": example.index}
        return identity | place | other
    protocol = _TOOLS if form == "verl" else SEARCH_R1
    prompt = other.pop("prompt", None) or [{"role": "user", "content": prompt_text(example.question, protocol)}]
    ability, agent = other.pop("ability", _CONSTANTS["ability"]), TOOL_AGENT
    if form == "verl":
        agent = other.pop("agent_name", agent)
    metadata = other.pop("metadata") if isinstance(other.get("metadata"), dict) else None
    row = identity | {
        "data_source": example.source if form == "searchr1" else PREFIX + example.source,
        "prompt": [{"role": message["role"], "content": message["content"]} for message in prompt],
        "ability": ability,
        "metadata": None if metadata is None else _json(metadata),
        "fields": _json(other) if other else None,
    }
    reward = {"style": "rule", "ground_truth": {"target": golds}}
    extra: dict[str, Any] = {"split": example.split, "index": example.index}
    if form == "searchr1":
        return row | {"reward_model": reward, "extra_info": extra}
    arguments = {"question": example.question, "ground_truth": {"target": golds}, "data_source": row["data_source"]}
    extra |= {"question": example.question, "need_tools_kwargs": True}
    extra |= {"tools_kwargs": {"search": {"create_kwargs": arguments}}}
    if form == "verl":
        return row | {"agent_name": agent, "reward_model": reward, "extra_info": extra}
    return row | {"env_class": "search", "reward_spec": reward, "extra_info": extra}


def light(example: Example) -> Example:
    """Without the lists and objects of its `metadata`: HotpotQA's hold ten paragraphs a question."""
    metadata = example.metadata.get("metadata")
    if not isinstance(metadata, dict):
        return example
    small = {key: value for key, value in metadata.items() if not isinstance(value, (list, dict))}
    other = {key: value for key, value in example.metadata.items() if key != "metadata"}
    return replace(example, metadata=other | ({"metadata": small} if small else {}))


def _identity(
    row: Mapping[str, Any], extra: Mapping[str, Any], source: str, split: str, index: int
) -> tuple[str, str, int]:
    if "data_source" in row:
        source = clean_text(row["data_source"], "data_source").removeprefix(PREFIX)
    for place, name in ((extra, "extra_info."), (row, "")):
        if "split" in place:
            split = clean_text(place["split"], f"{name}split")
            break
    for place, name in ((extra, "extra_info."), (row, "")):
        if "index" in place:
            number = place["index"]
            number = int(number) if isinstance(number, str) and number.isdecimal() else number  # of a table
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise BadField(f"{name}index", f"must be a row number, is {number!r}")
            return source, split, number
    return source, split, index


def _question(row: Mapping[str, Any], extra: Mapping[str, Any]) -> str:
    own = question_name(row) or "question"
    arguments = _search_arguments(extra)
    places = ((own, row.get(own)), ("extra_info.question", extra.get("question")))
    for name, value in (*places, (_where("question"), arguments.get("question"))):
        if value is not None:
            return clean_text(value, name).strip()
    raise BadField("question", f"missing; the row has {fields_in(row)}")


def _golds(row: Mapping[str, Any], extra: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The place of the golden answers, and these. Every place of our forms must hold the same ones; fields of other
    sets are read where there is no such place."""
    places: dict[str, tuple[str, ...]] = {}
    if "golden_answers" in row:
        places["golden_answers"] = texts_of(row["golden_answers"], "golden_answers")
    for key in ("reward_model", "reward_spec"):
        truth = _mapping(row, key).get("ground_truth")
        if truth is not None:
            places |= _target(truth, f"{key}.ground_truth")
    truth = _search_arguments(extra).get("ground_truth")
    if truth is not None:
        places |= _target(truth, _where("ground_truth"))
    places = places or answers_in(row)
    if not places:
        names = ", ".join(map(repr, ANSWERS[1:]))
        why = f"missing, and so are {names}; the row has {fields_in(row)}"
        if question_name(row) is None and "prompt" not in row:
            why += ". A table's first line names its columns, such as question,answer"
        raise BadField("golden_answers", why)
    (name, golds), *others = places.items()
    for other, texts in others:
        if texts != golds:
            raise BadField(other, f"differs from {name}: {list(texts)} and {list(golds)}")
    return name, golds


def _target(truth: Any, field: str) -> dict[str, tuple[str, ...]]:
    if isinstance(truth, dict):
        if "target" not in truth:
            raise BadField(f"{field}.target", f"missing; {field} has {fields_in(truth)}")
        return {f"{field}.target": texts_of(truth["target"], f"{field}.target")}
    return {field: texts_of(truth, field)}


def _search_arguments(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    place: Any = extra
    for key in _SEARCH_ARGUMENTS:
        place = place.get(key) if isinstance(place, dict) else None
    return place if isinstance(place, dict) else {}


def _where(key: str) -> str:
    return ".".join(("extra_info", *_SEARCH_ARGUMENTS, key))


def _mapping(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = row.get(key, {})
    if not isinstance(value, dict):
        raise BadField(key, f"must be an object, is {json_kind(value)}")
    return value


def _check_messages(prompt: Any) -> None:
    if not isinstance(prompt, list) or not prompt:
        raise BadField("prompt", f"must be a list of messages, is {json_kind(prompt) if prompt else repr(prompt)}")
    for i, message in enumerate(prompt):
        if not isinstance(message, dict):
            raise BadField(f"prompt[{i}]", f"must be an object, is {json_kind(message)}")
        for key in ("role", "content"):
            if key not in message:
                raise BadField(f"prompt[{i}].{key}", "missing")
            clean_text(message[key], f"prompt[{i}].{key}")


def _object(value: Any) -> dict[str, Any] | None:
    """The object in a JSON text; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        parsed = bounded_json(value)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
