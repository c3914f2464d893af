"""The task set of files: questions of the user's. The recipe names the passages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.base.errors import ConfigError, DataError
from holdfast.base.jsonl import Skipped, Skips
from holdfast.recipe.paths import QUESTIONS, require
from holdfast.tasks.files import joined, read_questions
from holdfast.tasks.questions import Example, hold_out
from holdfast.tasks.task_set import Questions, TaskSet

if TYPE_CHECKING:
    from holdfast.recipe import Config

Note = Callable[[str], None]
"""Takes a sentence for people."""


class FileTasks(TaskSet):
    """Questions in files. `note` gets the number of skipped rows of a file by reason."""

    def __init__(self, config: Config, note: Note) -> None:
        self._config, self._data, self._note = config, config.data, note

    def questions(self) -> Questions:
        """Without a dev file, some training questions are held out. Errors name the file and the line."""
        require(self._config, *QUESTIONS)
        data = self._data
        train, dev, test = (self._read(path, split) for split, path in data.files())
        if data.dev is None:
            train, dev = held_out(train, f"data.train = {data.train!r}", "add questions or set data.dev")
        return Questions(train=train, dev=dev, test=test)

    @property
    def has_test(self) -> bool:
        return self._data.test is not None

    def refusals(self, config: Config) -> Iterator[str]:
        """None: its settings are the files."""
        return iter(())

    def _read(self, path: str | None, split: str) -> tuple[Example, ...]:
        if path is None:
            return ()
        with skipped_rows(path, f"data.{split}", self._note) as on_skip:
            questions = read_questions(path, split=split, on_skip=on_skip)
        if told := joined(questions):
            self._note(f"data.{split} = {path!r}: {told}")
        return questions


def held_out(examples: tuple[Example, ...], where: str, remedy: str) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """`hold_out`. Raises `ConfigError` if no training questions are left."""
    train, dev = hold_out(examples)
    if not train:
        raise ConfigError(f"{where} has only {len(dev)} question(s), too few to keep some for evaluation; {remedy}")
    return train, dev


@contextmanager
def skipped_rows(path: str, setting: str, note: Note) -> Iterator[Callable[[Skipped], None]]:
    """An `on_skip` for a reader of rows. What was skipped goes to `note` by reason. A `DataError` inside gets the name
    of the setting."""
    skips = Skips()
    try:
        yield skips
    except DataError as error:
        raise DataError(f"{setting}: {error}") from error
    if told := skips.sentences():
        note(f"{setting} = {path!r}: {'; '.join(told)}")
