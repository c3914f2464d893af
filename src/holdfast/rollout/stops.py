"""Which tokens may end a turn: end-of-sequence ids, and tokens that could complete a stop string."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

END, MAYBE = 1, 2


class StopTable:
    """Per set of stop strings one byte per token id: 0 goes on, `END` ends the sequence, `MAYBE` asks for a look at the
    text.

    A stop string can only become complete with a token whose own text contains its last character, so the decoded text
    of a turn is looked at for those tokens alone. (A last character outside ASCII may be spread over several byte
    tokens, whose
    own text is the replacement character: these are looked at too.)
    """

    def __init__(self, tokenizer: Any, end_ids: Iterable[int], vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._end_ids = [token for token in end_ids if token < vocabulary]
        self._vocabulary = vocabulary
        self._tables: dict[tuple[str, ...], bytes] = {}

    def flags(self, stop: tuple[str, ...]) -> bytes:
        """One flag per token id for this set of stop strings; made once."""
        if stop not in self._tables:
            self._tables[stop] = self._make(stop)
        return self._tables[stop]

    @cached_property
    def _texts(self) -> list[str]:
        """The text of every token on its own, as far as the tokenizer knows them: a second for 150,000 of them."""
        known = min(self._vocabulary, len(self._tokenizer))
        texts: list[str] = self._tokenizer.batch_decode(
            [[token] for token in range(known)], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return texts

    def _make(self, stop: tuple[str, ...]) -> bytes:
        table = bytearray(self._vocabulary)
        if stop:
            last = {text[-1] for text in stop}
            if not all(character.isascii() for character in last):
                last.add("\ufffd")
            for token, text in enumerate(self._texts):
                if not last.isdisjoint(text):
                    table[token] = MAYBE
        for token in self._end_ids:
            table[token] = END
        return bytes(table)
