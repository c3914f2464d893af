"""Which tokens end a turn or ask for a look at the text."""

from __future__ import annotations

from holdfast.model.hf import END, MAYBE, StopTable


def test_flags(tokenizer) -> None:
    flags = StopTable(tokenizer, {tokenizer.eos_token_id}, vocabulary=310).flags(("</search>", "</answer>"))
    assert len(flags) == 310, "embeddings may be padded beyond the tokenizer"
    assert flags[tokenizer.eos_token_id] == END
    for token, text in enumerate(tokenizer.batch_decode([[i] for i in range(len(tokenizer))])):
        if token != tokenizer.eos_token_id:
            assert flags[token] == (MAYBE if ">" in text else 0), text
    merged = tokenizer(" </search>\n\n")["input_ids"][-1]
    assert tokenizer.decode([merged]).startswith(">\n"), "the point of this tokenizer"
    assert flags[merged] == MAYBE


def test_a_last_character_spread_over_byte_tokens_is_looked_at(tokenizer) -> None:
    last = tokenizer("é")["input_ids"][-1]
    assert "é" not in tokenizer.decode([last]), "two byte tokens"
    table = StopTable(tokenizer, (), vocabulary=300)
    assert table.flags(("fin é",))[last] == MAYBE
    assert table.flags(("fin e",))[last] == 0


def test_no_stop_strings(tokenizer) -> None:
    flags = StopTable(tokenizer, {1, 999}, vocabulary=300).flags(())
    assert [token for token, flag in enumerate(flags) if flag] == [1], "an id outside the vocabulary is no token"
