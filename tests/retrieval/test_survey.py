"""A survey of a corpus finds what an agent could not read, and nothing else."""

from __future__ import annotations

import pytest

from holdfast.retrieval.survey import Survey
from holdfast.retrieval.types import Document


def surveyed(*texts: str, room: int = 100) -> Survey:
    survey = Survey(room)
    assert len(list(survey.watched(Document(f"a.md#{n}", f"Orsa\n{text}") for n, text in enumerate(texts, 1)))) == len(
        texts
    )
    return survey


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The lake of Orsa is cold and deep.", None),
        ("A 0.938 12 3.9 I 4 x 71", None),  # of a table
        ("湖水很冷，山很高。", None),
        ("오르사 호수는 매우 차갑고 깊다.", None),
        ("T h e l a k e o f O r s a", "garbled"),
        ('! " # $ % & lake of Orsa', "garbled"),
        ("Th\ufffd l\ufffdke of Ors\ufffd is cold", "garbled"),
        ("\ue001\ue002 \ue003 of Orsa is cold", "garbled"),
        ("Cold.", "empty"),
        ("湖水很冷。", "empty"),
        ("word " * 100, "too long"),
    ],
)
def test_a_flaw_is_named(text: str, kind: str | None) -> None:
    assert list(surveyed(text).flawed) == ([] if kind is None else [kind])


def test_a_passage_that_occurred_before_is_repeated() -> None:
    text = "The lake of Orsa is cold and deep."
    assert surveyed(text, text, text).flawed == {"repeated": 2}


def test_ten_are_shown_and_the_worst_come_first() -> None:
    survey = surveyed(*(f"{n} " + "word " * 5 * n for n in range(20, 70)), "Cold.")
    flaws = survey.flaws()
    assert len(flaws) == 10 and flaws[0].why == "empty: 1 word"
    assert [flaw.document.id for flaw in flaws[1:3]] == ["a.md#50", "a.md#49"]
    assert survey.flawed.total() == sum(tokens > 100 for tokens in survey.tokens) + 1


def test_what_most_passages_fit_into() -> None:
    survey = surveyed(*["word " * 40] * 19, "word " * 4000)
    assert survey.fits() == survey.fits(0.5) < 100 < survey.fits(1)
    assert Survey(10).fits() == 0
