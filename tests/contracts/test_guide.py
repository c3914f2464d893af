"""The guide is an hour's reading in short sentences, and each page begins with what to type; no page has a long one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = sorted((DOCS / "guide").glob("*.md"))
NAMES = [page.stem for page in GUIDE]
RECORDS = {"decisions", "results", "diagnose-accuracy"}  # what was decided and measured, each as it was written
READ = [page for page in sorted(DOCS.rglob("*.md")) if page.stem not in RECORDS]

FENCE = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
SKIPPED = re.compile(r"^(#|\||!\[|<!--|    )")  # headings, tables, images, comments, formulas
ITEM = re.compile(r"^\s*(?:[*-]|\d+\.)\s+")

MOST_WORDS = 10_000
LONGEST = 40
MEAN = 18

DIALECT = {
    r"(?<!there )\bis no\b(?! (?:longer|more))": "is not a",
    r"(?<!there )\bare no\b(?! (?:longer|more))": "are not",
    r"\b(?:stands?|lies|lie)\b": "is",
    r"\btold\b": "the verb that fits",
    r"\banew\b": "again",
    r"\bwhoever\b": "anyone who",
    r"\bbeside\b": "next to, with, as well as",
    r"\bgoes on with\b": "continues",
    r"\bepisodes?\b": "rollout",
    r"\b(?:disease|sick|dying|cures?|cured)\b": "failure mode, failing, remedy",
    r"(?:^|[.!?] )Of (?:a|an|the|all|several|many)\b": "the subject first",
}


def paragraphs(text: str) -> list[str]:
    """The prose of a page: each paragraph and list item on one line, code spans and links as words."""
    found: list[list[str]] = [[]]
    inside_item = False
    for line in FENCE.sub("", text).splitlines():
        item = ITEM.match(line)
        continues = inside_item and line.startswith(" ")
        if not line.strip() or item or (SKIPPED.match(line) and not continues):
            found.append([])
        if item or (line.strip() and (continues or not SKIPPED.match(line))):
            found[-1].append(ITEM.sub("", line).strip())
        inside_item = bool(item) or (inside_item and (continues or not line.strip()))
    joined = [" ".join(lines) for lines in found if lines]
    without_code = [re.sub(r"`[^`]+`", "code", paragraph) for paragraph in joined]
    return [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph).replace("**", "") for paragraph in without_code]


def sentences(text: str) -> list[str]:
    """Sentences of more than two words; one with a colon or a semicolon counts as one."""
    parts = [part for paragraph in paragraphs(text) for part in re.split(r"(?<=[.!?])\)?\s+", paragraph)]
    return [part for part in parts if words(part) > 2]


def words(sentence: str) -> int:
    return len(re.findall(r"[^\W_][^\s]*", sentence))


def dialect(text: str) -> list[str]:
    prose = paragraphs(text)
    return [
        f"{match[0]!r} in {paragraph[:60]!r}: write {instead}"
        for pattern, instead in DIALECT.items()
        for paragraph in prose
        if (match := re.search(pattern, paragraph, re.IGNORECASE))
    ]


PAGE = """# A title of five words

A sentence with `some.code here` and [a link](x.md) in two parts. Another one,
over two lines!

    r = formula − that does not count

* An item of a list:
  it continues. And ends

| a | table that does not count |
|---|---|

```bash
code that does not count
```
1. The last item stands alone
"""


def test_sentences_are_counted() -> None:
    assert [words(sentence) for sentence in sentences(PAGE)] == [10, 5, 7, 5]
    assert [finding.split("'")[1] for finding in dialect(PAGE)] == ["stands"]


def test_it_is_an_hours_reading() -> None:
    assert len(GUIDE) == 7
    count = sum(len(page.read_text(encoding="utf-8").split()) for page in GUIDE)
    assert count <= MOST_WORDS, f"{count} words, code and tables included"


def test_the_mean_sentence_is_short() -> None:
    counts = [words(sentence) for page in GUIDE for sentence in sentences(page.read_text(encoding="utf-8"))]
    assert len(counts) > 200
    assert sum(counts) / len(counts) <= MEAN


@pytest.mark.parametrize("page", READ, ids=[page.relative_to(DOCS).as_posix() for page in READ])
def test_no_sentence_is_long(page: Path) -> None:
    assert [s for s in sentences(page.read_text(encoding="utf-8")) if words(s) > LONGEST] == []


@pytest.mark.parametrize("page", GUIDE, ids=NAMES)
def test_plain_words(page: Path) -> None:
    assert dialect(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", GUIDE, ids=NAMES)
def test_a_page_begins_with_what_to_type(page: Path) -> None:
    head = page.read_text(encoding="utf-8").splitlines()[:25]
    assert "```bash" in head
