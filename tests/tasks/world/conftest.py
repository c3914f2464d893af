"""A small world and what is made from it: built once."""

from types import SimpleNamespace

import pytest

from holdfast.agent.protocol import CLEAN
from holdfast.recipe.world import Scripts
from holdfast.recipe.world import World as Settings
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.tasks.world.facts import World, build_world
from holdfast.tasks.world.model import world_tokenizer
from holdfast.tasks.world.scripted import build_filler, scripted_rollouts


@pytest.fixture(scope="session")
def settings() -> Settings:
    return Settings(
        seed=3,
        people=100,
        train_questions=500,
        dev_questions=60,
        test_questions=100,
        filler_words=60,
        scripts=Scripts(count=300, ramble=0.1),
    )


@pytest.fixture(scope="session")
def world(settings: Settings) -> World:
    return build_world(settings)


@pytest.fixture(scope="session")
def index(world: World) -> BM25Retriever:
    """Over all passages."""
    return BM25Retriever.build(world.documents())


@pytest.fixture(scope="session")
def kit(settings: Settings, world: World) -> SimpleNamespace:
    """Scripts in the default habits with a little rambling, over the training split, and their tokenizer."""
    train_index = BM25Retriever.build(world.documents("train"))
    episodes = scripted_rollouts(settings, train_index, CLEAN, seed=0)
    texts = [(episode.question.example.question, episode.turns) for episode in episodes]
    tokenizer = world_tokenizer(settings, texts, CLEAN)
    filler = build_filler(settings)
    return SimpleNamespace(train_index=train_index, filler=filler, episodes=episodes, tokenizer=tokenizer)
