"""From text to words, once for indexing and once for queries, so that both sides always agree."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from holdfast.errors import MissingExtra

_WORD = re.compile(r"\w+")
_REMEMBERED = 1 << 20
# The function words Lucene drops. Ours are indexed all the same, and dropped from a query only beside other words, so
# that a question about the film "It" finds something.
_STOP_LINE = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
_STOP_WORDS = frozenset(_STOP_LINE.split())


class Vocabulary:
    """Numbers for words, in the order in which they are met."""

    def __init__(self, stem: bool, numbers: dict[str, int] | None = None) -> None:
        """`numbers`: words (stems) that have one already."""
        self.numbers: dict[str, int] = {} if numbers is None else numbers
        self._stem = stemmer(stem)
        self._known: dict[str, int] = {}  # word as written -> number of its stem; a corpus repeats its words

    def learn(self, text: str) -> list[int]:
        """The number of every word of a text, new ones included."""
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        known, row = self._known, []
        for word in _WORD.findall(text.lower()):
            number = known.get(word)
            if number is None:
                number = known[word] = self.numbers.setdefault(self._stem(word), len(self.numbers))
            row.append(number)
        return row


def query_words(query: str, numbers: Mapping[str, int], stem: Callable[[str], str]) -> list[int]:
    """Numbers of a query's words that occur in the corpus, in order, repetitions included."""
    words = _WORD.findall(query.lower())
    words = [word for word in words if word not in _STOP_WORDS] or words
    return [number for word in words if (number := numbers.get(stem(word))) is not None]


def stemmer(stem: bool) -> Callable[[str], str]:
    """From a word to its English Snowball stem, or to itself. Raises `MissingExtra`.

    A stemmer must not be used by two threads at once.
    """
    if not stem:
        return lambda word: word
    try:
        import Stemmer
    except ImportError:
        raise MissingExtra("PyStemmer", "train") from None
    return Stemmer.Stemmer("english").stemWord
