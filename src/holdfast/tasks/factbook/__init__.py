"""Questions over the CIA World Factbook, whose text a package ships: passages, questions of one to three hops,
demonstrations. All are made in memory.
"""

from __future__ import annotations

import functools

from holdfast.retrieval.types import Document
from holdfast.tasks.factbook.book import read_book
from holdfast.tasks.factbook.passages import passages_of
from holdfast.tasks.factbook.questions import questions_of
from holdfast.tasks.task_set import Questions


@functools.cache
def load_questions() -> Questions:
    """The questions. Raises `DataError` for another version of the package, `MissingExtra` without it."""
    splits = {split: tuple(examples) for split, examples in questions_of(read_book()).items()}
    return Questions(**splits)


def load_passages() -> tuple[Document, ...]:
    """The passages. Raises as `load_questions`."""
    return tuple(document for country in read_book() for document in passages_of(country))
