"""Which tokens may end a turn."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from holdfast.model.sampler.cache import Row
from holdfast.model.sampler.policy import StopReason
from holdfast.model.text.tokens import REPLACEMENT, decode

END, MAYBE = 1, 2


class StopTable:
    """For each set of stop strings one byte per token id: 0 continues, `END` ends the sequence, `MAYBE` may complete a
    stop string, so that the text must be checked.

    A stop string is completed only by a token whose own text contains its last character, so the text of a turn is
    decoded for those tokens alone. (A last character outside ASCII may span several byte tokens, whose own text is the
    replacement character: these are checked too.)
    """

    def __init__(self, tokenizer: Any, end_ids: Iterable[int], vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._end_ids = [token for token in end_ids if token < vocabulary]
        self._vocabulary = vocabulary
        self._tables: dict[tuple[str, ...], bytes] = {}

    def flags(self, stop: tuple[str, ...]) -> bytes:
        """One flag per token id for this set of stop strings; computed once."""
        if stop not in self._tables:
            self._tables[stop] = self._make(stop)
        return self._tables[stop]

    def why_stopped(self, row: Row) -> StopReason | None:
        """Why the turn of a row ends with its newest token; None if it goes on."""
        flag, request = row.flags[row.context[-1]], row.request
        assert request is not None
        if flag == END:
            return "eos"
        if flag:
            text = decode(self._tokenizer, row.context[len(request.token_ids) :])
            if any(stop in text for stop in request.stop):
                return "stop"
        return "length" if len(row.logprobs) >= request.max_new_tokens else None

    @cached_property
    def _texts(self) -> list[str]:
        """The decoded text of every single token that the tokenizer knows; takes a second for 150,000 of them."""
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
                last.add(REPLACEMENT)
            for token, text in enumerate(self._texts):
                if not last.isdisjoint(text):
                    table[token] = MAYBE
        for token in self._end_ids:
            table[token] = END
        return bytes(table)
