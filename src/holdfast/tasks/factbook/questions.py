"""Questions of one to three hops over the facts, split by country, each with the searches that answer it.

A hop takes a description to a country (`the country whose highest point is Mount Afadjato`), a country to the
neighbour with which it has its longest border, or a country to the fact that is asked for. A description is used only
where it fits one country, and no passage of an earlier hop has the answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from holdfast.base.scoring import normalize_answer
from holdfast.tasks.factbook.book import Country, Fact
from holdfast.tasks.factbook.passages import TOPICS, passage_id, passages_of
from holdfast.tasks.questions import Example

SIZES = {"train": 2400, "dev": 200, "test": 400}
SHARES = {1: 0.35, 2: 0.4, 3: 0.25}
"""Number of hops -> share of the questions."""
_UNSEEN = {"test": 0.25, "dev": 0.15}
"""Share of the countries."""

ASKED = {
    "capital": ("the capital of {}", "the capital city of {}"),
    "highest": ("the highest point of {}", "the highest place in {}"),
    "anthem": ("the national anthem of {}", "the anthem of {}"),
    "currency": ("the currency of {}", "the money used in {}"),
    "independence": ("the day on which {} became independent", "the date of the independence of {}"),
    "language": ("the official language of {}",),
    "domain": ("the internet country code of {}",),
    "former": ("the former name of {}",),
}
DESCRIBED = {
    "capital": ("the country whose capital is {}", "the country with the capital {}"),
    "highest": ("the country whose highest point is {}", "the country where {} is the highest point"),
    "anthem": ("the country whose national anthem is {}", "the country with the anthem {}"),
    "currency": ("the country where people pay with {}", "the country whose currency is {}"),
    "independence": ("the country that became independent on {}",),
    "domain": ("the country with the internet code {}",),
    "prefix": ("the country whose aircraft have registrations that begin with {}",),
    "former": ("the country once called {}", "the country formerly called {}"),
}
NEIGHBOUR = ("the country with which {} has its longest border", "the neighbour that has the longest border with {}")
QUERIES = {
    "capital": "capital {}",
    "highest": "highest point {}",
    "anthem": "national anthem {}",
    "currency": "currency {}",
    "independence": "independent {}",
    "language": "official language {}",
    "domain": "internet country code {}",
    "prefix": "aircraft registration {}",
    "former": "formerly called {}",
    "longest": "longest border {}",
}
"""Relation -> a query that finds its passage, with the name of the country or the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A search that helps to answer a question."""

    query: str
    passage: str
    """Id of the passage that it should find."""
    answer: str
    """What to read there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Description:
    """A phrase that means one country, and the searches that tell which."""

    phrase: str
    country: Country
    steps: tuple[Step, ...] = ()
    kind: str = ""


def questions_of(countries: Sequence[Country], seed: int = 0) -> dict[str, list[Example]]:
    """The questions by split. Their metadata has `hops`, `kind`, and `steps`, in the order of the searches."""
    rng = random.Random(f"factbook-questions-{seed}")
    texts = {document.id: document.contents for country in countries for document in passages_of(country)}
    by_name = {country.name: country for country in countries}
    unique = _unique(countries)
    examples = {}
    for split, members in _split(countries, rng).items():
        pool = [
            (description, relation, fact)
            for country in members
            for description in _descriptions(country, by_name, unique, rng)
            for relation, fact in _targets(description.country)
        ]
        rows = [row for chosen in pool if (row := _row(*chosen, texts, rng)) is not None]
        examples[split] = _examples(rows, split, rng)
    return examples


def _split(countries: Sequence[Country], rng: random.Random) -> dict[str, list[Country]]:
    """Countries by split. Those that a longest border links are in one split, so that chains stay in it."""
    group = {country.name: {country.name} for country in countries}
    for country in countries:
        if country.longest is not None and group[country.name] is not group[country.longest]:
            group[country.name] |= group[country.longest]
            for name in group[country.name]:
                group[name] = group[country.name]
    groups = sorted({id(names): sorted(names) for names in group.values()}.values())
    rng.shuffle(groups)
    split_of: dict[str, str] = {}
    for split, share in _UNSEEN.items():
        while sum(s == split for s in split_of.values()) < share * len(countries):
            split_of |= dict.fromkeys(groups.pop(), split)
    splits: dict[str, list[Country]] = {split: [] for split in SIZES}
    for country in countries:
        splits[split_of.get(country.name, "train")].append(country)
    return splits


