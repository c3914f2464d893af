"""Questions to evaluate on: the world's, a recipe's own, a set by its name, or files; each question knows its set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.config import Config
from holdfast.data import Example, read_questions
from holdfast.datasets.catalogue import SETS
from holdfast.errors import ConfigError, DataError
from holdfast.evals.sets import set_of
from holdfast.jsonl import Skipped
from holdfast.world.bundle import world_of

WORLD = {"world": "test", "world-dev": "dev", "world-train": "train"}
"""Names of the bundled world's regions."""


def load_questions(
    names: Sequence[str], config: Config, *, limit: int | None = None, note: Callable[[str], None] | None = None
) -> list[Example]:
    """The questions that `names` name, in that order; of each set the first `limit`, if that is given.

    A name is `world`, `world-dev` or `world-train`, `test` or `dev` (the recipe's own files), or a JSONL file. Raises
    `ConfigError` for a name that is none of these, `DataError` for a file that cannot be used and for two questions
    with one id.
    """
    examples: list[Example] = []
    for name in names:
        examples += _named(name, config, note)
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


def _named(name: str, config: Config, note: Callable[[str], None] | None) -> Sequence[Example]:
    if name in WORLD:
        return [question.example for question in world_of(config.world).questions[WORLD[name]]]
    if name in ("test", "dev") and not Path(name).exists():
        path = config.data.test if name == "test" else config.data.dev
        if path is None:
            raise ConfigError(
                f"--data {name}: the recipe names no data.{name}; give a file of questions, or --data world for the "
                "bundled world's"
            )
        return _read(path, name, note)
    if name in SETS and not Path(name).exists():
        raise ConfigError(
            f"--data {name}: there is no file of that name here. Make one with holdfast data prepare {name}, and give "
            "its path"
        )
    if not Path(name).exists():
        raise ConfigError(
            f"--data {name}: no such file; give a JSONL file of questions, or one of {', '.join(WORLD)}, test, dev"
        )
    return _read(name, "test", note)


def _read(path: str, split: str, note: Callable[[str], None] | None) -> Sequence[Example]:
    skipped: list[Skipped] = []
    examples = read_questions(path, split=split, on_skip=skipped.append if note else None).examples
    if skipped and note:
        note(f"{path}: {len(skipped)} row(s) cannot be used and were skipped; the first: {skipped[0]}")
    return examples


def _refuse_twins(examples: Sequence[Example]) -> None:
    seen: set[str] = set()
    for example in examples:
        if example.id in seen:
            raise DataError(
                f"two questions have the id {example.id}: the same data was named twice, or two files have one name. "
                "Name each once, and rename one of the files"
            )
        seen.add(example.id)
