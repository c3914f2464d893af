"""The bundled world as a task set: its training searches see the passages of the training split alone, and a tiny model
knows its words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.agent.protocol import SearchProtocol
from holdfast.recipe import Config
from holdfast.recipe.world import World as Settings
from holdfast.retrieval.types import Document, Retriever
from holdfast.tasks.demonstrations import Text
from holdfast.tasks.questions import Example
from holdfast.tasks.task_set import Questions, TaskSet
from holdfast.tasks.world.facts import build_world
from holdfast.tasks.world.model import build_model, interchangeable_tokens, world_tokenizer
from holdfast.tasks.world.scripted import scripted_rollouts


class WorldTasks(TaskSet):
    """Questions about made-up people, with scripts that show how to search."""

    own_passages = closed = has_model = True

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.world = build_world(settings)

    def questions(self) -> Questions:
        train, dev, test = (tuple(q.example for q in self.world.questions[split]) for split in ("train", "dev", "test"))
        return Questions(train=train, dev=dev, test=test)

    def passages(self) -> Sequence[Document]:
        return self.world.documents()

    def training_passages(self) -> Sequence[Document]:
        return self.world.documents("train")

    def demonstrations(
        self, asked: Sequence[Example], retriever: Retriever, protocol: SearchProtocol, *, seed: int, most: int
    ) -> Sequence[Text]:
        """All `world.scripts.count` scripts: the tiny model's tokenizer learns its words from them too."""
        return self._scripts(retriever, protocol, seed, plain=False)

    def first_lesson(self, retriever: Retriever, protocol: SearchProtocol, *, seed: int) -> tuple[int, Sequence[Text]]:
        steps = self._settings.scripts.plain_steps
        return steps, self._scripts(retriever, protocol, seed, plain=True) if steps else ()

    def tiny_model(self, config: Config, demonstrations: Sequence[Text], protocol: SearchProtocol) -> tuple[Any, Any]:
        settings = self._settings
        tokenizer = world_tokenizer(settings, demonstrations, protocol)
        return build_model(tokenizer, seed=config.warm_start.seed, **settings.model.model_dump()), tokenizer

    def interchangeable(self, tokenizer: Any) -> list[list[int]]:
        return interchangeable_tokens(self.world, tokenizer)

    def refusals(self, config: Config) -> Iterator[str]:
        retrieval = config.retrieval
        if retrieval.url is not None:
            yield (
                f"retrieval.url with data.train = {config.data.train!r}: only the bundled world's own passages answer "
                "its questions. Set data.train to your questions, or leave retrieval.url out"
            )
        elif retrieval.index is not None:
            yield (
                f"retrieval.index = {retrieval.index!r} with data.train = {config.data.train!r}: the bundled world is "
                "indexed in memory, with its training split separate. Leave retrieval.index out"
            )
        yield from super().refusals(config)

    def _scripts(self, retriever: Retriever, protocol: SearchProtocol, seed: int, *, plain: bool) -> list[Text]:
        scripts = scripted_rollouts(self._settings, retriever, protocol, seed=seed, plain=plain)
        return [(script.question.example.question, script.turns) for script in scripts]
