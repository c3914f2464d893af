"""The environment's side of a rollout: passages as text, and the observation after a turn. No model, no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.base.errors import ConfigError
from holdfast.model.tokens import Tokenizer, cut_ids, decode, encode, foreign
from holdfast.retrieval.types import Hit

if TYPE_CHECKING:
    from holdfast.agent.protocol import SearchProtocol


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


def make_observation(hits: Sequence[Hit] | None, protocol: SearchProtocol, tokenizer: Tokenizer) -> Observation:
    """The observation of a search (`hits`, possibly none) or, for `hits=None`, the note that the turn was invalid.

    At most `protocol.max_observation_tokens` ids. A longer one is truncated in token space, the longest passage
    first, so that no passage pays for another's length and the closing tag always stays. Raises `ConfigError` when not
    even the tags fit.
    """
    limit, gap = protocol.max_observation_tokens, protocol.separator
    if hits is None:
        ids = encode(tokenizer, f"{gap}{protocol.invalid_note}{gap}")
        shown = cut_ids(tokenizer, ids, limit)
        return Observation(tuple(shown), decode(tokenizer, shown), len(shown) < len(ids))
    head = encode(tokenizer, gap + protocol.information_open)
    tail = encode(tokenizer, protocol.information_close + gap)
    room = limit - len(head) - len(tail)
    if room < 1:
        raise ConfigError(
            f"protocol {protocol.name!r}: max_observation_tokens = {limit}, but with this tokenizer the information "
            f"tags alone take {len(head) + len(tail)} tokens; raise it (three passages of 100 words need about 500)"
        )
    passages = format_hits(hits, title_quotes=protocol.title_quotes) if hits else [protocol.nothing_found]
    body = encode(tokenizer, foreign("".join(passages).strip()))
    truncated = len(body) > room
    if truncated:
        body = fit(passages, room, tokenizer)
    ids = [*head, *body, *tail]
    return Observation(tuple(ids), decode(tokenizer, ids), truncated)


def encode_observation(text: str, protocol: SearchProtocol, tokenizer: Tokenizer) -> list[int]:
    """Ids of an observation's text, split into the pieces in which `make_observation` encodes it.

    So a warm start trains on the same tokens as a rollout shows. Otherwise a tokenizer may merge a tag with its
    neighbour into a token that a small model has never seen.
    """
    head, tail = protocol.separator + protocol.information_open, protocol.information_close + protocol.separator
    if not (text.startswith(head) and text.endswith(tail)):
        return encode(tokenizer, text)
    body = text[len(head) : len(text) - len(tail)]
    return [*encode(tokenizer, head), *encode(tokenizer, foreign(body)), *encode(tokenizer, tail)]


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
    >>> allot([5, 5], 20)
    [5, 5]
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
