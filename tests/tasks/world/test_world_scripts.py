"""Scripted episodes: the perfect one is right wherever a search can be, and each habit does what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from holdfast.agent.protocol import CLEAN, SEARCH_R1, SearchProtocol, parse_action
from holdfast.agent.trajectory import Action, Answer, Invalid, Search
from holdfast.recipe.world import Scripts
from holdfast.recipe.world import World as Settings
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Hit
from holdfast.tasks.world.facts import World, WorldQuestion, other_name
from holdfast.tasks.world.scripted import (
    PERFECT,
    Filler,
    ScriptedRollout,
    build_filler,
    run_scripts,
    scripted_rollouts,
    stated,
)

LONG = replace(CLEAN, max_turns=8)  # two hops with two attempts each, a malformed turn, the answer


class Play:
    """Runs scripts over the small world's questions."""

    def __init__(self, index: BM25Retriever, questions: Sequence[WorldQuestion]) -> None:
        self.index, self.questions = index, questions

    def __call__(
        self,
        scripts: Scripts,
        *,
        protocol: SearchProtocol = LONG,
        filler: Filler | None = None,
        seed: int = 0,
        hops: int | None = None,
    ) -> list[ScriptedRollout]:
        return run_scripts(
            [q for q in self.questions if hops in (None, len(q.hops))],
            self.index,
            protocol,
            scripts=scripts,
            filler=filler,
            seed=seed,
        )


def only(**habits: float) -> Scripts:
    return PERFECT.model_copy(update=habits)


@pytest.fixture(scope="module")
def play(world: World, index: BM25Retriever) -> Play:
    return Play(index, [q for split in ("train", "dev", "test") for q in world.questions[split]])


def actions(episode: ScriptedRollout) -> list[Action]:
    return [parse_action(said, LONG) for said, _ in episode.turns]


def answer(episode: ScriptedRollout) -> str:
    last = actions(episode)[-1]
    assert isinstance(last, Answer)
    return last.text


def queries(episode: ScriptedRollout) -> list[str]:
    return [action.query for action in actions(episode) if isinstance(action, Search)]


def test_perfect_is_right_wherever_a_search_finds_the_passage(play: Play, index: BM25Retriever) -> None:
    unreachable = 0
    for episode in play(PERFECT):
        reached = all(
            any(
                hop.fact.doc_id in [hit.document.id for hit in index.search([f"{name} of {hop.fact.subject}"], 3)[0]]
                for name in (hop.asked, other_name(hop.asked))
            )
            for hop in episode.question.hops
        )
        unreachable += not reached
        assert episode.correct == reached
        assert not any(isinstance(action, Invalid) for action in actions(episode))
    assert unreachable < 20


def test_perfect_searches_for_each_hop_and_again_only_after_a_miss(play: Play) -> None:
    twice = 0
    for episode in play(PERFECT):
        expected = []
        for hop in episode.question.hops:
            expected.append(f"{hop.asked} of {hop.fact.subject}")
            observed = dict(zip(queries(episode), [heard for _, heard in episode.turns], strict=False))[expected[-1]]
            if (hop.fact.subject, hop.fact.written, hop.fact.value) not in stated(observed):
                expected.append(f"{other_name(hop.asked)} of {hop.fact.subject}")
                twice += 1
        assert queries(episode) == expected
    assert twice > 20


def test_give_up(play: Play) -> None:
    """After a first miss the guess is a value that was read; who does not miss plays on as if perfect."""
    gave_up = 0
    for episode, perfect in zip(play(only(give_up=1), hops=1), play(PERFECT, hops=1), strict=True):
        assert len(queries(episode)) == 1
        if len(queries(perfect)) == 2:
            gave_up += 1
            assert "Not found. I guess." in episode.turns[-1][0]
            assert answer(episode) in [value for _, _, value in stated(episode.turns[0][1])]
        else:
            assert episode.turns == perfect.turns
    assert gave_up > 10


def test_stop_early(play: Play) -> None:
    for episode in play(only(stop_early=1)):
        if len(queries(episode)) < 2:
            assert answer(episode) == episode.question.hops[0].fact.value
        assert len(queries(episode)) <= 2
    assert all(episode.correct for episode in play(only(stop_early=1), hops=1))


@pytest.mark.parametrize(("plain", "stops"), [(True, False), (False, True)])
def test_two_values_of_stop_early_are_of_the_plain_scripts_and_of_those_after(
    settings: Settings, index: BM25Retriever, plain: bool, stops: bool
) -> None:
    scripts = PERFECT.model_copy(update={"count": 100, "stop_early": (0.0, 1.0)})
    stopping = settings.model_copy(update={"scripts": scripts})
    episodes = scripted_rollouts(stopping, index, LONG, seed=0, plain=plain)
    two_hop = [episode for episode in episodes if len(episode.question.hops) == 2]
    assert len(two_hop) > 30
    assert {answer(episode) == episode.question.hops[0].fact.value for episode in two_hop} == {stops}


def test_ramble(play: Play) -> None:
    filler = build_filler(Settings(filler_words=500, filler_length=(4, 6), ramble_length=(30, 40)))
    assert filler is not None
    for episode in play(only(ramble=1), filler=filler):
        assert len(episode.turns) == 1 and not episode.correct
        thought = episode.turns[0][0].partition("</think>")[0].split()
        assert 30 <= sum(word in filler.words for word in thought) <= 40
    for episode in play(PERFECT, filler=filler)[:50]:
        for said, _ in episode.turns:
            words = said.removeprefix("<think> ").split()
            assert 4 <= next(i for i, word in enumerate(words) if word not in filler.words) <= 6


@pytest.mark.parametrize("protocol", [CLEAN, SEARCH_R1], ids=lambda p: p.name)
def test_observations_are_written_as_the_environment_writes_them(kit, index: BM25Retriever, protocol) -> None:
    """Text learned in a warm start must be, token for token, text met in a rollout."""
    found: list[list[Hit] | None] = [None, [], *index.search(["mentor", "the badge of nobody"], 3)]
    for hits in found:
        theirs = protocol.observe(hits, kit.tokenizer)
        assert not theirs.truncated
        assert protocol.observation_text(hits) == theirs.text
        assert tuple(protocol.encode_observation(protocol.observation_text(hits), kit.tokenizer)) == theirs.token_ids
