"""What a run works on, as one value: questions, passages, demonstrations, and what its starting policy is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.agent.protocol import SearchProtocol
from holdfast.recipe import Config
from holdfast.retrieval.types import Document, Retriever
from holdfast.tasks.demonstrate import demonstrate
from holdfast.tasks.demonstrations import Text
from holdfast.tasks.questions import Example


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """The questions of a task set."""

    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    test: tuple[Example, ...]
    """Empty if there are none."""

    @property
    def splits(self) -> dict[str, tuple[Example, ...]]:
        """The questions of each split."""
        return {"train": self.train, "dev": self.dev, "test": self.test}


class TaskSet(ABC):
    """What a run works on. `open_tasks` makes it of a recipe, once; everything else gets the object.

    A set needs questions. All other parts have a default, which is right for a model and passages that the recipe
    names.
    """

    own_passages: bool = False
    """Whether `passages` has some; else the recipe names them."""
    closed: bool = False
    """Whether its passages answer no questions but its own, and no others answer those."""
    has_model: bool = False
    """Whether `tiny_model` makes a model, for `model.path = "tiny"`."""

    extras: tuple[str, ...] = ()
    """Extras of this package that it needs."""

    @abstractmethod
    def questions(self) -> Questions:
        """The questions of all splits. Raises `DataError` for what cannot be read."""

    @property
    def has_test(self) -> bool:
        """Whether there are test questions."""
        return bool(self.questions().test)

    def passages(self) -> Iterable[Document]:
        """The passages of all splits."""
        return ()

    def training_passages(self) -> Iterable[Document] | None:
        """The passages that a search in training may find; None for all of them."""
        return None

    def demonstrations(
        self, asked: Sequence[Example], retriever: Retriever, protocol: SearchProtocol, *, seed: int, most: int
    ) -> Sequence[Text]:
        """At most about `most` demonstrations, for a warm start whose recipe names no file of them. `asked` are the
        training questions.

        By default those of `holdfast data demonstrate`: a script asks the questions and searches.
        """
        return demonstrate(asked, retriever, protocol, seed=seed, most=most).some()

    def first_lesson(self, retriever: Retriever, protocol: SearchProtocol, *, seed: int) -> tuple[int, Sequence[Text]]:
        """(supervised steps, demonstrations) before those of the warm start."""
        return 0, ()

    def tiny_model(self, config: Config, demonstrations: Sequence[Text], protocol: SearchProtocol) -> tuple[Any, Any]:
        """(model, tokenizer), untrained, that knows the words of the set. Only where `has_model`."""
        raise TypeError(f"{type(self).__name__} has no model of its own")

    def interchangeable(self, tokenizer: Any) -> Sequence[Sequence[int]]:
        """Pools of token ids of the tiny model whose words can be exchanged in a demonstration."""
        return ()

    def fingerprint(self) -> Mapping[str, str]:
        """What the cache of starting policies must know beside the settings: for a set that is code, its digest."""
        return {}

    def refusals(self, config: Config) -> Iterator[str]:
        """A sentence for each setting that does not go with this set: what is set, why it fails, what to do."""
        data = config.data
        for split, path in (("dev", data.dev), ("test", data.test)):
            if path is not None:
                yield (
                    f"data.{split} = {path!r} with data.train = {data.train!r}: this task set has its own {split} "
                    f"questions. Set data.train to a file too, or leave data.{split} out"
                )
        if self.own_passages and config.retrieval.corpus is not None:
            yield (
                f"retrieval.corpus = {config.retrieval.corpus!r} with data.train = {data.train!r}: this task set has "
                "its own passages. Set data.train to your questions too, or leave retrieval.corpus out"
            )
