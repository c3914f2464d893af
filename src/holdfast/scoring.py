"""Answer normalisation and the three scores, once, for rewards and evaluations.

The rules are those of Search-R1, which SQuAD 1.1 introduced, with one deviation: a text of which normalisation leaves
nothing (`the`, `A`, `?`) never scores, neither as prediction nor as golden answer. The published code counts two empty
texts as equal, and an empty golden answer as contained in every prediction; a policy would find both.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lower case, ASCII punctuation deleted (not spaced), words a, an, the dropped, blanks collapsed; in that order.

    >>> normalize_answer("The U.S.  Open, a tournament")
    'us open tournament'
    """
    text = text.lower().translate(_DELETE_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction: str | None, golds: Sequence[str]) -> float:
    """1.0 if the prediction equals any golden answer after normalisation, else 0.0. `None` (no answer) is 0.0.

    >>> exact_match("the Eiffel Tower", ["Eiffel tower."])
    1.0
    """
    answers = normalized_golds(golds)
    return float(prediction is not None and normalize_answer(prediction) in answers)


def f1(prediction: str | None, golds: Sequence[str]) -> float:
    """Best F1 of the normalised words over the golden answers, repeated words counted: 2PR / (P + R).

    The predicted words {red, eiffel, tower} and the golden {eiffel, tower} share 2: P = 2/3, R = 1, F1 = 0.8.

    >>> f1("red Eiffel tower", ["Eiffel tower"])
    0.8
    """
    answers = normalized_golds(golds)
    words = normalize_answer(prediction or "").split()
    return max((_word_f1(words, answer.split()) for answer in answers), default=0.0)


def sub_em(prediction: str | None, golds: Sequence[str]) -> float:
    """1.0 if any golden answer occurs in the prediction, as characters: "us" is found in "russia", as published.

    >>> sub_em("It is the Eiffel Tower in Paris", ["Eiffel tower"])
    1.0
    """
    answers = normalized_golds(golds)
    text = normalize_answer(prediction or "")
    return float(any(answer in text for answer in answers))


def normalized_golds(golds: Sequence[str]) -> list[str]:
    """The golden answers of which normalisation leaves something.

    Raises `TypeError` for one text instead of a list (its letters would be the answers), `ValueError` for no answers.
    """
    if isinstance(golds, str):
        raise TypeError(f"golden answers must be a list of texts; got the text {golds!r}: write [{golds!r}]")
    if not golds:
        raise ValueError("there are no golden answers, so there is nothing to score against")
    return [answer for gold in golds if (answer := normalize_answer(gold))]


def _word_f1(predicted: list[str], golden: list[str]) -> float:
    shared = sum((Counter(predicted) & Counter(golden)).values())
    # 2PR / (P + R) with P = shared / predicted and R = shared / golden, in one division: exact for whole counts.
    return 2 * shared / (len(predicted) + len(golden))
