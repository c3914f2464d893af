"""The study's pages have short sentences: those written by hand, and the texts that its generators write."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_guide import dialect, sentences, words

DOCS = Path(__file__).parents[2] / "research" / "docs"
WRITTEN = ("README", "why", "testbed")
PAGES = sorted(page.stem for page in DOCS.glob("*.md"))

LONGEST = 40
MEAN = 18


def prose(name: str) -> list[str]:
    """The sentences of a page, without the line of hashes that ends the page of an experiment."""
    lines = (DOCS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    return sentences("\n".join(line for line in lines if "SHA-256" not in line))


@pytest.mark.parametrize("name", PAGES)
def test_no_sentence_is_long(name: str) -> None:
    assert [sentence for sentence in prose(name) if words(sentence) > LONGEST] == []


@pytest.mark.parametrize("name", WRITTEN)
def test_the_mean_sentence_is_short(name: str) -> None:
    counts = [words(sentence) for sentence in prose(name)]
    assert len(counts) > 40
    assert sum(counts) / len(counts) <= MEAN


@pytest.mark.parametrize("name", WRITTEN)
def test_plain_words(name: str) -> None:
    assert dialect((DOCS / f"{name}.md").read_text(encoding="utf-8")) == []
