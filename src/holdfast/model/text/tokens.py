"""Text to token ids and back, with the settings that all parts share, and spans of text as spans of tokens.

Works with any Hugging Face tokenizer. Nothing here re-encodes what a model sampled.

A prompt has text of the recipe and the chat template, and text of others: questions, passages, what a model said
before. The latter is marked by `foreign`, and `encode` then makes plain characters of it, whatever it spells.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
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
_MARK = "\ufdd0"
"""Before and after each foreign part of a text."""
_INTERNAL = dict.fromkeys(range(0xFDD0, 0xFDF0))
"""The characters that Unicode leaves to programs, for marks such as this one; nobody's text has them."""
_WITHOUT_BLANKS = re.compile(r"\S(?:.*\S)?", re.S)


def foreign(text: str, tags: Collection[str] = ()) -> str:
    """`text` marked for `encode` as not ours: nothing that it spells becomes a control token, but for `tags`.

    Control tokens are the tokenizer's special tokens, and those it adds that are written as tags: `<|im_end|>`,
    `<tool_call>`, `[INST]`. The mark goes through a chat template, which can still strip the text, and is in no ids.
    """
    longest_first = "|".join(map(re.escape, sorted(tags, key=len, reverse=True)))
    parts = re.split(f"({longest_first})", text.translate(_INTERNAL)) if tags else [text.translate(_INTERNAL)]
    return "".join(
        part if i % 2 else _WITHOUT_BLANKS.sub(rf"{_MARK}\g<0>{_MARK}", part) for i, part in enumerate(parts)
    )


def foreign_parts(text: str) -> list[str]:
    """What `foreign` has marked in a text."""
    return text.split(_MARK)[1::2]


def without_marks(text: str) -> str:
    """The text as `encode` and a model read it."""
    return text.replace(_MARK, "")


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of `text` alone: no BOS, no EOS.

    A text is encoded as a whole. Only if a `foreign` part spells a control token, each part is encoded alone, and that
    one in pieces.
    """
    parts = text.split(_MARK)
    ids = _ids(tokenizer, "".join(parts))
    if len(parts) == 1:
        return ids
    control = _control(tokenizer)
    found = control.among(ids)
    if not found or found == [i for part in parts[::2] for i in control.among(_ids(tokenizer, part))]:
        return ids
    encoders = (_ids, _plain_ids)
    return [i for k, part in enumerate(parts) for i in encoders[k % 2](tokenizer, part)]


def spelled_apart(tokenizer: Tokenizer, text: str) -> str:
    """`text` for a host that encodes it by itself: a blank is put into what spells a control token."""
    return _control(tokenizer).spelled.sub(r"\g<0> ", text)


def decode_for_server(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of a context for a server that encodes it again. What is no control token here is none there."""
    text, control = decode(tokenizer, ids), _control(tokenizer)
    if len(control.spelled.findall(text)) == len(control.among(ids)):
        return text
    runs = [(tokens, decode(tokenizer, list(run))) for tokens, run in groupby(ids, control.ids.__contains__)]
    return "".join(text if tokens else spelled_apart(tokenizer, text) for tokens, text in runs)


@dataclass(frozen=True, slots=True)
class _Control:
    """The control tokens of a tokenizer."""

    ids: frozenset[int]
    spelled: re.Pattern[str]
    """Matches the first character of each of their spellings."""

    def among(self, ids: Sequence[int]) -> list[int]:
        return [i for i in ids if i in self.ids]


_CONTROL: WeakKeyDictionary[Any, _Control] = WeakKeyDictionary()
_TAG = re.compile(r"\s*[<\[].*[>\]]\s*", re.S)
_IN_NO_VOCABULARY = "\U0010fffd"


def _control(tokenizer: Any) -> _Control:
    if tokenizer not in _CONTROL:
        added = getattr(tokenizer, "added_tokens_decoder", {})
        unknown = _ids(tokenizer, _IN_NO_VOCABULARY) if added else []  # what any rare character becomes
        texts = {
            i: str(token)
            for i, token in added.items()
            if (token.special or _TAG.fullmatch(str(token))) and i not in unknown and len(str(token)) > 1
        }
        spelled = re.compile(f"(?={'|'.join(map(re.escape, texts.values()))})." if texts else "(?!)", re.S)
        _CONTROL[tokenizer] = _Control(frozenset(texts), spelled)
    return _CONTROL[tokenizer]


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    if not text:
        return []
    return list(tokenizer(text, add_special_tokens=False, split_special_tokens=False)["input_ids"])


def _plain_ids(tokenizer: Any, text: str) -> list[int]:
    """Ids without a control token: of pieces that end within each spelling of one. If a tokenizer reads other
    characters as the same (wide ones, capitals), of each character alone."""
    control, ids = _control(tokenizer), list[int]()
    cuts = [0, *(match.end() for match in control.spelled.finditer(text)), len(text)]
    for pieces in ([text[start:end] for start, end in pairwise(cuts)], list(text)):
        ids = [i for piece in tokenizer(pieces, add_special_tokens=False)["input_ids"] for i in piece]
        if not control.among(ids):
            break
    return ids


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
