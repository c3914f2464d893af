"""Passages over a country: a title line such as `Ghana: government`, and one to four sentences."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.retrieval.types import Document
from holdfast.tasks.factbook.book import Country

TOPICS = {
    "capital": "government",
    "highest": "terrain",
    "anthem": "symbols",
    "currency": "economy",
    "independence": "history",
    "former": "history",
    "language": "people",
    "domain": "codes",
    "prefix": "transport",
    "longest": "borders",
}
"""Relation -> topic of the one passage that has it."""
_MAX_NEIGHBOURS = 5
_MIN_WORDS = 6


def passages_of(country: Country) -> Iterator[Document]:
    """The passages of a country, their ids `NAME/TOPIC`."""
    for topic, sentences in _texts(country).items():
        text = " ".join(f"{sentence}." for sentence in sentences if sentence)
        if len(text.split()) >= _MIN_WORDS:
            yield Document(id=passage_id(country, topic), contents=f"{country.name}: {topic}\n{text}")


def passage_id(country: Country, topic: str) -> str:
    """The id of a passage."""
    return f"{country.name}/{topic}"


def _texts(country: Country) -> dict[str, list[str]]:
    """Sentences by topic; an empty one where the book has nothing."""
    name, facts, prose = country.name, country.facts, country.prose

    def fact(sentence: str, relation: str) -> str:
        return sentence.format(name, facts[relation].value) if relation in facts else ""

    def prose_of(sentence: str, topic: str) -> str:
        return sentence.format(name, prose[topic]) if prose.get(topic, "none") not in ("none", "0 km") else ""

    anthem = fact("The national anthem of {} is {}", "anthem")
    if anthem and facts["anthem"].aliases:
        anthem += f" ({facts['anthem'].aliases[-1]})"
    return {
        "location": [
            prose_of("{} is in {}", "location"),
            prose_of("Its area is {1}", "area"),
            prose_of("Its coast is {1} long", "coast"),
        ],
        "borders": _borders(country),
        "terrain": [
            fact("The highest point of {} is {}", "highest"),
            prose_of("The lowest point is {1}", "lowest"),
            prose_of("The terrain is {1}", "terrain"),
        ],
        "climate": [
            prose_of("The climate of {} is {}", "climate"),
            prose_of("Natural resources: {1}", "resources"),
        ],
        "hazards": [prose_of("Natural hazards of {}: {}", "hazards")],
        "government": [
            fact("The capital of {} is {}", "capital"),
            prose_of("The form of government is {1}", "government"),
            prose_of("The legislature is called {1}", "legislature"),
        ],
        "history": [
            fact("{} became independent on {}", "independence"),
            f"It was formerly called {' and '.join(country.former[-2:])}" if country.former else "",
            prose_of("The national holiday is {1}", "holiday"),
        ],
        "symbols": [
            anthem,
            prose_of("National symbols: {1}", "symbols"),
            prose_of("National colors: {1}", "colors"),
        ],
        "people": [
            prose_of("The people of {} are called {}", "people"),
            prose_of("The population is {1}", "population"),
            fact("The official language of {} is {}", "language"),
            prose_of("Languages: {1}", "languages"),
        ],
        "economy": [
            fact("The currency of {} is {}", "currency"),
            prose_of("It exports {1}", "exports"),
            prose_of("Industries: {1}", "industries"),
        ],
        "codes": [
            fact("The internet country code of {} is {}", "domain"),
            prose_of("Share of people who use the internet: {1}", "users"),
        ],
        "transport": [
            fact("The registration of aircraft of {} begins with {}", "prefix"),
            prose_of("Number of airports: {1}", "airports"),
            prose_of("Main ports: {1}", "ports"),
        ],
        "background": [prose_of("{1}", "background")],
    }


def _borders(country: Country) -> list[str]:
    listed = [f"{name} ({length} km)" for name, length in country.borders]
    if not listed:
        return []
    if (rest := len(listed) - _MAX_NEIGHBOURS) > 0:
        listed = [*listed[:_MAX_NEIGHBOURS], f"{rest} more"]
    neighbours = " and ".join([", ".join(listed[:-1]), listed[-1]] if listed[1:] else listed)
    longest = f"The longest border of {country.name} is with {country.longest}" if country.longest else ""
    return [f"{country.name} has land borders with {neighbours}", longest]
