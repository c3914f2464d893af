"""Observations: exact text when they fit, exact budgets when they do not."""

import random
from dataclasses import replace

import pytest

from holdfast.agent.env import allot, make_observation
from holdfast.agent.protocol import CLEAN, SEARCH_R1
from holdfast.base.errors import ConfigError
from holdfast.model.tokens import REPLACEMENT, decode, encode
from holdfast.retrieval.types import Document, Hit


def hits(*texts: str) -> list[Hit]:
    return [Hit(Document(str(i), f'"T{i}"\n{text}'), 1.0) for i, text in enumerate(texts)]


def test_passages_that_fit_are_shown_whole(tokenizer):
    seen = make_observation(hits("the lake", "漢字"), CLEAN, tokenizer)
    assert seen.text == "\n\n<information>Doc 1(Title: T0) the lake\nDoc 2(Title: T1) 漢字</information>\n\n"
    assert not seen.truncated
    assert decode(tokenizer, seen.token_ids) == seen.text


def test_search_r1_keeps_the_quotes(tokenizer):
    seen = make_observation(hits("the lake"), SEARCH_R1, tokenizer)
    assert seen.text == '\n\n<information>Doc 1(Title: "T0") the lake</information>\n\n'


def test_no_hits_say_so_and_an_invalid_turn_gets_the_note(tokenizer):
    assert make_observation([], CLEAN, tokenizer).text == "\n\n<information>Nothing was found.</information>\n\n"
    assert make_observation([], SEARCH_R1, tokenizer).text == "\n\n<information></information>\n\n"
    note = make_observation(None, CLEAN, tokenizer)
    assert note.text == f"\n\n{CLEAN.invalid_note}\n\n"
    assert "<information>" not in note.text
    assert not note.truncated


def test_the_budget_is_exact_at_the_boundary(tokenizer):
    whole = make_observation(hits("the lake " * 9), CLEAN, tokenizer)
    n = len(whole.token_ids)
    assert make_observation(hits("the lake " * 9), replace(CLEAN, max_observation_tokens=n), tokenizer) == whole
    less = make_observation(hits("the lake " * 9), replace(CLEAN, max_observation_tokens=n - 1), tokenizer)
    assert less.truncated
    assert len(less.token_ids) == n - 1


def test_the_longest_passage_is_cut_first(tokenizer):
    texts = ("town", "lake " * 60, "Orsa")
    whole = len(make_observation(hits(*texts), CLEAN, tokenizer).token_ids)
    seen = make_observation(hits(*texts), replace(CLEAN, max_observation_tokens=whole - 20), tokenizer)
    first, second, third = seen.text.removeprefix("\n\n<information>").removesuffix("</information>\n\n").split("\n")
    assert (first, third) == ("Doc 1(Title: T0) town", "Doc 3(Title: T2) Orsa")
    assert "Doc 2(Title: T1) lake lake" in second
    assert second.count("lake") < 60


def test_equally_long_passages_are_cut_equally(tokenizer):
    seen = make_observation(hits(*["lake " * 60] * 3), replace(CLEAN, max_observation_tokens=120), tokenizer)
    counts = [line.count("lake") for line in seen.text.split("\n") if "Doc" in line]
    assert len(counts) == 3
    assert max(counts) - min(counts) <= 1


def test_any_passages_any_budget(tokenizer):
    rng = random.Random(0)
    pieces = ["lake ", "漢字", "🦊", "<|end|>", "\n", "Orsa. ", "é"]
    tags = len(encode(tokenizer, "\n\n<information>")) + len(encode(tokenizer, "</information>\n\n"))
    cuts = 0
    for _ in range(200):
        found = hits(*("".join(rng.choices(pieces, k=rng.randint(0, 80))) for _ in range(rng.randint(1, 5))))
        limit = rng.randint(tags + 1, 250)
        seen = make_observation(found, replace(CLEAN, max_observation_tokens=limit), tokenizer)
        assert len(seen.token_ids) <= limit
        assert seen.text == decode(tokenizer, seen.token_ids)
        assert seen.text.startswith("\n\n<information>")
        assert seen.text.endswith("</information>\n\n")  # the closing tag survives every cut
        assert REPLACEMENT not in seen.text  # and no character is halved
        assert tokenizer.eos_token_id not in seen.token_ids
        if seen.truncated:
            cuts += 1
            # A halved character is up to three tokens per passage; otherwise a cut wastes nothing.
            assert len(seen.token_ids) >= limit - 3 * len(found) - 2
    assert 20 < cuts < 180


def test_a_tiny_budget_keeps_the_best_passage(tokenizer):
    tags = len(encode(tokenizer, "\n\n<information>")) + len(encode(tokenizer, "</information>\n\n"))
    seen = make_observation(hits("a", "b", "c"), replace(CLEAN, max_observation_tokens=tags + 1), tokenizer)
    assert seen.text.startswith("\n\n<information>D")
    assert len(seen.token_ids) == tags + 1
    with pytest.raises(ConfigError, match=f"information tags alone take {tags} tokens"):
        make_observation(hits("a"), replace(CLEAN, max_observation_tokens=tags), tokenizer)


def test_a_note_that_does_not_fit_is_cut(tokenizer):
    note = make_observation(None, replace(CLEAN, invalid_note="Orsa " * 50, max_observation_tokens=10), tokenizer)
    assert note.truncated
    assert len(note.token_ids) == 10


@pytest.mark.parametrize(
    ("lengths", "room", "shares"),
    [
        ([10, 3, 8], 15, [6, 3, 6]),  # 3 fits; 12 are left for two: 6 each
        ([10, 3, 8], 21, [10, 3, 8]),
        ([10, 3, 8], 20, [9, 3, 8]),  # the longest pays alone
        ([5, 5], 9, [5, 4]),  # of equals the better-ranked gets the odd token
        ([5, 5, 5], 1, [1, 0, 0]),
        ([5, 0], 3, [3, 0]),
        ([4], -2, [0]),
        ([], 7, []),
    ],
)
def test_shares(lengths, room, shares):
    assert allot(lengths, room) == shares
