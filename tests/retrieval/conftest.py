"""Corpora and builders that tests of indexes share."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.train.listener import Listener

WriteCorpus = Callable[..., Path]


@pytest.fixture
def write_corpus(tmp_path: Path) -> WriteCorpus:
    """write_corpus(rows, name="corpus.jsonl"): a file of `count` random passages, or of the rows given."""

    def write(rows: int | list[Any], name: str = "corpus.jsonl", *, seed: int = 0) -> Path:
        if isinstance(rows, int):
            rng = random.Random(seed)
            words = [f"w{i}" for i in range(200)]
            weights = [1 / (i + 1) for i in range(200)]
            texts = [" ".join(rng.choices(words, weights, k=rng.randint(1, 30))) for _ in range(rows)]
            rows = [{"id": str(i), "contents": f'"Title {i}"\n{text}'} for i, text in enumerate(texts)]
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A limit of the process, at which a write fails as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def small_disk() -> Callable[[int], AbstractContextManager[None]]:
    return files_of_at_most


class Interrupted(BaseException):
    """As if the process had been killed."""


class KillingListener(Listener):
    """Ends the work at the n-th word it hears."""

    def __init__(self, at: int) -> None:
        self.left, self.notes = at, []  # type: ignore[var-annotated]

    def _tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Interrupted

    def stage(self, name: str, total: int | None = None) -> None:
        self._tick()

    def advance(self, done: int, detail: Any = None) -> None:
        self._tick()

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture
def killing() -> type[KillingListener]:
    return KillingListener


@pytest.fixture
def interrupted() -> type[BaseException]:
    return Interrupted
