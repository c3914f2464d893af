"""Questions to evaluate on (the bundled world's, the recipe's, or the sets and files that `holdfast data` knows), and
questions to ask an agent by hand."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from holdfast.agent.agent import SearchAgent
from holdfast.base.errors import ConfigError, DataError
from holdfast.base.jsonl import text_field
from holdfast.base.rows import iter_rows
from holdfast.base.run_folder import ANSWERS
from holdfast.evaluate.results import set_of
from holdfast.model.text.tokens import encode
from holdfast.recipe import Config, require
from holdfast.recipe.paths import is_path
from holdfast.recipe.sections import FACTBOOK, WORLD
from holdfast.tasks.demonstrate import content_words
from holdfast.tasks.opening import bundled, open_tasks
from holdfast.tasks.prepare import open_questions
from holdfast.tasks.questions import Example

_SPLITS = {"": "test", "-dev": "dev", "-train": "train"}
_BUNDLED = {f"{name}{ending}": (name, split) for name in (WORLD, FACTBOOK) for ending, split in _SPLITS.items()}
"""Name of questions, such as `world-dev` -> the task set of the package, and the split."""
_OF_RECIPE = ("test", "dev")
_IN_FOLDER = ("test.jsonl", "test.parquet", "questions.jsonl", "questions.parquet")


def load_questions(names: Sequence[str], config: Config, *, limit: int | None = None) -> list[Example]:
    """The questions of `names`, in that order; with `limit`, the first ones of each set.

    A name is `world`, `world-dev` or `world-train`, or the same of `factbook`; `test` or `dev`, those of the recipe,
    with what training holds out as `dev`; or, as in `open_questions`, a file (or a folder with one), a set, several
    sets joined with `+`, `seven`, or `sample`. Raises `ConfigError` for questions that the recipe does not have, and
    `DataError` for what cannot be read, and for two questions with one id.
    """
    examples = [example for name in names for example in _named(name, config)]
    _refuse_equal_ids(examples)
    if limit is None:
        return examples
    counts: Counter[str] = Counter()
    limited = []
    for example in examples:
        counts[set_of(example)] += 1
        if counts[set_of(example)] <= limit:
            limited.append(example)
    return limited


def asks_world(name: str) -> bool:
    """Whether a name means questions of the bundled world."""
    return _BUNDLED.get(name, ("",))[0] == WORLD


def usual_questions(config: Config) -> str:
    """The questions a recipe's model is evaluated on, by name: `dev` without test questions, as after a run."""
    if config.data.train == WORLD:
        return WORLD
    return "dev" if config.data.test is None and is_path("data.train", config.data.train) else "test"


def is_of_recipe(name: str) -> bool:
    """Whether a name means questions of the recipe, and not a file or folder that has that name."""
    return name in _OF_RECIPE and not Path(name).exists()


def digest(examples: Sequence[Example]) -> str:
    """A hash of ids, questions and golden answers."""
    sha256 = hashlib.sha256()
    for example in examples:
        sha256.update(repr((example.id, example.question, example.golden_answers)).encode())
    return sha256.hexdigest()[:16]


def _named(name: str, config: Config) -> Sequence[Example]:
    if name in _BUNDLED:
        of, split = _BUNDLED[name]
        return bundled(of, config).questions().splits[split]
    if is_of_recipe(name):
        path = config.data.test if name == "test" else config.data.dev
        if path is not None:
            require(config, f"data.{name}")
            return open_questions(path)
        of_run = open_tasks(config).questions()
        if questions := of_run.test if name == "test" else of_run.dev:
            return questions
        raise ConfigError(
            f"--data {name}: the recipe does not set data.{name}; give a file of questions, the name of a set, dev for "
            "what was held out in training, or world for the bundled world's"
        )
    return open_questions(_file_in(name) if Path(name).is_dir() else name)


def _file_in(folder: str) -> str:
    """The file of test questions in a folder that `holdfast data prepare` wrote."""
    for name in _IN_FOLDER:
        if (path := Path(folder) / name).is_file():
            return str(path)
    raise DataError(f"{folder} contains none of {', '.join(_IN_FOLDER)}; give a file of questions")


def _refuse_equal_ids(examples: Sequence[Example]) -> None:
    seen: set[str] = set()
    for example in examples:
        if example.id in seen:
            raise DataError(
                f"two questions have the id {example.id}: the same data was named twice, or two files have the same "
                "name. Name each once, or rename one of the files"
            )
        seen.add(example.id)


# ---- what an agent can be asked: words of a question that are new to it, and questions that it can answer


def new_words(question: str, agent: SearchAgent, config: Config) -> list[str]:
    """A sentence for the words of a question that the model has never seen, and one for those in no passage.

    The tokenizer of a tiny model has each word of its world as one token. Other models read any word. Passages behind a
    server are not asked: a search for each word would cost as much as the answer.
    """
    words = list(dict.fromkeys(word.strip("'.-").removesuffix("'s") for word in content_words(question)))
    words = [word for word in words if word]
    unseen = [word for word in words if config.model.is_tiny and len(encode(agent.tokenizer, f" {word}")) > 1]
    known = getattr(agent.retriever, "documents", ())
    hits = agent.retriever.search(words, 1) if known and words else [[None]] * len(words)
    absent = [word for word, found in zip(words, hits, strict=True) if not found]
    about = (("words that the model has never seen", unseen), ("words that no passage has", absent))
    return [f"{what}: {', '.join(of)}" for what, of in about if of]


def answerable(run: Path, config: Config, count: int = 3) -> tuple[str, list[str]]:
    """(what they are, questions) to try: held-out ones that the closing evaluation of the run has answered correctly;
    before it, or if there are none, any held-out ones."""
    try:
        rows = iter_rows(run / ANSWERS, _correct, what="answer", on_skip=lambda _: None)
        if correct := list(islice(filter(None, rows), count)):
            return "held-out questions that it has answered correctly", correct
    except DataError:
        pass  # an unfinished run; examples are not worth an error
    questions = open_tasks(config, lambda _: None).questions()
    held_out = questions.test or questions.dev
    return "held-out questions", [example.question for example in held_out[:count]]


def _correct(row: dict[str, Any], _: int) -> str | None:
    """The question of a row of answers.jsonl if its most likely answer is correct."""
    return text_field(row, "question") if row.get("em_greedy") == [1.0] else None
