"""The bundled closed world: fictional people, facts about them, passages and questions. Deterministic from a seed.

Every person has four relations to other people and two attributes. Each relation has two names (`mentor`,
`teacher`). A passage uses one and a question uses either, so a search can miss and a second search, with the other
name, can hit. The value follows the name of the relation directly: a tiny model learns to copy what follows a name, but
not to find a value in free prose.

The world is three closed splits, `train`, `dev` and `test`: a person is related to people of the same split only.
The training index holds only the passages of the training split. So no training trajectory can contain the fact behind
a dev or test question, whatever the agent searches for. Names of all splits are made of the same words.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.recipe.world import World as Settings
from holdfast.retrieval.types import Document
from holdfast.tasks.questions import Example

RELATIONS: tuple[tuple[str, str], ...] = (
    ("mentor", "teacher"),
    ("spouse", "partner"),
    ("rival", "opponent"),
    ("patron", "sponsor"),
)
ATTRIBUTES: tuple[tuple[str, str], ...] = (("hometown", "birthplace"), ("emblem", "badge"))
SPLITS = ("train", "dev", "test")

_PLACES = ("Bay", "Ford", "Hill", "Marsh", "Point", "Vale")
_COLOURS = ("amber", "azure", "black", "crimson", "golden", "green", "ivory", "silver", "violet", "white")
_BEASTS = ("badger", "eagle", "falcon", "fox", "heron", "lynx", "otter", "raven", "stag", "wolf")
INTERCHANGEABLE = (_PLACES, _COLOURS, _BEASTS)
"""Words of attribute values that can be exchanged. See also `World.name_pools`."""

_ONSETS = ("b", "br", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z")
_VOWELS = ("a", "e", "i", "o", "u")
_CODAS = ("", "l", "m", "n", "r", "s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """`subject` has `relation` (under the name `written`, the one its passage uses) `value`.

    >>> Fact(subject="Mira Tolvan", relation=0, written="teacher", value="Kelan Orso", doc_id="train-0-0").sentence
    'Mira Tolvan has teacher Kelan Orso.'
    """

    subject: str
    relation: int
    """Index into `RELATIONS + ATTRIBUTES`."""
    written: str
    value: str
    doc_id: str

    @property
    def sentence(self) -> str:
        """The fact as its passage states it."""
        return f"{self.subject} has {self.written} {self.value}."

    @property
    def document(self) -> Document:
        """The passage: the subject in quotes as a title, then the sentence."""
        return Document(id=self.doc_id, contents=f'"{self.subject}"\n{self.sentence}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One step of a question: the name the question uses for a relation, and the fact that answers it."""

    asked: str
    fact: Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldQuestion:
    """A question and the facts behind it, in the order in which a search needs them."""

    example: Example
    hops: tuple[Hop, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All facts and questions, by split."""

    seed: int
    facts: dict[str, tuple[Fact, ...]]
    questions: dict[str, tuple[WorldQuestion, ...]]
    name_pools: tuple[tuple[str, ...], ...]
    """Given names, family names and towns. Names of persons and places in every split are made of these."""

    @property
    def names(self) -> tuple[str, ...]:
        """All words of `name_pools`."""
        return tuple(word for pool in self.name_pools for word in pool)

    def documents(self, *splits: str) -> tuple[Document, ...]:
        """Passages of the given splits, or of the whole world if none is given."""
        return tuple(fact.document for split in splits or SPLITS for fact in self.facts[split])


def other_name(name: str) -> str:
    """The relation's other name.

    >>> other_name("mentor"), other_name("badge")
    ('teacher', 'emblem')
    """
    for pair in RELATIONS + ATTRIBUTES:
        if name in pair:
            return pair[1] if name == pair[0] else pair[0]
    raise KeyError(name)


@functools.lru_cache(maxsize=1)
def build_world(settings: Settings = Settings()) -> World:
    """The world of these settings, built once.

    Questions of one split are distinct. A split that has too few questions with one hop, or with two, gives all of
    them. There are names for 2,304 people.
    """
    rng = random.Random(f"holdfast-world-{settings.seed}")
    firsts = _words(rng, 48, 5, taken=_PLACES)
    lasts = _words(rng, 48, 6, taken=(*_PLACES, *firsts))
    towns = _words(rng, 24, 5, taken=(*_PLACES, *firsts, *lasts))
    pairs = [f"{first} {last}" for first in firsts for last in lasts]
    rng.shuffle(pairs)
    people = settings.people
    bounds = [0, round(people * 0.6), round(people * 0.75), people]
    facts = {
        split: _split_facts(split, pairs[lo:hi], towns, rng)
        for split, lo, hi in zip(SPLITS, bounds, bounds[1:], strict=False)
    }
    counts = (settings.train_questions, settings.dev_questions, settings.test_questions)
    questions = {
        split: _split_questions(split, facts[split], count, settings, rng)
        for split, count in zip(SPLITS, counts, strict=True)
    }
    pools = (tuple(firsts), tuple(lasts), tuple(towns))
    return World(seed=settings.seed, facts=facts, questions=questions, name_pools=pools)


def golden_answers(relation: int, value: str) -> tuple[str, ...]:
    """The value and its alias: `Last, First` of a person, a town without its second word, `animal in colour`.

    >>> golden_answers(0, "Kelan Orso"), golden_answers(4, "Velm Bay"), golden_answers(5, "amber fox")
    (('Kelan Orso', 'Orso, Kelan'), ('Velm Bay', 'Velm'), ('amber fox', 'fox in amber'))
    """
    first, last = value.split()
    if relation < len(RELATIONS):
        return value, f"{last}, {first}"
    return (value, first) if relation == len(RELATIONS) else (value, f"{last} in {first}")


def _words(rng: random.Random, count: int, length: int, taken: Sequence[str]) -> list[str]:
    """`count` invented words that are not in `taken`: a word with two meanings could not be exchanged."""
    words: dict[str, None] = {}
    while len(words) < count:
        word = ""
        while len(word) < length - 1:
            word += rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
        word = word[: length + 2].capitalize()
        if word not in taken:
            words[word] = None
    return list(words)


def _split_facts(split: str, people: list[str], towns: list[str], rng: random.Random) -> tuple[Fact, ...]:
    facts = []
    for i, person in enumerate(people):
        for relation, names in enumerate(RELATIONS + ATTRIBUTES):
            if relation < len(RELATIONS):
                value = rng.choice([other for other in people if other != person])
            elif relation == len(RELATIONS):
                value = f"{rng.choice(towns)} {rng.choice(_PLACES)}"
            else:
                value = f"{rng.choice(_COLOURS)} {rng.choice(_BEASTS)}"
            written = rng.choice(names)
            doc_id = f"{split}-{i}-{relation}"
            facts.append(Fact(subject=person, relation=relation, written=written, value=value, doc_id=doc_id))
    return tuple(facts)


def _split_questions(
    split: str, facts: tuple[Fact, ...], count: int, settings: Settings, rng: random.Random
) -> tuple[WorldQuestion, ...]:
    by_subject: dict[str, list[Fact]] = {}
    for fact in facts:
        by_subject.setdefault(fact.subject, []).append(fact)
    single = [(fact,) for fact in facts]
    double = [
        (fact, second)
        for fact in facts
        if fact.relation < len(RELATIONS)
        for second in by_subject[fact.value]
        if second.value != fact.subject
    ]
    rng.shuffle(single)
    rng.shuffle(double)
    n_double = min(round(count * settings.two_hop), len(double))
    chains = [*single[: count - n_double], *double[:n_double]]
    rng.shuffle(chains)
    return tuple(_question(split, index, chain, settings.mismatch, rng) for index, chain in enumerate(chains))


def _question(split: str, index: int, chain: tuple[Fact, ...], mismatch: float, rng: random.Random) -> WorldQuestion:
    hops = tuple(
        Hop(asked=other_name(fact.written) if rng.random() < mismatch else fact.written, fact=fact) for fact in chain
    )
    path = "".join(f"the {hop.asked} of " for hop in reversed(hops))
    example = Example(
        source="world",
        split=split,
        index=index,
        question=f"What is {path}{chain[0].subject}?",
        golden_answers=golden_answers(chain[-1].relation, chain[-1].value),
        metadata={"hops": len(hops), "documents": [hop.fact.doc_id for hop in hops]},
    )
    return WorldQuestion(example=example, hops=hops)
