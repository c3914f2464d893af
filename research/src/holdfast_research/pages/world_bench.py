"""What holdfast_research.pages.world measures on: a recipe's world with its indexes, scripts and tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.config import Config
from holdfast.loading import Retrievers, load_protocol, load_retrievers
from holdfast.retrieval.types import Hit, Retriever
from holdfast.search.protocol import SearchProtocol, render_prompt
from holdfast.train.warm_start import Demonstration, encode_demonstration
from holdfast.world.bundle import filler_of, observation_text, scripted_rollouts, world_of, world_tokenizer
from holdfast.world.facts import World, WorldQuestion
from holdfast.world.scripted import PERFECT, ScriptedRollout, run_scripts, stated

HELD_OUT = ("dev", "test")


@dataclass(frozen=True, slots=True)
class Measure:
    """A number, and the bounds it must keep (None: reported as it is)."""

    name: str
    value: float
    least: float | None = None
    most: float | None = None

    @property
    def holds(self) -> bool:
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)


@dataclass(frozen=True, slots=True)
class Bench:
    """A recipe's world and what is made from it without training."""

    config: Config
    retrievers: Retrievers
    world: World
    scripts: list[ScriptedRollout]
    tokenizer: Any

    @property
    def protocol(self) -> SearchProtocol:
        return load_protocol(self.config)

    def questions(self, *regions: str, hops: int | None = None) -> list[WorldQuestion]:
        return [q for r in regions for q in self.world.questions[r] if hops in (None, len(q.hops))]

    def perfect(self, *regions: str) -> list[ScriptedRollout]:
        """The script that makes no mistake, over the passages of all regions."""
        protocol = self.protocol
        return run_scripts(
            self.questions(*regions),
            self.retrievers.eval,
            protocol,
            observe=lambda hits: observation_text(hits, protocol),
            habits=PERFECT,
            filler=filler_of(self.config.world),
        )

    def encoded(self, script: ScriptedRollout, turns: Sequence[tuple[str, str]] | None = None) -> Demonstration:
        prompt = self.prompt(script.question.example.question)
        return encode_demonstration(prompt, script.turns if turns is None else turns, self.protocol, self.tokenizer)

    def prompt(self, question: str) -> list[int]:
        return render_prompt(question, self.protocol, self.tokenizer, self.config.model.chat_template)


def open_bench(config: Config) -> Bench:
    assert config.data.train == "world", "the recipe must train on the bundled world"
    world, filler, retrievers = world_of(config.world), filler_of(config.world), load_retrievers(config)
    protocol = load_protocol(config)
    scripts = scripted_rollouts(
        world, filler, retrievers.train, protocol, config.world.scripts, seed=config.warm_start.seed
    )
    return Bench(config, retrievers, world, scripts, world_tokenizer(world, filler, scripts, protocol))


def search(retriever: Retriever, query: str, k: int) -> list[Hit]:
    return retriever.search([query], k)[0]


def values(hits: Iterable[Hit]) -> list[str]:
    return [value for hit in hits for _, _, value in stated(hit.document.contents)]


def mean(numbers: Iterable[float]) -> float:
    numbers = list(numbers)
    return sum(numbers) / max(len(numbers), 1)
