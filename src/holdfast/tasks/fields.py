"""Where a row of a question set has its question and its golden answers, under the names that sets are published with.

    golden_answers                     FlashRAG's collection, and ours
    reward_model.ground_truth.target   Search-R1's and verl's (`tasks/rows.py`)
    answer                             NQ-open (a list), HotpotQA, 2WikiMultiHopQA, Bamboogle (a text)
    answer + answer_aliases            MuSiQue; `aliases` too
    answer.value + answer.aliases      TriviaQA
    answers, answers.text              SQuAD's forms
    possible_answers                   PopQA (a JSON list in a cell)

Names are read without regard to case: Bamboogle has `Question`, TriviaQA's own files `Answer`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast.base.jsonl import BadField, clean_text, json_kind
from holdfast.base.stored import bounded_json

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
    if isinstance(value, str) and value.strip() in _SHEET_ERRORS:
        raise BadField(field, f"is {value.strip()!r}, an error of the spreadsheet; mend the cell")
    if isinstance(value, str):
        return (clean_text(value, field),)
    if not isinstance(value, list):
        raise BadField(field, f"must be a string or a list of strings, is {json_kind(value)}")
    texts = tuple(clean_text(text, f"{field}[{i}]", empty=True) for i, text in enumerate(value))
    if not any(text.strip() for text in texts):
        raise BadField(field, "is an empty list" if not texts else f"contains only {', '.join(map(repr, texts))}")
    return texts


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
