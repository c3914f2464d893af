"""The bundled world as a run uses it: a starting policy's tokenizer, model and demonstrations, all from the recipe."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

from holdfast.agent.protocol import SearchProtocol
from holdfast.recipe.world import Scripts
from holdfast.recipe.world import World as WorldConfig
from holdfast.retrieval.types import Retriever
from holdfast.tasks.demonstrations import Text
from holdfast.tasks.world.facts import INTERCHANGEABLE, World, build_world
from holdfast.tasks.world.language import Filler, build_filler
from holdfast.tasks.world.model import build_tokenizer, vocabulary_texts
from holdfast.tasks.world.scripted import ScriptedRollout, run_scripts


@functools.lru_cache(maxsize=1)
def world_of(config: WorldConfig) -> World:
    """The world of the recipe, built once."""
    return build_world(
        config.seed,
        people=config.people,
        train_questions=config.train_questions,
        dev_questions=config.dev_questions,
        test_questions=config.test_questions,
        two_hop=config.two_hop,
        mismatch=config.mismatch,
    )


def filler_of(config: WorldConfig) -> Filler | None:
    """The filler language of the recipe, or None if it has none."""
    if not config.filler_words:
        return None
    return build_filler(
        config.seed,
        words=config.filler_words,
        thought_length=config.filler_length,
        ramble_length=config.ramble_length,
    )


def scripted_rollouts(
    world: World,
    filler: Filler | None,
    retriever: Retriever,
    protocol: SearchProtocol,
    scripts: Scripts,
    *,
    seed: int,
    plain: bool = False,
) -> list[ScriptedRollout]:
    """Noisy scripts over training questions, with the habits of the recipe: of its plain scripts, or of those after.
    Some are correct and some are not."""
    rng = random.Random(f"holdfast-episodes-{seed}")  # a former name: another text draws other scripts
    questions = [rng.choice(world.questions["train"]) for _ in range(scripts.count)]
    return run_scripts(
        questions,
        retriever,
        protocol,
        scripts=scripts,
        plain=plain,
        filler=filler,
        seed=seed,
    )


def world_tokenizer(
    world: World, filler: Filler | None, demonstrations: Sequence[Text], protocol: SearchProtocol
) -> Any:
    """A tokenizer that knows every word of the world, of the filler and of the protocol."""
    samples = [
        protocol.prompt.replace("{question}", question) + "".join(f"{text}{observation}" for text, observation in turns)
        for question, turns in demonstrations[:2000]
    ]
    words = (*world.names, *(filler.words if filler else ()))
    return build_tokenizer(vocabulary_texts(world, [*samples, *[protocol.invalid_note] * 2]), words)


def interchangeable_tokens(world: World, tokenizer: Any) -> list[list[int]]:
    """Pools of token ids whose words can be exchanged: given names, family names, towns, and so on."""
    pools = []
    for words in (*world.name_pools, *INTERCHANGEABLE):
        encoded = [tokenizer.encode(f" {word}", add_special_tokens=False) for word in words]
        pools.append([ids[0] for ids in encoded if len(ids) == 1])
    return pools
