"""The filler language: a Markov chain with known statistics."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from holdfast.base.errors import ConfigError
from holdfast.data.world.facts import ATTRIBUTES, INTERCHANGEABLE, RELATIONS
from holdfast.data.world.language import build_filler


def test_a_word_is_followed_as_the_chain_says() -> None:
    filler = build_filler(0, words=100)
    words = filler.text(random.Random(1), 60_000).split()
    number = {word: i for i, word in enumerate(filler.words)}
    ranks = Counter(
        filler.successors[number[word]].index(number[after]) if number[after] in filler.successors[number[word]] else -1
        for word, after in pairwise(words)
    )
    # Weights 1, 1/2 … 1/10 sum to H = 2.929. A jump (3 %) lands on each of 100 words alike: 10 of them are successors.
    for rank in (0, 1, 9):
        expected = 0.97 / (rank + 1) / 2.929 + 0.03 / 100
        assert abs(ranks[rank] / len(words) - expected) < 0.01
    assert abs(ranks[-1] / len(words) - 0.03 * 0.9) < 0.005


def test_lengths() -> None:
    filler = build_filler(0, thought_length=(4, 6), ramble_length=(9, 11))
    rng = random.Random(0)
    assert {len(filler.thought(rng).split()) for _ in range(60)} == {4, 5, 6}
    assert {len(filler.ramble(rng).split()) for _ in range(60)} == {9, 10, 11}


def test_a_seed_is_a_language() -> None:
    assert build_filler(1) == build_filler(1)
    assert build_filler(1).words != build_filler(2).words
    assert len(set(build_filler(1).words)) == 500


def test_no_filler_word_means_something() -> None:
    """Among the words of seeds 35 and 90 were `heron` and `falcon`."""
    meaning = {word for group in (*RELATIONS, *ATTRIBUTES, *INTERCHANGEABLE) for word in group}
    for seed in (0, 35, 90):
        assert not meaning & set(build_filler(seed).words)


@pytest.mark.parametrize("words", [10, 41_473])
def test_a_language_that_cannot_be_made_is_refused(words: int) -> None:
    # 16 onsets × 18 rimes, squared, is 82 944 words; half of them may be used.
    with pytest.raises(ConfigError, match=rf"world\.filler_words = {words}.*between 11 and 41472"):
        build_filler(0, words=words)
    assert len(build_filler(0, words=11).words) == 11
