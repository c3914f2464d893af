"""The questions that a trainer will be given, looked at before anything is written for it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.config import Config
from holdfast.data import Example, hold_out, read_questions
from holdfast.errors import DataError


def train_and_dev(config: Config, host: str) -> tuple[Sequence[Example], Sequence[Example]]:
    """The questions to train on, and those read while training: the recipe's, or what is held out.

    Raises `DataError` for a file that is missing or cannot be used, and for fewer questions than a rollout batch has:
    both trainers leave out a batch that is not full, and would train nothing.
    """
    data = config.data
    train: Sequence[Example] = read_questions(data.train, split="train").examples
    if data.dev is None:
        train, dev = hold_out(train)
    else:
        dev = read_questions(data.dev, split="dev").examples
    if len(train) < config.train.questions:
        raise DataError(
            f"data.train = {data.train!r} leaves {len(train)} questions to train on, but a rollout batch takes "
            f"train.questions = {config.train.questions} and {host} leaves out a batch that is not full; lower it"
        )
    return train, dev
