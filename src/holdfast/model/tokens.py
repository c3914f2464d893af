"""Text to token ids and back, with the settings that all parts share, and spans of text as spans of tokens.

Works with any Hugging Face tokenizer. Nothing here re-encodes what a model sampled.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol
from weakref import WeakKeyDictionary


class Tokenizer(Protocol):
    """The methods that encoding and decoding call; tokenizers of transformers have them."""

    def __call__(self, text: str, /, *, add_special_tokens: bool = ..., split_special_tokens: bool = ...) -> Any:
        """A mapping whose `input_ids` are the ids of `text`."""
        ...

    def decode(
        self, ids: list[int], /, *, skip_special_tokens: bool = ..., clean_up_tokenization_spaces: bool = ...
    ) -> Any:
        """The text of `ids`."""
        ...


REPLACEMENT = "\ufffd"  # what a byte-level tokenizer decodes a cut multi-byte character to


def encode(tokenizer: Tokenizer, text: str, *, foreign: bool = False) -> list[int]:
    """Ids of `text` alone: no BOS, no EOS. `foreign` text (a passage) that happens to spell a special token such as
    `<|im_end|>` is encoded as plain characters: no document may end the model's turn."""
    if not text:
        return []
    return list(tokenizer(text, add_special_tokens=False, split_special_tokens=foreign)["input_ids"])


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Text of `ids`, special tokens kept and spaces as they are: what `token_span` and the action parser count in."""
    if not ids:
        return ""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def cut_ids(tokenizer: Tokenizer, ids: Sequence[int], limit: int) -> list[int]:
    """The longest prefix of at most `limit` ids that does not end inside a multi-byte character."""
    prefix = list(ids[: max(limit, 0)])
    if len(prefix) == len(ids):
        return prefix
    while prefix and decode(tokenizer, prefix).endswith(REPLACEMENT):
        prefix.pop()
    return prefix


def token_span(tokens: Sequence[int], char_span: tuple[int, int], tokenizer: Tokenizer) -> tuple[int, int]:
    """Token offsets [start, end) of the characters [start, end) of `decode(tokenizer, tokens)`.

    A token counts if any of its characters is inside, so the token that merges `>` with the newline after it counts,
    and so does every token of a multi-byte character of which one is inside. One decoding where tokens decode one by
    one to the text, else O(log n) of prefixes.

    Example, with tokens `<`, `answer`, `> x`, ` </`, `answer`, `>\\n`: the span (0, 20) of `<answer> x </answer>` is
    (0, 6). Raises `ValueError` for a span that is empty or leaves the text.
    """
    start, end = char_span
    full = decode(tokenizer, tokens)
    if not 0 <= start < end <= len(full):
        raise ValueError(f"character span {char_span} is not a part of the {len(full)} characters of the text")
    pieces = _pieces(tokens, tokenizer)
    if "".join(pieces) == full:
        ends = list(accumulate(map(len, pieces)))
        return bisect_right(ends, start), bisect_left(ends, end) + 1

    def whole(n: int) -> int:
        """Characters that the first n tokens complete."""
        # A character cut by the prefix decodes to replacement characters, which the full text does not have there.
        return common_prefix(decode(tokenizer, tokens[:n]), full)

    def touched(n: int) -> int:
        """Characters of which the first n tokens hold at least one byte."""
        done = whole(n)
        return min(done + 1, len(full)) if len(decode(tokenizer, tokens[:n])) > done else done

    first = _first(lambda n: touched(n + 1) > start, len(tokens))
    stop = _first(lambda n: whole(n) >= end, len(tokens) + 1)
    return first, stop


def char_lengths(tokens: Sequence[int], text: str, tokenizer: Tokenizer) -> list[int]:
    """Characters of `text` that each token completes; they sum to its length.

    `text` is what the tokens decode to, perhaps without a special token at the end, which then has 0, as has a token
    that ends inside a multi-byte character. O(n) where tokens decode one by one to the text, else O(n²).
    """
    pieces = _pieces(tokens, tokenizer)
    if "".join(pieces).startswith(text):
        ends = list(accumulate(map(len, pieces)))
    else:  # a character of several tokens, or a tokenizer whose first token has no space before it
        ends = [common_prefix(decode(tokenizer, tokens[: n + 1]), text) for n in range(len(tokens))]
    if ends:
        ends[-1] = len(text)
    ends = [min(end, len(text)) for end in accumulate(ends, max)]
    return [end - start for start, end in pairwise([0, *ends])]


_TEXTS: WeakKeyDictionary[Any, dict[int, str]] = WeakKeyDictionary()
"""Tokenizer -> id -> its text. A rollout asks for the same few ids again and again."""


def _pieces(tokens: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """The text of each token alone."""
    texts = _TEXTS.setdefault(tokenizer, {})
    return [texts[t] if t in texts else texts.setdefault(t, decode(tokenizer, [t])) for t in tokens]


def common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    """Number of leading elements in which two lists or two texts agree.

    >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    if left == right[: len(left)]:
        return len(left)
    differ = (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
    return next(differ, min(len(left), len(right)))


def _first(holds: Callable[[int], bool], stop: int) -> int:
    """Smallest n in [0, stop) at which `holds` is true; it stays true from there on."""
    low, high = 0, stop - 1
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
