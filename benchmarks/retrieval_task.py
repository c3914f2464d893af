"""Passages and questions for the benchmarks of retrieval, made from a seed.

    python benchmarks/retrieval_task.py corpus.jsonl --passages 1000000

Words follow Zipf's law; the most frequent are English function words, which BM25 drops from queries, the others are
made up. A question is made of four words of one passage, its title, and three function words, so that it has a few
rare words and one or two that tens of thousands of passages hold, as real ones have.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

FUNCTION_WORDS = [
    "the", "of", "and", "in", "to", "a", "was", "is", "for", "as", "on", "by", "with", "that", "it", "at", "be",
    "this", "are", "or", "not", "but", "an", "if", "into", "no", "such", "their", "then", "there", "these", "they",
    "will",
]  # fmt: skip

VOCABULARY = 300_000
_SYLLABLES = ["".join(pair) for pair in product("bdfgklmnprstvz", ["a", "e", "i", "o", "u", "an", "or", "el"])]


def words() -> list[str]:
    """The vocabulary, the most frequent first."""
    new_words = []
    rng = random.Random(0)
    seen = set(FUNCTION_WORDS)
    while len(new_words) < VOCABULARY - len(FUNCTION_WORDS):
        word = "".join(rng.choices(_SYLLABLES, k=rng.choice([2, 3, 3, 4])))
        if word not in seen:
            seen.add(word)
            new_words.append(word)
    return [*FUNCTION_WORDS, *new_words]


def passages(count: int, *, seed: int = 0) -> Iterator[tuple[str, str]]:
    """(title, text) of each passage: a text has 40 to 100 words."""
    vocabulary = np.array(words())
    share = 1 / (np.arange(VOCABULARY) + 2.7) ** 1.05
    bounds = np.cumsum(share) / share.sum()
    rng = np.random.default_rng(seed)
    for _ in range(0, count, 10_000):
        lengths = rng.integers(40, 101, min(10_000, count))
        drawn = np.searchsorted(bounds, rng.random(int(lengths.sum())))
        for ranks in np.split(drawn, np.cumsum(lengths)[:-1])[:count]:
            title = vocabulary[rng.integers(2_000, VOCABULARY, 2)]
            yield " ".join(title), " ".join(vocabulary[np.minimum(ranks, VOCABULARY - 1)])


def questions(corpus: Path, count: int, *, seed: int = 1) -> list[str]:
    """Different questions, each about a passage of the first ones in the file."""
    rng = random.Random(seed)
    rows = []
    with open(corpus, encoding="utf-8") as file:
        for line in file:
            rows.append(json.loads(line)["contents"])
            if len(rows) == 50_000:
                break
    unique: dict[str, None] = {}
    while len(unique) < count:
        title, text = rng.choice(rows).replace('"', "").split("\n")
        content_words = [word for word in text.split() if word not in FUNCTION_WORDS]
        chosen = [*rng.sample(content_words, 4), *title.split(), *rng.sample(FUNCTION_WORDS, 3)]
        rng.shuffle(chosen)
        unique[" ".join(chosen) + "?"] = None
    return list(unique)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--passages", type=int, default=1_000_000)
    options = parser.parse_args()
    with open(options.corpus, "w", encoding="utf-8") as file:
        for row, (title, text) in enumerate(passages(options.passages)):
            file.write(json.dumps({"id": str(row), "contents": f'"{title}"\n{text}'}) + "\n")


if __name__ == "__main__":
    main()
