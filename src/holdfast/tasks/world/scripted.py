"""Scripted rollouts over the bundled world, noisy on purpose: the demonstrations of a warm start.

`[world.scripts]` has the probability of each imperfect choice. So the warm-started model is undecided where
reinforcement learning has to decide: whether to search at all, which query, whether to search again, which passage to
trust. Scripts search with a real retriever, so the model learns from passages as it will see them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from holdfast.agent.protocol import SearchProtocol, parse_action
from holdfast.agent.trajectory import Answer, Search
from holdfast.recipe.world import Scripts
from holdfast.recipe.world import World as Settings
from holdfast.retrieval.types import Hit, Retriever
from holdfast.tasks.demonstrations import turn_text
from holdfast.tasks.world.facts import (
    ATTRIBUTES,
    INTERCHANGEABLE,
    RELATIONS,
    WorldQuestion,
    build_world,
    other_name,
)

_SENTENCE = re.compile(r"([A-Z]\w+ [A-Z]\w+) has (\w+) (\w+ \w+)\.")


_HABITS = ("skip_search", "vague_query", "give_up", "stop_early", "misread", "malformed", "ramble")
PERFECT = Scripts.model_validate(dict.fromkeys(_HABITS, 0.0))
"""Of a script that makes no imperfect choice."""


# ---- filler: thoughts of high entropy. Displacement shows in a policy that writes many uncertain tokens before its
# action, so the collapse recipe needs it; the quickstart has none.

_SUCCESSORS = 10
"""Words that may follow a word of filler."""
_ONSETS = ("b", "c", "d", "f", "g", "h", "j", "l", "m", "n", "p", "r", "s", "t", "v", "w")
_RIMES = ("a", "ak", "al", "an", "e", "el", "en", "er", "i", "il", "in", "o", "ol", "on", "or", "u", "um", "un")


@dataclass(frozen=True, slots=True)
class Filler:
    """Words and their successors. Each word is followed by one of its successors with weight 1/rank."""

    words: tuple[str, ...]
    successors: tuple[tuple[int, ...], ...]
    thought_length: tuple[int, int]
    ramble_length: tuple[int, int]
    jump: float = 0.03
    """Probability of an arbitrary next word."""

    def text(self, rng: random.Random, length: int) -> str:
        """`length` words of the chain, separated by blanks."""
        weights = [1 / rank for rank in range(1, len(self.successors[0]) + 1)]
        word = rng.randrange(len(self.words))
        text = []
        for _ in range(length):
            text.append(self.words[word])
            jump = rng.random() < self.jump
            word = rng.randrange(len(self.words)) if jump else rng.choices(self.successors[word], weights)[0]
        return " ".join(text)

    def thought(self, rng: random.Random) -> str:
        """A text of `thought_length` words."""
        return self.text(rng, rng.randint(*self.thought_length))

    def ramble(self, rng: random.Random) -> str:
        """A text of `ramble_length` words."""
        return self.text(rng, rng.randint(*self.ramble_length))


def build_filler(settings: Settings) -> Filler | None:
    """The filler language of these settings, a chain over invented words; None without one. Facts use none of them.

    At most half of what two syllables can make is drawn, so that drawing distinct words ends.
    """
    words = settings.filler_words
    if not words:
        return None
    rng = random.Random(f"holdfast-filler-{settings.seed}")
    taken = {word for group in (*RELATIONS, *ATTRIBUTES, *INTERCHANGEABLE) for word in group}
    vocabulary: dict[str, None] = {}
    while len(vocabulary) < words:
        word = "".join(rng.choice(_ONSETS) + rng.choice(_RIMES) for _ in range(2))
        if word not in taken:
            vocabulary[word] = None
    following = tuple(tuple(rng.sample(range(words), _SUCCESSORS)) for _ in range(words))
    return Filler(tuple(vocabulary), following, settings.filler_length, settings.ramble_length)


# ---- scripts


@dataclass(frozen=True, slots=True)
class ScriptedRollout:
    """A question and its turns: (text of the turn, text of the observation after it) pairs."""

    question: WorldQuestion
    turns: tuple[tuple[str, str], ...]
    correct: bool


def scripted_rollouts(
    settings: Settings, retriever: Retriever, protocol: SearchProtocol, *, seed: int, plain: bool = False
) -> list[ScriptedRollout]:
    """Noisy scripts over training questions, with the habits of the recipe: of its plain scripts, which have no filler,
    or of those after. Some are correct and some are not."""
    rng = random.Random(f"holdfast-episodes-{seed}")  # a former name: another text draws other scripts
    train, scripts = build_world(settings).questions["train"], settings.scripts
    questions = [rng.choice(train) for _ in range(scripts.count)]
    filler = None if plain else build_filler(settings)
    return run_scripts(questions, retriever, protocol, scripts=scripts, plain=plain, filler=filler, seed=seed)


def run_scripts(
    questions: Sequence[WorldQuestion],
    retriever: Retriever,
    protocol: SearchProtocol,
    *,
    scripts: Scripts,
    plain: bool = False,
    filler: Filler | None = None,
    seed: int = 0,
) -> list[ScriptedRollout]:
    """One rollout per question, with searches batched round by round. Deterministic from `seed`. No observation is cut,
    so that none needs a tokenizer."""
    live: dict[int, Generator[str, list[Hit] | None, None]] = {}
    turns: list[list[tuple[str, str]]] = [[] for _ in questions]
    pending: dict[int, str] = {}
    for i, question in enumerate(questions):
        rng = random.Random(f"script-{seed}-{i}-{question.example.id}")
        live[i] = _script(question, rng, scripts, _stops_early(scripts, plain=plain), protocol, filler)
        pending[i] = next(live[i])
    while pending:
        actions = {i: parse_action(text, protocol) for i, text in pending.items()}
        searching = [(i, action.query) for i, action in actions.items() if isinstance(action, Search)]
        results = retriever.search([query for _, query in searching], protocol.topk) if searching else []
        hits = {i: result for (i, _), result in zip(searching, results, strict=True)}
        following: dict[int, str] = {}
        for i, text in pending.items():
            if isinstance(actions[i], Answer) or len(turns[i]) + 1 == protocol.max_turns:
                turns[i].append((text, ""))
                continue
            turns[i].append((text, protocol.observation_text(hits.get(i))))
            following[i] = live[i].send(hits.get(i))
        pending = following
    return [
        ScriptedRollout(question, tuple(texts), _is_correct(question, texts[-1][0], protocol))
        for question, texts in zip(questions, turns, strict=True)
    ]


def _is_correct(question: WorldQuestion, last_turn: str, protocol: SearchProtocol) -> bool:
    action = parse_action(last_turn, protocol)
    return isinstance(action, Answer) and action.text == question.example.golden_answers[0]


def _script(
    question: WorldQuestion,
    rng: random.Random,
    scripts: Scripts,
    stop_early: float,
    protocol: SearchProtocol,
    filler: Filler | None,
) -> Generator[str, list[Hit] | None, None]:
    """Yields the text of one turn, receives the hits of its search (None after an invalid turn)."""

    def turn(thought: str, kind: str, text: str, *, ramble: bool = False) -> str:
        if filler is not None:
            thought = f"{filler.ramble(rng) if ramble else filler.thought(rng)} {thought}"
        return turn_text(thought, text, protocol.search_tags if kind == "search" else protocol.answer_tags, protocol)

    seen: list[tuple[str, str, str]] = []
    entity, thought = question.hops[0].fact.subject, ""
    if rng.random() < scripts.malformed:
        opened, closed = protocol.thought_tags
        yield f"{opened} the {question.hops[0].asked} of {entity} {closed}\n"
    if rng.random() < scripts.skip_search:
        yield turn("I know it.", "answer", _guess(question, rng))
        return
    for hop in question.hops:
        name, value = hop.asked, None
        for attempt in range(2):
            if rng.random() < scripts.ramble:
                yield turn("I lost the thread.", "answer", _guess(question, rng, seen), ramble=True)
                return
            need = f"I need the {name} of {entity}."
            query = f"{name} of {entity}"
            if rng.random() < scripts.vague_query:
                query = rng.choice([entity, name])
            hits = yield turn(f"{thought} {need}".strip(), "search", query)
            seen = [fact for hit in hits or [] for fact in stated(hit.document.contents)]
            value = next((v for s, r, v in seen if s == entity and r in (name, other_name(name))), None)
            if seen and rng.random() < scripts.misread:
                value = rng.choice(seen)[2]
            if value is not None:
                written = next((r for s, r, v in seen if s == entity and v == value), name)
                thought = f"{entity} has {written} {value}."
                break
            thought = "Not found."
            if attempt == 0 and rng.random() < scripts.give_up:
                break
            name = other_name(name)
        if value is None:
            yield turn(f"{thought} I guess.", "answer", _guess(question, rng, seen))
            return
        entity = value
        if rng.random() < stop_early:
            break
    yield turn(thought, "answer", entity)


def _stops_early(scripts: Scripts, *, plain: bool) -> float:
    """`stop_early` of the plain scripts, or of those after them."""
    early = scripts.stop_early
    return early[0 if plain else 1] if isinstance(early, tuple) else early


def stated(text: str) -> list[tuple[str, str, str]]:
    """Every (subject, relation, value) that a text states, in the words of its passages.

    >>> stated("Doc 1(Title: Mira Tolvan) Mira Tolvan has teacher Kelan Orso.")
    [('Mira Tolvan', 'teacher', 'Kelan Orso')]
    """
    return [(match[1], match[2], match[3]) for match in _SENTENCE.finditer(text)]


def _guess(question: WorldQuestion, rng: random.Random, seen: Sequence[tuple[str, str, str]] = ()) -> str:
    """A value from the passages that were seen, or the person in the question if there are none."""
    return rng.choice(seen)[2] if seen else question.hops[0].fact.subject
