"""What BM25 takes for the words of a text.

A word is a run of letters and digits. Where a script puts no blanks between words (Chinese, Japanese, Thai, Lao, Khmer,
Burmese, Tibetan), every two neighbouring characters are a word, in passages and in queries. A question then finds the
passages that have its words, wherever they begin.
"""

from __future__ import annotations

import re

from holdfast.base.scoring import UNSPACED

BIGRAMS = "bigrams"
"""How the manifest of an index says that it has them."""
_WORD = re.compile(r"\w+")
_UNSPACED = re.compile(f"[{UNSPACED}]")
_RUN = re.compile(rf"[{UNSPACED}]+|(?:(?![{UNSPACED}])\w)+")


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case and in order.

    >>> words_of("The lake, 北京的湖 2x")
    ['the', 'lake', '北京', '京的', '的湖', '2x']
    """
    text = text.lower()
    if text.isascii() or not _UNSPACED.search(text):
        return _WORD.findall(text)
    words: list[str] = []
    for run in _RUN.findall(text):
        if len(run) > 1 and _UNSPACED.match(run):
            words += [run[i : i + 2] for i in range(len(run) - 1)]
        else:
            words.append(run)
    return words
