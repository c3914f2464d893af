"""One row as an `Example`, and back, in the four forms that trainers exchange.

    jsonl     FlashRAG's, one object a line: id, question, golden_answers, metadata; ours adds data_source, split, index
    searchr1  Search-R1's columns: prompt, reward_model.ground_truth.target, extra_info.split and .index, and FlashRAG's
    verl      its search example's: data_source with a prefix, extra_info.tools_kwargs, an agent that calls tools
    skyrl     its search example's: reward_spec in place of reward_model, env_class

A row is read by its fields, whatever its form: the forms differ in where a value is, not in what it means. Rows are
read too under the names that sets are published with, without regard to case: Bamboogle has `Question`, TriviaQA's own
files `Answer`.

    golden_answers                     FlashRAG's collection, and ours
    reward_model.ground_truth.target   Search-R1's and verl's
    answer                             NQ-open (a list), HotpotQA, 2WikiMultiHopQA, Bamboogle (a text)
    answer + answer_aliases            MuSiQue; `aliases` too
    answer.value + answer.aliases      TriviaQA
    answers, answers.text              SQuAD's forms
    possible_answers                   PopQA (a JSON list in a cell)
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from holdfast.agent.protocol import SEARCH_R1, prompt_text
from holdfast.base.errors import DataError
from holdfast.base.jsonl import BadField, clean_text, fields_in, json_kind
from holdfast.base.stored import bounded_json
from holdfast.tasks.catalogue import Form
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
            return _cell(value, name).strip()
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
            why += ". Name the columns question and answer; in a CSV file, its first line names them"
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


# ---- where a row has its question and its golden answers

ANSWERS = ("golden_answers", "answers", "answer", "possible_answers")
"""Fields of golden answers, in the order in which they are looked for."""
_INSIDE = ("target", "value", "text", "aliases")
"""Fields of an answer that is an object; Search-R1's ground truth has the first."""
_ALIASES = ("answer_aliases", "aliases")
"""Fields of a row with further answers, beside `answer`."""
_NUMBERED = re.compile(r"(?:golden[ _]?)?answer[ _-]?\d+", re.IGNORECASE)
"""Columns of a spreadsheet with an answer each: `answer 2`."""
_SHEET_ERRORS = frozenset({"#N/A", "#REF!", "#VALUE!", "#NAME?", "#DIV/0!", "#NUM!", "#NULL!", "#SPILL!", "#CALC!"})
_SHOWN = 80
"""Characters of a bad answer that a message shows."""


def question_name(row: Mapping[str, Any]) -> str | None:
    """The field that holds the question; None if the row has none."""
    return _named(row, "question")


def answer_names(row: Mapping[str, Any]) -> set[str]:
    """The fields of a row that hold answers."""
    return {key for key in row if key.lower() in (*ANSWERS, *_ALIASES) or _NUMBERED.fullmatch(key)}


def answers_in(row: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The golden answers of a row, each text once, by the fields that hold them; empty if it has none of them.

    >>> answers_in({"Question": "Who?", "answer": "Mira", "answer_aliases": ["M. Tolvan", "Mira"]})
    {'answer + answer_aliases': ('Mira', 'M. Tolvan')}
    >>> answers_in({"answers": {"text": ["Mira"], "answer_start": [3]}})
    {'answers.text': ('Mira',)}
    >>> answers_in({"answer": "Mira", "answer 2": "M. Tolvan", "answer 3": ""})
    {'answer + answer 2': ('Mira', 'M. Tolvan')}

    Raises `BadField` for answers of another form, and for a question that its set calls unanswerable.
    """
    if row.get("answerable") is False:
        raise BadField("answerable", "is false: this question set says that the question has no answer")
    numbered = (key for key in row if _NUMBERED.fullmatch(key))
    name = next((found for answers in ANSWERS if (found := _named(row, answers)) is not None), next(numbered, None))
    if name is None:
        return {}
    names, texts = [], list[str]()
    for field, value in [(name, row[name]), *_aliases(row, name)]:
        for part, inner in _parts(field, value):
            names.append(part)
            texts += texts_of(inner, part)
    return {" + ".join(names): tuple(dict.fromkeys(texts) if len(names) > 1 else texts)}


def texts_of(value: Any, field: str) -> tuple[str, ...]:
    """A list of texts, one text, or a list in the cell of a table, as JSON or as Python writes it; at least one of them
    must not be empty. Raises `BadField`.

    >>> texts_of("['Mira', 'M. Tolvan']", "answer"), texts_of("[sic]", "answer")
    (('Mira', 'M. Tolvan'), ('[sic]',))
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _listed(value.strip(), field)
    if isinstance(value, str):
        return (_cell(value, field),)
    if not isinstance(value, list):
        raise BadField(field, f"must be a string or a list of strings, is {json_kind(value)}")
    texts = tuple(clean_text(text, f"{field}[{i}]", empty=True) for i, text in enumerate(value))
    if not any(text.strip() for text in texts):
        raise BadField(field, "is an empty list" if not texts else f"contains only {', '.join(map(repr, texts))}")
    return texts


def _cell(value: Any, field: str) -> str:
    """`clean_text`, for what may be a cell of a spreadsheet."""
    text = clean_text(value, field)
    if text.strip() in _SHEET_ERRORS:
        raise BadField(field, f"is {text.strip()!r}, an error of the spreadsheet; mend the cell")
    return text


def _listed(text: str, field: str) -> Any:
    """The list in a text that begins with a bracket; the text itself if that is an answer in brackets."""
    with suppress(ValueError):
        return bounded_json(text)
    if re.match(r"""\[\s*['"].*\]$""", text, re.DOTALL) is None:
        return text
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):  # pandas writes a column of lists so
        texts = ast.literal_eval(text)
        if repr(texts) == text:  # numpy's lists have no commas, and would become one text
            return texts
    raise BadField(field, f'looks like a list, but is not JSON, such as ["Mira", "M. Tolvan"]: {text[:_SHOWN]}')


def _named(row: Mapping[str, Any], name: str) -> str | None:
    return name if name in row else next((key for key in row if key.lower() == name), None)


def _aliases(row: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    if name.lower() != "answer" and not _NUMBERED.fullmatch(name):
        return []
    named = [field for alias in _ALIASES if (field := _named(row, alias)) is not None]
    numbered = [field for field in row if _NUMBERED.fullmatch(field) and field != name]
    return [(field, row[field]) for field in (*named, *numbered) if row[field]]


def _parts(field: str, value: Any) -> list[tuple[str, Any]]:
    """A value with its name; of an object, those of its fields that hold answers."""
    if not isinstance(value, dict):
        return [(field, value)]
    found = [(key, value[key]) for inside in _INSIDE if (key := _named(value, inside)) is not None and value[key]]
    if not found:
        raise BadField(field, f"is an object without {', '.join(_INSIDE)}")
    return [(f"{field}.{key}", inner) for key, inner in found]