def _unique(countries: Sequence[Country]) -> set[tuple[str, str]]:
    """(relation, value) of the facts that describe one country and do not name it.

    `lei` does not, where another country has Moldovan lei.
    """
    forms: dict[str, list[tuple[str, str]]] = {relation: [] for relation in DESCRIBED}
    for country in countries:
        forms["former"] += [(country.name, _padded(name)) for name in country.former]
        for relation in DESCRIBED.keys() & country.facts.keys():
            fact = country.facts[relation]
            forms[relation] += [(country.name, _padded(form)) for form in (fact.value, *fact.aliases)]
    names = {_padded(country.name) for country in countries}
    return {
        (relation, fact.value)
        for country in countries
        for relation, fact in country.facts.items()
        if relation in DESCRIBED
        if (value := _padded(fact.value)) not in names
        if len({name for name, form in forms[relation] if value in form}) == 1
        if not _names(value, country)
    }


def _padded(text: str) -> str:
    """The text as it is scored, with blanks around, so that `in` finds whole words."""
    return f" {normalize_answer(text)} "


def _names(value: str, country: Country) -> bool:
    """Whether a value gives the country away: a word of it begins like a word of its name, or of its people's."""
    known = f"{normalize_answer(country.name)} {normalize_answer(country.prose.get('people', ''))}"
    return any(word[:5] == name[:5] for word in value.split() for name in known.split() if len(name) > 3)


def _descriptions(
    country: Country, by_name: dict[str, Country], unique: set[tuple[str, str]], rng: random.Random
) -> Iterator[_Description]:
    """The country by its name, by a fact, and as the start of a step to its neighbour."""
    starts = [_Description(phrase=country.name, country=country, kind="name")]
    for relation, phrases in DESCRIBED.items():
        fact = country.facts.get(relation)
        if fact is not None and (relation, fact.value) in unique:
            step = _step(country, relation, fact.value, country.name)
            phrase = rng.choice(phrases).format(fact.value)
            starts.append(_Description(phrase=phrase, country=country, steps=(step,), kind=relation))
    yield from starts
    if country.longest is None:
        return
    neighbour = by_name[country.longest]
    for start in starts:
        step = _step(country, "longest", country.name, neighbour.name)
        phrase = rng.choice(NEIGHBOUR).format(start.phrase)
        yield _Description(phrase=phrase, country=neighbour, steps=(*start.steps, step), kind=f"{start.kind}>neighbour")


def _targets(country: Country) -> Iterator[tuple[str, Fact]]:
    """What can be asked for at the end of a description: a fact, or the country itself."""
    yield "country", Fact(country.name, country.aliases)
    for relation in ASKED:
        if relation in country.facts:
            yield relation, country.facts[relation]


def _step(country: Country, relation: str, sought: str, answer: str) -> Step:
    query = QUERIES[relation].format(sought)
    return Step(query=query, passage=passage_id(country, TOPICS[relation]), answer=answer)


def _row(
    description: _Description, relation: str, fact: Fact, texts: dict[str, str], rng: random.Random
) -> dict[str, object] | None:
    """A question as a row, or None where a search less would do, or the question gives the answer away."""
    steps = description.steps
    if relation == "country":
        question = f"Which is {description.phrase}?"
    else:
        steps = (*steps, _step(description.country, relation, description.country.name, fact.value))
        question = f"What is {rng.choice(ASKED[relation]).format(description.phrase)}?"
    golds = (fact.value, *fact.aliases)
    if not 1 <= len(steps) <= len(SHARES) or any(_contains_words(question, gold) for gold in golds):
        return None
    *earlier, last = (texts[step.passage] for step in steps)
    if any(_contains_words(text, gold) for text in earlier for gold in golds) or not _contains_words(last, fact.value):
        return None
    kind = f"{description.kind}>{relation}"
    metadata = {"hops": len(steps), "kind": kind, "steps": [asdict(step) for step in steps]}
    return {"question": question, "golden_answers": golds, **metadata}


def _contains_words(text: str, value: str) -> bool:
    return _padded(value) in _padded(text)


def _examples(rows: Sequence[dict[str, object]], split: str, rng: random.Random) -> list[Example]:
    """A sample of the rows with the shares of hops, in random order."""
    chosen: list[dict[str, object]] = []
    for hops, share in SHARES.items():
        chosen += rng.sample([row for row in rows if row["hops"] == hops], round(share * SIZES[split]))
    rng.shuffle(chosen)
    return [
        Example(
            source="factbook",
            split=split,
            index=i,
            question=str(row["question"]),
            golden_answers=row["golden_answers"],  # type: ignore[arg-type]
            metadata={key: row[key] for key in ("hops", "kind", "steps")},
        )
        for i, row in enumerate(chosen)
    ]
