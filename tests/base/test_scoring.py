"""Scores against rules written out by hand, and against a naive transcription of the published code's rules."""

import pytest

from holdfast.base.scoring import exact_match, f1, normalize_answer, sub_em


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Eiffel Tower", "eiffel tower"),
        ("U.S.", "us"),  # punctuation is deleted, not replaced by a blank
        ("Jean-Luc", "jeanluc"),
        ("1,000", "1000"),
        ("a", ""),
        ("An A-list", "alist"),  # punctuation goes before articles: `A-list` is no article any more
        ("theatre another", "theatre another"),  # articles are whole words
        ("“quoted” – dash", "“quoted” – dash"),  # ASCII punctuation only
        ("Émile", "émile"),  # accents stay
        ("the.the", "thethe"),
        ("rock–the–cradle", "rock– –cradle"),  # an article leaves a gap
        (" \t\n", ""),
    ],
)
def test_normalisation(text, normal):
    assert normalize_answer(text) == normal


def test_exact_match():
    assert exact_match("the eiffel tower!", ["Paris", "Eiffel Tower"]) == 1.0
    assert exact_match("eiffel towers", ["Eiffel Tower"]) == 0.0
    assert exact_match(None, ["Paris"]) == 0.0
    assert exact_match("", ["Paris"]) == 0.0


def test_f1_by_hand():
    # predicted {new, york, new}, golden {new, york, city}: shared 2 (new counts once), P = 2/3, R = 2/3, F1 = 2/3
    assert f1("new york new", ["New York City"]) == pytest.approx(2 / 3)
    # the same with a set instead of a multiset would be 2 * 2 / (2 + 3) = 0.8
    assert f1("new york new", ["New York City"]) != pytest.approx(0.8)
    # the better of two golden answers: against "york" P = 1/3, R = 1, F1 = 0.5
    assert f1("new york new", ["york", "paris"]) == 0.5
    assert f1("paris", ["London"]) == 0.0
    assert f1(None, ["London"]) == 0.0


def test_sub_em_is_on_characters():
    assert sub_em("in Russia", ["US"]) == 1.0
    assert sub_em("in Prussia", ["Russian"]) == 0.0
    assert sub_em(None, ["x"]) == 0.0


@pytest.mark.parametrize("score", [exact_match, f1, sub_em])
def test_what_normalises_to_nothing_never_scores(score):
    assert score("the", ["The"]) == 0.0
    assert score("", ["?"]) == 0.0
    assert score("anything", ["A"]) == 0.0
    assert score("Paris", ["A", "Paris"]) == 1.0  # and harms no other golden answer


@pytest.mark.parametrize("score", [exact_match, f1, sub_em])
def test_wrong_golds_are_refused(score):
    with pytest.raises(TypeError, match=r"write \['Paris'\]"):
        score("P", "Paris")
    with pytest.raises(ValueError, match="no golden answers"):
        score("Paris", [])
