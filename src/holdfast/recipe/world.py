"""The settings of the bundled world: sections `[world]`, `[world.model]` and `[world.scripts]` of a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from holdfast.base.section import Refusal, Section

Probability = Annotated[float, Field(ge=0, le=1)]


class TinyModel(Section):
    """The size of the tiny model."""

    hidden: int = Field(96, ge=16, le=4096)
    """Width of the tiny model."""
    layers: int = Field(3, ge=1, le=64)
    """Layers of the tiny model."""
    heads: int = Field(4, ge=1)
    """Attention heads of the tiny model."""

    def refusals(self) -> Iterator[Refusal | str]:
        if self.hidden % (2 * self.heads):
            yield Refusal(
                {"world.model.hidden": self.hidden, "world.model.heads": self.heads},
                "each head needs an even share of the width",
                f"Set world.model.hidden to a multiple of {2 * self.heads}",
            )


class Scripts(Section):
    """Scripted rollouts on the world's training questions, the demonstrations of a warm start. They are noisy on
    purpose."""

    plain_steps: int = Field(0, ge=0)
    """Supervised steps on scripts without filler, before `warm_start.steps`. The tiny model learns to read first."""
    count: int = Field(6000, ge=1)
    """Number of scripts. Each is used many times, with different names."""
    skip_search: float = Field(0.08, ge=0, le=1)
    """Probability that a script guesses without a search."""
    vague_query: float = Field(0.25, ge=0, le=1)
    """Probability that a script searches only for the person or only for the relation."""
    give_up: float = Field(0.5, ge=0, le=1)
    """Probability that a script guesses after a search that found nothing useful."""
    stop_early: Probability | Annotated[tuple[Probability, Probability], Field(strict=False)] = 0.55
    """Probability that a script answers a two-hop question with the result of the first hop. Two values: for the plain
    scripts and for those after them. They make a tiny model that can search twice but rarely does."""
    misread: float = Field(0.12, ge=0, le=1)
    """Probability that a script takes the answer from the wrong passage."""
    malformed: float = Field(0.03, ge=0, le=1)
    """Probability that a script begins with an invalid turn."""
    ramble: float = Field(0.0, ge=0, le=1)
    """Probability that a script is a long thought and then a guess."""


class World(Section):
    """The bundled world."""

    seed: int = 0
    """Seed of the bundled world. It is independent of `run.seed`, so runs with different seeds share one world."""
    people: int = Field(420, ge=40, le=2304)
    """Number of people in the world: 60 % in the training split, 15 % in dev, 25 % in test. No person is in two
    splits."""
    train_questions: int = Field(4000, ge=1)
    """Number of questions in the training split."""
    dev_questions: int = Field(200, ge=1)
    """Number of questions in the dev split."""
    test_questions: int = Field(400, ge=1)
    """Number of questions in the test split."""
    two_hop: float = Field(0.5, ge=0, le=1)
    """Fraction of questions that need two searches."""
    mismatch: float = Field(0.25, ge=0, le=1)
    """Probability that question and passage use different names for a relation."""
    filler_words: int = Field(0, ge=0, le=41_472)
    """Vocabulary size of the filler language in thoughts. 0: no filler."""
    filler_length: tuple[int, int] = Field((4, 10), strict=False)
    """Minimum and maximum length of the filler in a thought, in words."""
    ramble_length: tuple[int, int] = Field((18, 30), strict=False)
    """Minimum and maximum length of a rambling thought, in words."""
    model: TinyModel = TinyModel()
    """Size of the tiny model."""
    scripts: Scripts = Scripts()
    """Scripted demonstrations for the warm start."""

    def refusals(self) -> Iterator[Refusal | str]:
        for key, (shortest, longest) in (("filler_length", self.filler_length), ("ramble_length", self.ramble_length)):
            if not 1 <= shortest <= longest:
                yield (
                    f"world.{key} = [{shortest}, {longest}]: give the shortest length first, 1 or more, then the "
                    "longest"
                )
        if 0 < self.filler_words < 11:
            yield (
                f"world.filler_words = {self.filler_words}: each word needs ten others that can follow it; set 11 or "
                "more, or 0 for no filler"
            )
