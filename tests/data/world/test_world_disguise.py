"""Renamed episodes say the same about other people. And everything is the same in every process."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from holdfast.agent.protocol import CLEAN
from holdfast.data.world.bundle import filler_of, interchangeable_tokens, scripted_rollouts, world_of, world_tokenizer
from holdfast.data.world.facts import INTERCHANGEABLE, World
from holdfast.data.world.model import build_model
from holdfast.data.world.scripted import stated
from holdfast.data.world.settings import Scripts
from holdfast.model.tokens import decode, encode
from holdfast.recipe import World as WorldConfig
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.train.warm_start import Demonstration, augment_by_renaming, encode_demonstration


@pytest.fixture(scope="module")
def encoded(kit: SimpleNamespace) -> list[Demonstration]:
    return [
        encode_demonstration(
            encode(kit.tokenizer, f"Question: {e.question.example.question}\n"), e.turns, CLEAN, kit.tokenizer
        )
        for e in kit.episodes
    ]


@pytest.fixture(scope="module")
def pools(kit: SimpleNamespace, world: World) -> list[list[int]]:
    return interchangeable_tokens(world, kit.tokenizer)


def test_pools_hold_every_word_once(kit: SimpleNamespace, world: World, pools: list[list[int]]) -> None:
    assert [len(pool) for pool in pools] == [len(words) for words in (*world.name_pools, *INTERCHANGEABLE)]
    ids = [i for pool in pools for i in pool]
    assert len(ids) == len(set(ids))
    assert decode(kit.tokenizer, pools[0]).split() == list(world.name_pools[0])


def test_a_disguise_keeps_masks_and_structure(kit: SimpleNamespace, encoded: list[Demonstration], pools) -> None:
    pool_of = {i: number for number, pool in enumerate(pools) for i in pool}
    renamed = 0
    for plain, hidden in zip(encoded, augment_by_renaming(encoded, pools, len(encoded), seed=1), strict=True):
        assert hidden.loss_mask == plain.loss_mask
        pairs = set(zip(plain.token_ids, hidden.token_ids, strict=True))
        # One new name for each old one and the other way round, of the same kind; everything else is untouched.
        assert len({old for old, _ in pairs}) == len({new for _, new in pairs}) == len(pairs)
        assert all(pool_of.get(old) == pool_of.get(new) for old, new in pairs)
        assert all(old == new for old, new in pairs if old not in pool_of)
        renamed += sum(old != new for old, new in pairs)
    assert renamed > 5 * len(encoded)


def test_a_disguise_renames_every_mention(
    kit: SimpleNamespace, encoded: list[Demonstration], world: World, pools
) -> None:
    """A name spelled by other tokens somewhere would keep the old fact in sight."""
    gone = {i for pool in pools for i in pool}
    names = re.compile("|".join(rf"\b{word}\b" for word in world.names))
    assert names.search(decode(kit.tokenizer, encoded[0].token_ids))
    for episode in encoded:
        left = decode(kit.tokenizer, [i for i in episode.token_ids if i not in gone])
        assert not names.search(left)


def test_a_right_episode_stays_right(kit: SimpleNamespace, encoded: list[Demonstration], pools) -> None:
    """What a right episode answers is what a passage it read states, also under other names."""
    seen = 0
    for script, hidden in zip(kit.episodes, augment_by_renaming(encoded, pools, len(encoded), seed=2), strict=True):
        if script.correct and len(script.turns) > 1:
            text = decode(kit.tokenizer, [int(i) for i in hidden.token_ids])
            given = re.findall(r"<answer> (.*?) </answer>", text)[-1]
            assert given in [value for _, _, value in stated(text)]
            seen += 1
    assert seen > 30


def test_training_reads_of_nobody_else(kit: SimpleNamespace, world: World) -> None:
    """Scripts over the training index state no fact about a person of dev or test."""
    strangers = {fact.subject for split in ("dev", "test") for fact in world.facts[split]}
    facts = [fact for e in kit.episodes for said, heard in e.turns for fact in stated(said + heard)]
    assert len(facts) > 500
    assert not {subject for subject, _, _ in facts} & strangers


def fingerprint() -> str:
    """Everything a warm start is made of."""
    world_config = WorldConfig(people=60, train_questions=80, dev_questions=10, test_questions=10, filler_words=40)
    world, filler, own = world_of(world_config), filler_of(world_config), Scripts(count=40, ramble=0.2)
    episodes = scripted_rollouts(world, filler, BM25Retriever.build(world.documents("train")), CLEAN, own, seed=0)
    tokenizer = world_tokenizer(world, filler, episodes, CLEAN)
    model = build_model(tokenizer, hidden=16, layers=1, heads=2)
    encoded = [encode_demonstration((5,), episode.turns, CLEAN, tokenizer) for episode in episodes]
    parts = (
        world,
        filler,
        [episode.turns for episode in episodes],
        sorted(tokenizer.get_vocab().items()),
        [weight.tolist() for weight in model.parameters()],
        [
            list(map(int, e.token_ids))
            for e in augment_by_renaming(encoded, interchangeable_tokens(world, tokenizer), 50, seed=0)
        ],
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@pytest.mark.long
def test_every_process_makes_the_same() -> None:
    """String hashes, and with them the order of sets, differ between processes."""
    other = str((int(os.environ.get("PYTHONHASHSEED", "0").replace("random", "0")) + 1) % 1000)
    code = f"import runpy; print(runpy.run_path({__file__!r})['fingerprint']())"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": other},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == fingerprint()
