"""Exact matches a second on one core, beside the plain way the official scripts are written.

    python benchmarks/scoring_speed.py
    python benchmarks/scoring_speed.py --json scoring_speed.json

Plain: a set of punctuation, a generator over characters, a regular expression built from its text at every call, and a
loop over golden answers: how SQuAD 1.1's script and those after it do it, restated here. Both score the same answers in
the same process, in turn, three rounds; shown are the fastest rounds. CPU seconds of the process, one thread.
"""

from __future__ import annotations

import argparse
import random
import re
import string
import time
import unicodedata
from collections.abc import Callable
from typing import Any

from holdfast.base.scoring import MODES, Mode, exact_match
from measuring import table, write_json

FASTEST_OF = 3
WORDS = ["the", "of", "a", "an", "in", "river", "Eiffel", "Tower", "York", "Jean-Luc", "U.S.", "1,000", "1912"]
WORDS += ["Anders", "café", "São", "Müller", "president's", "Lake"]


def plain_exact_match(prediction: str, golds: list[str], mode: Mode) -> float:
    """Exact match as the scripts write it."""
    spaced = mode == "triviaqa"

    def normalize(text: str) -> str:
        if mode == "nq":
            text = unicodedata.normalize("NFD", text)
        exclude = set(string.punctuation + ("‘’´`" if spaced else ""))
        kept = "".join((" " if spaced else "") if c in exclude else c for c in text.lower())
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())

    return float(max(normalize(prediction) == normalize(gold) for gold in golds))


def cases(count: int, seed: int = 0) -> list[tuple[str, list[str]]]:
    """Answers of one to six words, with one to five golden answers; a third is right."""
    rng = random.Random(seed)

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))

    pairs = []
    for _ in range(count):
        golds = [text() for _ in range(rng.randint(1, 5))]
        pairs.append((rng.choice(golds) if rng.random() < 1 / 3 else text(), golds))
    return pairs


def per_second(score: Callable[[str, list[str]], float], pairs: list[tuple[str, list[str]]]) -> float:
    start = time.process_time()
    for prediction, golds in pairs:
        score(prediction, golds)
    return len(pairs) / (time.process_time() - start)


def measure(count: int) -> dict[str, dict[str, float]]:
    pairs = cases(count)
    results = {}
    for mode in MODES:
        ours, plain = 0.0, 0.0
        for _ in range(FASTEST_OF):
            ours = max(ours, per_second(lambda p, g, mode=mode: exact_match(p, g, mode=mode), pairs))
            plain = max(plain, per_second(lambda p, g, mode=mode: plain_exact_match(p, g, mode), pairs))
        results[mode] = {"per_second": ours, "plain_per_second": plain, "ratio": ours / plain}
    return results


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=50_000, help="answers a round")
    parser.add_argument("--json", help="write the numbers here")
    options = parser.parse_args(arguments)
    results = measure(options.count)
    rows: list[list[Any]] = [
        [mode, f"{row['per_second']:,.0f}", f"{row['plain_per_second']:,.0f}", f"{row['ratio']:.1f}"]
        for mode, row in results.items()
    ]
    print(table(["mode", "EM / s", "plain / s", "ratio"], rows))
    write_json(options.json, results)


if __name__ == "__main__":
    main()
