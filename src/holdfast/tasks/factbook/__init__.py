"""Questions over the CIA World Factbook, whose text a package ships: passages, questions of one to three hops,
demonstrations.

A recipe names its files `factbook:corpus`, `factbook:train`, `factbook:dev` and `factbook:test`, which are made in
memory. `factbook:demonstrations` is for the warm start.
"""

from __future__ import annotations

import functools

from holdfast.base.errors import DataError
from holdfast.retrieval.types import Document
from holdfast.tasks.factbook.book import read_book
from holdfast.tasks.factbook.passages import passages_of
from holdfast.tasks.factbook.questions import questions_of
from holdfast.tasks.questions import Example

FACTBOOK = "factbook:"
"""Prefix of the names of the passages, questions and demonstrations that are made here."""


def is_factbook(path: str) -> bool:
    """Whether a path of a recipe is a name such as `factbook:train`."""
    return path.startswith(FACTBOOK)


def load_questions(name: str) -> tuple[Example, ...]:
    """The questions of `factbook:train`, `factbook:dev` or `factbook:test`.

    Raises `DataError` for another name and another version of the package, `MissingExtra` without it.
    """
    part = name.removeprefix(FACTBOOK)
    if part not in ("train", "dev", "test"):
        raise DataError(f"{name!r}: the Factbook has the questions train, dev and test; name one, as in factbook:train")
    return _questions()[part]


def load_passages(name: str) -> tuple[Document, ...]:
    """The passages of `factbook:corpus`. Raises as `load_questions`."""
    if name != f"{FACTBOOK}corpus":
        raise DataError(f"{name!r}: the passages of the Factbook are factbook:corpus")
    return tuple(document for country in read_book() for document in passages_of(country))


@functools.cache
def _questions() -> dict[str, tuple[Example, ...]]:
    return {split: tuple(examples) for split, examples in questions_of(read_book()).items()}
