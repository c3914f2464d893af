"""What an agent would miss of a corpus: passages that are garbled, empty, or longer than an observation shows."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple

from holdfast.base.scoring import UNSPACED
from holdfast.retrieval.types import Document

_WORST = 10
_MIN_WORDS = 5
"""A passage of fewer hardly answers a question. Two characters of a text without blanks count as a word."""
_GARBLED = 0.2
"""Of a passage's words, from which on it is called garbled: formulas and tables have some."""
_HEADING_TOKENS = 8
"""What an observation writes beside title and text: `Doc 1(Title: …)`."""
_WORD = re.compile(rf"[{UNSPACED}]{{1,2}}|[^\s{UNSPACED}]+")
_READABLE = re.compile(r"\w\w|\d|^\W*[aAI]\W*$|[^\x00-\x7f]")
"""Letters apart, as of `W o r k s`, and signs alone are no words."""


class Flaw(NamedTuple):
    """What is wrong with a passage."""

    lost: float
    """The share of it that an agent cannot use."""
    order: int
    """Minus its place: of equal flaws the first is shown."""
    document: Document
    why: str


@dataclass(slots=True)
class Survey:
    """Counts passages while they are read. `room` is the tokens that an observation has for one passage."""

    room: int
    worst: list[Flaw] = field(default_factory=list)
    """At most ten; `flaws` has them in order."""
    flawed: Counter[str] = field(default_factory=Counter)
    """Kind of flaw -> passages."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Ending of the file -> passages, of a folder."""
    tokens: list[int] = field(default_factory=list)
    """About how many each passage has in an observation."""
    _seen: set[int] = field(default_factory=set)

    def watched(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Passes the passages on."""
        for document in documents:
            self._add(document)
            yield document

    def flaws(self) -> list[Flaw]:
        """The worst first."""
        return sorted(self.worst, reverse=True)

    def fits(self, share: float = 0.95) -> int:
        """Tokens that this share of the passages does not exceed; 0 without passages."""
        return sorted(self.tokens)[int(share * (len(self.tokens) - 1))] if self.tokens else 0

    def _add(self, document: Document) -> None:
        tokens = tokens_about(document.contents) + _HEADING_TOKENS
        self.tokens.append(tokens)
        self.kinds[PurePath(document.id.rpartition("#")[0]).suffix.lower()] += 1
        kind, lost, why = self._flaw(document, tokens)
        if kind:
            self.flawed[kind] += 1
            flaw = Flaw(lost, -len(self.tokens), document, why)
            (heapq.heappush if len(self.worst) < _WORST else heapq.heappushpop)(self.worst, flaw)

    def _flaw(self, document: Document, tokens: int) -> tuple[str, float, str]:
        words = _WORD.findall(document.text)
        unreadable = sum(not _READABLE.search(word) or not word.isprintable() or "\ufffd" in word for word in words)
        if words and (share := unreadable / len(words)) > _GARBLED and not re.match(f"[{UNSPACED}]", words[0]):
            return "garbled", share, f"garbled: {unreadable} of {len(words)} words are not words"
        if (key := hash(document.text)) in self._seen:
            return "repeated", 0.5, "repeated: an earlier passage has the same text"
        self._seen.add(key)
        if len(words) < _MIN_WORDS:
            return "empty", 1 - len(words) / _MIN_WORDS, f"empty: {len(words)} word{'s' * (len(words) != 1)}"
        if tokens > self.room:
            return "too long", 1 - self.room / tokens, f"too long: about {tokens} tokens, but {self.room} are shown"
        return "", 0.0, ""


def tokens_about(text: str) -> int:
    """Tokens of a text for a tokenizer of no particular model: one for four letters of ASCII, or three bytes of others.

    >>> tokens_about("Orsa lies on the Lomme."), tokens_about("湖水很冷。")
    (6, 5)
    """
    size = len(text.encode())
    ascii_size = size if text.isascii() else len(text.encode("ascii", "ignore"))
    return -(-ascii_size // 4) + (size - ascii_size) // 3
