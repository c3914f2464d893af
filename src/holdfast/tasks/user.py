"""A task set of the user's: a class that `data.train` names by its import path (docs/guide/own-tasks.md).

class Trivia:
    def questions(self):        # rows by split, as in a file of questions; train is needed
        return {"train": [{"question": "Who painted the Mona Lisa?", "golden_answers": ["Leonardo da Vinci"]}, ...]}

    def passages(self):         # if the recipe names none: rows as in a file of passages
        return [{"id": "mona-lisa", "title": "Mona Lisa", "text": "A portrait by Leonardo da Vinci."}, ...]

    def demonstrations(self):   # if the scripts made here will not do: rows as in `warm_start.data`
        ...
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from holdfast.agent.protocol import SearchProtocol
from holdfast.base.errors import ConfigError, DataError
from holdfast.base.importing import import_named, running
from holdfast.base.jsonl import BadField
from holdfast.retrieval.corpus import document_of, fresh
from holdfast.retrieval.types import Document, Retriever
from holdfast.tasks.demonstrations import Text, text_of
from holdfast.tasks.files import held_out, matchable
from holdfast.tasks.questions import Example
from holdfast.tasks.rows import example_of
from holdfast.tasks.task_set import Questions, TaskSet

T = TypeVar("T")
_SPLITS = ("train", "dev", "test")


class UserTasks(TaskSet):
    """Checks what the user's object returns, where it comes in. Its rows are read as those of files are, but strictly:
    a row that cannot be used is an error, because code can be mended."""

    def __init__(self, path: str) -> None:
        made = import_named(path)
        self._name = f"data.train = {path!r}"
        with running(f"{self._name}: it cannot be made"):
            self._own = made()
        if not callable(getattr(self._own, "questions", None)):
            raise ConfigError(
                f"{self._name}: what it makes has no method questions(), which returns rows by split: "
                '{"train": [{"question": …, "golden_answers": [...]}, …]}'
            )
        self._source = path.rpartition(":")[2].lower()
        self.own_passages = hasattr(self._own, "passages")

    def questions(self) -> Questions:
        splits = self._call("questions")
        if not isinstance(splits, Mapping) or "train" not in splits or set(splits) - set(_SPLITS):
            raise ConfigError(
                f"{self._name}: questions() must return rows by split, {{'train': [...]}} with dev and test if there "
                f"are some; it returned {type(splits).__name__}"
            )
        train, dev, test = (tuple(self._examples(split, splits.get(split, ()))) for split in _SPLITS)
        if not dev:
            train, dev = held_out(train, f"{self._name}: train", "return more, or dev too")
        return Questions(train=train, dev=dev, test=test)

    def passages(self) -> Iterator[Document]:
        parse = fresh(lambda row: document_of(row, {}, quoted=False))
        return self._parsed("passages()", self._call("passages"), parse)

    def demonstrations(
        self, asked: Sequence[Example], retriever: Retriever, protocol: SearchProtocol, *, seed: int, most: int
    ) -> Sequence[Text]:
        if not hasattr(self._own, "demonstrations"):
            return super().demonstrations(asked, retriever, protocol, seed=seed, most=most)
        rows = self._call("demonstrations")
        return list(self._parsed("demonstrations()", rows, lambda row, _: text_of(row, protocol)))

    def fingerprint(self) -> Mapping[str, str]:
        """The digest of the file that the class is in."""
        file = inspect.getsourcefile(type(self._own))
        return {"tasks": hashlib.sha256(Path(file).read_bytes() if file else b"").hexdigest()}

    def _call(self, method: str) -> Any:
        with running(f"{self._name}: {method}() fails"):
            return getattr(self._own, method)()

    def _examples(self, split: str, rows: Any) -> Iterator[Example]:
        def parse(row: dict[str, Any], number: int) -> Example:
            place: Any = {"source": self._source, "split": split, "index": number - 1}
            return replace(matchable(example_of(row, **place)), **place)

        return self._parsed(f"questions()[{split!r}]", rows, parse)

    def _parsed(self, where: str, rows: Any, parse: Callable[[dict[str, Any], int], T]) -> Iterator[T]:
        if not isinstance(rows, Iterable) or isinstance(rows, str | Mapping):
            raise ConfigError(f"{self._name}: {where} must be rows, such as a list of dicts, not {type(rows).__name__}")
        with running(f"{self._name}: {where} fails"):
            rows = list(rows)  # a generator runs here
        for number, row in enumerate(rows, start=1):
            try:
                if not isinstance(row, Mapping):
                    raise BadField("row", f"must be a dict, is {type(row).__name__}")
                parsed = parse(dict(row), number)
            except BadField as bad:
                raise DataError(f"{self._name}: {where}, row {number}: {bad.field}: {bad.reason}") from None
            yield parsed
