"""A small world and what is made from it: built once."""

from types import SimpleNamespace

import pytest

from holdfast.agent.protocol import CLEAN
from holdfast.recipe.world import Scripts
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.tasks.world.bundle import scripted_rollouts, world_tokenizer
from holdfast.tasks.world.facts import World, build_world
from holdfast.tasks.world.language import build_filler


@pytest.fixture(scope="session")
def world() -> World:
    return build_world(3, people=100, train_questions=500, dev_questions=60, test_questions=100)


@pytest.fixture(scope="session")
def index(world: World) -> BM25Retriever:
    """Over all passages."""
    return BM25Retriever.build(world.documents())


@pytest.fixture(scope="session")
def kit(world: World) -> SimpleNamespace:
    """Scripts in the default habits with a little rambling, over the training split, and their tokenizer."""
    train_index = BM25Retriever.build(world.documents("train"))
    filler = build_filler(3, words=60)
    episodes = scripted_rollouts(world, filler, train_index, CLEAN, Scripts(count=300, ramble=0.1), seed=0)
    texts = [(episode.question.example.question, episode.turns) for episode in episodes]
    tokenizer = world_tokenizer(world, filler, texts, CLEAN)
    return SimpleNamespace(train_index=train_index, filler=filler, episodes=episodes, tokenizer=tokenizer)
