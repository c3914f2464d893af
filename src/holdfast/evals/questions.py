"""Questions to evaluate on: the bundled world's, a recipe's own, or what `holdfast data` knows: sets and files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from holdfast.config import Config
from holdfast.data import Example
from holdfast.datasets.prepare import open_questions
from holdfast.errors import ConfigError, DataError
from holdfast.evals.sets import set_of
from holdfast.world.bundle import world_of

WORLD = {"world": "test", "world-dev": "dev", "world-train": "train"}
"""Names of the bundled world's regions."""
_IN_FOLDER = ("test.jsonl", "test.parquet", "questions.jsonl", "questions.parquet")


def load_questions(names: Sequence[str], config: Config, *, limit: int | None = None) -> list[Example]:
    """The questions that `names` name, in that order; of each set the first `limit`, if that is given.

    A name is `world`, `world-dev` or `world-train`; `test` or `dev`, the recipe's own files; or, as `open_questions`
    reads them, a file (or a folder with one), a set, several joined with `+`, `seven`, or `sample`. Raises
    `ConfigError` for a file the recipe does not name, and `DataError` for everything that cannot be read and for two
    questions with one id.
    """
    examples = [example for name in names for example in _named(name, config)]
    _refuse_twins(examples)
    if limit is None:
        return examples
    kept: dict[str, int] = {}
    chosen = []
    for example in examples:
        own = set_of(example)
        kept[own] = kept.get(own, 0) + 1
        if kept[own] <= limit:
            chosen.append(example)
    return chosen


def digest(examples: Sequence[Example]) -> str:
    """Of ids, questions and golden answers."""
    found = hashlib.sha256()
    for example in examples:
        found.update(repr((example.id, example.question, example.golden_answers)).encode())
    return found.hexdigest()[:16]


def _named(name: str, config: Config) -> Sequence[Example]:
    if name in WORLD:
        return [question.example for question in world_of(config.world).questions[WORLD[name]]]
    if name in ("test", "dev") and not Path(name).exists():
        path = config.data.test if name == "test" else config.data.dev
        if path is None:
            raise ConfigError(
                f"--data {name}: the recipe names no data.{name}; give a file of questions, the name of a set, or "
                "world for the bundled world's"
            )
        return open_questions(path)
    return open_questions(_file_in(name) if Path(name).is_dir() else name)


def _file_in(folder: str) -> str:
    """The test questions of a folder that `holdfast data prepare` wrote."""
    for name in _IN_FOLDER:
        if (found := Path(folder) / name).is_file():
            return str(found)
    raise DataError(f"{folder} holds none of {', '.join(_IN_FOLDER)}; give a file of questions")


def _refuse_twins(examples: Sequence[Example]) -> None:
    seen: set[str] = set()
    for example in examples:
        if example.id in seen:
            raise DataError(
                f"two questions have the id {example.id}: the same data was named twice, or two files have one name. "
                "Name each once, and rename one of the files"
            )
        seen.add(example.id)
