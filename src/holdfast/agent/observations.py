"""What the environment writes: an observation, passages as text, and how they are shortened. No model, no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.model.text.tokens import Tokenizer, cut_ids, encode, foreign
from holdfast.retrieval.types import Hit


@dataclass(frozen=True, slots=True)
class Observation:
    """What the model reads after a turn. `text` is the decoded `token_ids`, after any truncation."""

    token_ids: tuple[int, ...]
    text: str
    truncated: bool = False
    """True when passages were shortened to fit `max_observation_tokens`."""


def format_hits(hits: Sequence[Hit], *, title_quotes: bool = False, with_ids: bool = False) -> list[str]:
    """One line of text per passage, as Search-R1 writes them; `with_ids`: the passage's id in place of its rank.

    >>> from holdfast.retrieval.types import Document
    >>> format_hits([Hit(Document("a", '"Orsa"\\nOrsa is a town.'), 3.2)])
    ['Doc 1(Title: Orsa) Orsa is a town.\\n']
    """
    lines = []
    for i, hit in enumerate(hits, start=1):
        document = hit.document
        title = document.contents.partition("\n")[0].strip() if title_quotes else document.title
        lines.append(f"Doc {document.id if with_ids else i}(Title: {title}) {document.text.strip()}".rstrip() + "\n")
    return lines


def fit(passages: Sequence[str], room: int, tokenizer: Tokenizer) -> list[int]:
    """Ids of `passages`, one line each, shortened to at most `room` ids altogether."""
    newline = encode(tokenizer, "\n")
    passages = passages[: max(room // (1 + len(newline)), 1)]  # a tiny budget holds the best-ranked only
    encoded = [encode(tokenizer, foreign(passage.strip())) for passage in passages]
    room -= len(newline) * (len(passages) - 1)
    body: list[int] = []
    for ids, length in zip(encoded, allot([len(ids) for ids in encoded], room), strict=True):
        shortened = cut_ids(tokenizer, ids, length)
        body += [*(newline if body and shortened else []), *shortened]
    return body


def allot(lengths: Sequence[int], room: int) -> list[int]:
    """Shares of `room` for passages of these lengths: one bound for all, less for those that need less.

    >>> allot([10, 3, 8], 15)
    [6, 3, 6]
    >>> allot([5, 5], 20), allot([5, 5], 9), allot([4, 0], -2)
    ([5, 5], [5, 4], [0, 0])
    """
    shares = [0] * len(lengths)
    left = max(room, 0)
    # Shortest first: what a short passage does not use is shared by the longer ones. Of equals, the best-ranked gets
    # the odd token, hence the reversed rank.
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], -i))
    for done, i in enumerate(order):
        shares[i] = min(lengths[i], left // (len(lengths) - done))
        left -= shares[i]
    return shares
