"""Facts, passages and questions: closed splits, distinct questions, answers that score, any size."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from holdfast.base.errors import ConfigError
from holdfast.base.scoring import exact_match
from holdfast.data.world.facts import (
    ATTRIBUTES,
    INTERCHANGEABLE,
    RELATIONS,
    SPLITS,
    World,
    build_world,
    golden_answers,
    other_name,
)


def digest(world: World) -> str:
    return hashlib.sha256(repr(world).encode()).hexdigest()[:16]


def test_the_default_world_is_what_it_was() -> None:
    """docs/ has numbers measured on it, and a cached warm start is found by settings, which do not know its text."""
    assert digest(build_world(0)) == "b7c25c4fd5b876c7"


def test_seeds_differ_in_everything() -> None:
    one, two = build_world(0, people=60), build_world(1, people=60)
    assert not {d.contents for d in one.documents()} & {d.contents for d in two.documents()}
    assert not {q.example.question for q in one.questions["test"]} & {q.example.question for q in two.questions["test"]}
    assert digest(one) == digest(build_world(0, people=60))


@pytest.mark.parametrize("people", [40, 41, 97, 2304])
def test_any_size(people: int) -> None:
    world = build_world(0, people=people, train_questions=50, dev_questions=10, test_questions=20)
    for split, share in zip(SPLITS, (0.6, 0.15, 0.25), strict=True):
        persons = {fact.subject for fact in world.facts[split]}
        assert abs(len(persons) - share * people) <= 1
        assert len(world.facts[split]) == 6 * len(persons)
        assert Counter(len(q.hops) for q in world.questions[split]) == {
            1: len(world.questions[split]) / 2,
            2: len(world.questions[split]) / 2,
        }
    assert len({fact.subject for facts in world.facts.values() for fact in facts}) == people
    assert len({d.id for d in world.documents()}) == 6 * people


@pytest.mark.parametrize("people", [39, 2305])
def test_a_size_without_names_is_refused(people: int) -> None:
    with pytest.raises(ConfigError, match=rf"world\.people = {people}.*between 40 and 2304"):
        build_world(0, people=people)


def test_a_small_world_gives_all_the_questions_it_has() -> None:
    questions = build_world(0, people=40, train_questions=100_000).questions["train"]
    # 24 people in the training split: 6 facts each; 4 relations each lead to a person with 6 facts, less those facts
    # that lead straight back.
    assert sum(len(q.hops) == 1 for q in questions) == 24 * 6
    back = 24 * 4 * 6 - sum(len(q.hops) == 2 for q in questions)
    assert 0 <= back < 30


def test_regions_are_closed(world: World) -> None:
    """Who is in one split is named in no passage of another, so an index without the split knows nothing of it."""
    persons = {split: {fact.subject for fact in world.facts[split]} for split in SPLITS}
    for split in SPLITS:
        strangers = set().union(*(persons[other] for other in SPLITS if other != split))
        for document in world.documents(split):
            assert not any(stranger in document.contents for stranger in strangers)
        for question in world.questions[split]:
            assert {hop.fact.subject for hop in question.hops} <= persons[split]
            assert not any(stranger in question.example.question for stranger in strangers)


def test_regions_share_their_words() -> None:
    """A name does not tell where it belongs: 252 training people use 96 words nearly up."""
    facts = build_world(0).facts
    train, test = ({word for f in facts[split] for word in f.subject.split()} for split in ("train", "test"))
    assert len(test - train) <= 2


def test_a_word_is_of_one_kind() -> None:
    """A name that were also a town could not be exchanged for another name. Seeds 2 and 9 once had such words."""
    for seed in range(12):
        pools = (*build_world(seed, people=40).name_pools, *INTERCHANGEABLE, *RELATIONS, *ATTRIBUTES)
        words = [word for pool in pools for word in pool]
        assert len(words) == len(set(words))


def test_questions_are_distinct_and_chained(world: World) -> None:
    for split in SPLITS:
        questions = world.questions[split]
        assert len({q.example.question for q in questions}) == len(questions)
        assert [q.example.index for q in questions] == list(range(len(questions)))
        for q in questions:
            facts = [hop.fact for hop in q.hops]
            assert all(hop.asked in (RELATIONS + ATTRIBUTES)[hop.fact.relation] for hop in q.hops)
            assert all(fact.written in (RELATIONS + ATTRIBUTES)[fact.relation] for fact in facts)
            assert facts[0].value == facts[-1].subject or len(facts) == 1
            assert q.example.golden_answers[0] == facts[-1].value != facts[0].subject
            assert q.example.metadata == {"hops": len(facts), "documents": [fact.doc_id for fact in facts]}


def test_a_question_reads_from_the_last_hop_to_the_first(world: World) -> None:
    question = next(q for q in world.questions["test"] if len(q.hops) == 2)
    one, two = question.hops
    assert question.example.question == f"What is the {two.asked} of the {one.asked} of {one.fact.subject}?"


def test_a_passage_states_its_fact_after_its_title(world: World) -> None:
    fact = world.facts["dev"][0]
    document = fact.document
    assert document.title == fact.subject
    assert document.text == f"{fact.subject} has {fact.written} {fact.value}."
    assert document in world.documents("dev") and document not in world.documents("train")


def test_the_share_of_two_hops_and_of_other_names() -> None:
    world = build_world(5, two_hop=0.25, mismatch=0.25, train_questions=800)
    questions = world.questions["train"]
    assert sum(len(q.hops) == 2 for q in questions) == 200
    other = [hop.asked != hop.fact.written for q in questions for hop in q.hops]
    assert abs(sum(other) / len(other) - 0.25) < 0.06  # 1000 draws: 4 standard errors

    for share in (0.0, 1.0):
        world = build_world(5, people=60, two_hop=share, mismatch=share, train_questions=100)
        assert all(len(q.hops) == 1 + share for q in world.questions["train"])
        assert all((hop.asked != hop.fact.written) == share for q in world.questions["train"] for hop in q.hops)


def test_both_names_of_a_relation_are_written() -> None:
    written = Counter(fact.written for fact in build_world(0).facts["train"])  # 252 of each kind
    for pair in RELATIONS + ATTRIBUTES:
        assert sum(written[name] for name in pair) == 252
        assert all(abs(written[name] - 126) < 40 for name in pair)  # 5 standard deviations
        assert [other_name(name) for name in pair] == [pair[1], pair[0]]
    with pytest.raises(KeyError):
        other_name("capital")


@pytest.mark.parametrize(
    ("relation", "value", "right", "wrong"),
    [
        (1, "Kelan Orso", ["Kelan Orso", "Orso, Kelan", "orso kelan"], ["Kelan", "Orso", "Kelan Mira"]),
        (4, "Velm Bay", ["Velm Bay", "the Velm"], ["Bay", "Velm Hill"]),
        (5, "amber fox", ["amber fox", "a fox in amber"], ["fox", "amber", "fox in black"]),
    ],
)
def test_aliases_score(relation: int, value: str, right: list[str], wrong: list[str]) -> None:
    golds = golden_answers(relation, value)
    assert [exact_match(answer, golds) for answer in right] == [1.0] * len(right)
    assert [exact_match(answer, golds) for answer in wrong] == [0.0] * len(wrong)
