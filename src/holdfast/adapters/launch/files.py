"""The plan that a translation gives: what the launch folder holds. Templates are filled in, questions are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from holdfast.adapters.launch.recipe import Recipe
from holdfast.adapters.launch.translation import Option
from holdfast.base.errors import DataError
from holdfast.tasks.task_set import Questions


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A recipe for one host."""

    host: str
    options: tuple[Option, ...]
    notes: tuple[str, ...]
    """A sentence for each thing that the host does differently, or not at all."""
    files: Mapping[str, str]
    """Text files by their path in the folder."""
    data: Mapping[str, str]
    """Files that `write_data` writes: path in the folder -> their source, in words."""
    write_data: Callable[[Path], None] = field(compare=False)
    """Writes the questions into a folder. Raises `DataError` for a data file that cannot be used."""
    schedule: str
    """How K, the optimizer steps per rollout batch, follows from options of the host."""
    first: tuple[str, ...]
    """Commands to run before `run.sh`, in the folder."""

    @property
    def values(self) -> dict[str, object]:
        """Options by name."""
        return {option.name: option.value for option in self.options}


_PLACE = re.compile(r"«(\w+)»")
_IF = re.compile(r"«\?(\w+)»")


def filled(template: str, **texts: object) -> str:
    """A file of `launch/templates`, with a text at each «place». A line that begins with «?place» is there only if the
    text of that place is not empty."""
    lines = []
    for line in (files("holdfast.adapters.launch") / "templates" / template).read_text(encoding="utf-8").split("\n"):
        condition = _IF.match(line)
        if condition is None or texts[condition[1]]:
            rest = line[condition.end() :] if condition else line
            lines.append(_PLACE.sub(lambda match: str(texts[match[1]]), rest))
    return "\n".join(lines)


def questions_for(recipe: Recipe, host: str) -> Questions:
    """The questions of the task set.

    Raises `DataError` for a file that cannot be used, and for fewer questions than a rollout batch: both hosts leave
    out a batch that is not full, so they would not train at all.
    """
    questions, train = recipe.tasks.questions(), recipe.config.train
    if len(questions.train) < train.questions:
        raise DataError(
            f"data.train = {recipe.config.data.train!r} leaves {len(questions.train)} questions to train on, but a "
            f"rollout batch takes train.questions = {train.questions} and {host} skips a batch that is not full; "
            "lower it"
        )
    return questions
