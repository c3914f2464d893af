"""Spans of text as spans of tokens, against a slow count of bytes."""

import random

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from holdfast.agent.protocol import CLEAN, parse_turn
from holdfast.model.tokens import REPLACEMENT, char_lengths, cut_ids, decode, encode, token_span


def slow_span(tokens, char_span, tokenizer):
    """By bytes: in byte-level BPE the bytes of a text are the bytes of its tokens, one after the other."""
    from tokenizers.pre_tokenizers import ByteLevel  # the alphabet has one character per byte

    width = [len(tokenizer.convert_ids_to_tokens(token)) for token in tokens]
    assert set("".join(tokenizer.convert_ids_to_tokens(list(tokens)))) <= set(ByteLevel.alphabet())
    text = decode(tokenizer, tokens)
    first, last = len(text[: char_span[0]].encode()), len(text[: char_span[1]].encode())
    starts = [sum(width[:i]) for i in range(len(tokens))]
    inside = [i for i, start in enumerate(starts) if start < last and start + width[i] > first]
    return inside[0], inside[-1] + 1


def test_the_fixture_is_what_these_tests_are_about(tokenizer):
    pieces = [decode(tokenizer, [i]) for i in encode(tokenizer, "<answer> Orsa </answer>\n\n")]
    assert pieces[-1] == ">\n\n"  # a closing tag merges with what follows it
    assert [decode(tokenizer, [i]) for i in encode(tokenizer, "鰐")] == [REPLACEMENT] * 3  # one character, three tokens


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("<answer> Orsa </answer>", "<answer> Orsa </answer>"),
        ("so <answer> Orsa </answer>\n\n", " <answer> Orsa </answer>\n\n"),  # ` <` and `>\n\n` are single tokens
        ("鰐 <answer> 鰐 </answer>.\n", " <answer> 鰐 </answer>.\n"),
        ("\n<answer>🦊</answer>", "<answer>🦊</answer>"),
    ],
)
def test_every_token_of_the_answer_counts_and_no_other(tokenizer, text, pieces):
    ids = encode(tokenizer, text)
    span = parse_turn(text, CLEAN)[1]
    start, end = token_span(ids, span, tokenizer)
    assert decode(tokenizer, ids[start:end]) == pieces
    assert (start, end) == slow_span(ids, span, tokenizer)
    # one token less on either side would lose a character of the answer
    answer = text[span[0] : span[1]]
    assert answer not in decode(tokenizer, ids[start + 1 : end])
    assert answer not in decode(tokenizer, ids[start : end - 1])


def test_against_the_slow_count_on_random_texts(tokenizer):
    rng = random.Random(0)
    pieces = ["<answer>", "</answer>", ">\n\n", " Orsa", "鰐", "é", "🦊🦊", "x", "\n", " ", "漢字", "’", "👩‍👩‍👧"]
    for _ in range(300):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 9)))
        ids = encode(tokenizer, text)
        assert decode(tokenizer, ids) == text
        start = rng.randrange(len(text))
        span = (start, rng.randint(start + 1, len(text)))
        assert token_span(ids, span, tokenizer) == slow_span(ids, span, tokenizer), (text, span)


def test_tokens_that_are_not_a_canonical_encoding(tokenizer):
    # A model may sample `>` and `\n\n` apart, or one byte at a time: what counts is the text of the tokens there are.
    ids = [i for character in "鰐<answer>é</answer>\n" for i in encode(tokenizer, character)]
    start, end = token_span(ids, (1, 19), tokenizer)
    assert (start, decode(tokenizer, ids[start:end])) == (3, "<answer>é</answer>")


def test_a_text_that_ends_inside_a_character(tokenizer):
    ids = [*encode(tokenizer, "<answer> x </answer>"), *encode(tokenizer, "鰐")[:1]]
    start, end = token_span(ids, (0, 20), tokenizer)
    assert decode(tokenizer, ids[start:end]) == "<answer> x </answer>"


def test_a_sentencepiece_tokenizer_with_byte_fallback():
    # Llama's and Gemma's kind: blanks are ▁, characters outside the vocabulary are bytes, decoded run by run, and a run
    # that ends early decodes to one replacement character per byte.
    tokenizer = byte_fallback()
    text = "so 鰐鰐<answer> 鰐🦊 Orsa </answer>\n鰐"
    ids = encode(tokenizer, text)
    assert decode(tokenizer, ids) == text
    span = parse_turn(text, CLEAN)[1]
    for tail in range(4):  # whole, and cut inside the last character
        tokens = ids[: len(ids) - tail]
        start, end = token_span(tokens, span, tokenizer)
        assert decode(tokenizer, tokens[start:end]).strip() == "<answer> 鰐🦊 Orsa </answer>"
        assert tokenizer.convert_ids_to_tokens(tokens[start]) == "<"
        assert tokenizer.convert_ids_to_tokens(tokens[end - 1]) == ">"
    for limit in range(len(ids)):
        assert REPLACEMENT not in decode(tokenizer, cut_ids(tokenizer, ids, limit))


def byte_fallback() -> PreTrainedTokenizerFast:
    characters = ["▁", "\n", *"<>/abcdefghijklmnopqrstuvwxyzO"]
    vocabulary = {piece: i for i, piece in enumerate(["<unk>", *(f"<0x{b:02X}>" for b in range(256)), *characters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_special_tokens_inside_the_text_are_characters_too(tokenizer):
    assert decode(tokenizer, [tokenizer.eos_token_id]) == "<|end|>"
    ids = [tokenizer.eos_token_id, *encode(tokenizer, "<answer> x </answer>"), tokenizer.eos_token_id]
    span = parse_turn(decode(tokenizer, ids), CLEAN)[1]
    assert token_span(ids, span, tokenizer) == (1, len(ids) - 1)


@pytest.mark.parametrize("span", [(0, 0), (2, 1), (-1, 2), (0, 99)])
def test_spans_outside_the_text_are_refused(tokenizer, span):
    with pytest.raises(ValueError, match="is not a part of the 4 characters"):
        token_span(encode(tokenizer, "Orsa"), span, tokenizer)


def test_a_cut_never_ends_inside_a_character(tokenizer):
    text = "Orsa 鰐鰐 🦊"
    ids = encode(tokenizer, text)
    seen = set()
    for limit in range(len(ids) + 2):
        kept = cut_ids(tokenizer, ids, limit)
        assert kept == ids[: len(kept)]
        assert max(0, limit - 3) <= len(kept) <= limit  # a character has four bytes: at most three tokens are lost
        assert text.startswith(decode(tokenizer, kept))
        seen.add(decode(tokenizer, kept))
    assert {"", "Orsa", "Orsa 鰐", "Orsa 鰐鰐", text} <= seen
    assert cut_ids(tokenizer, ids, -1) == []


def test_foreign_text_cannot_write_a_special_token(tokenizer):
    assert tokenizer.eos_token_id in encode(tokenizer, "a <|end|> b")
    ids = encode(tokenizer, "a <|end|> b", foreign=True)
    assert tokenizer.eos_token_id not in ids
    assert decode(tokenizer, ids) == "a <|end|> b"
    assert tokenizer.eos_token_id in encode(tokenizer, "a <|end|> b")  # and the setting does not stick


def test_empty(tokenizer):
    assert encode(tokenizer, "") == []
    assert decode(tokenizer, []) == ""


# ---- the text, token by token


def slow_lengths(tokens, text, tokenizer):
    """By bytes: a token completes the characters whose last byte is one of its own."""
    ends, length = [], 0
    for token in tokens:
        if token != tokenizer.eos_token_id:
            length += len(tokenizer.convert_ids_to_tokens(token))
        ends.append(length)
    character_ends = [len(text[: i + 1].encode()) for i in range(len(text))]
    completed = [sum(at <= end for at in character_ends) for end in ends]
    return [b - a for a, b in zip([0, *completed], completed, strict=False)]


def test_the_characters_of_each_token_on_random_texts(tokenizer):
    rng = random.Random(0)
    pieces = ["<answer>", "</answer>", ">\n\n", " Orsa", "鰐", "é", "🦊🦊", "x", "\n", " ", "漢字", "’", "👩‍👩‍👧"]
    for _ in range(200):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 9)))
        ids = encode(tokenizer, text)
        if rng.random() < 0.5:  # the end of the sequence is sampled, and stands in no text
            ids.append(tokenizer.eos_token_id)
        found = char_lengths(ids, text, tokenizer)
        assert found == slow_lengths(ids, text, tokenizer) and sum(found) == len(text)


def test_the_characters_of_tokens_that_decode_otherwise_alone():
    """A first token without a space before it, as SentencePiece's have: tokens alone do not give the text."""
    own = Tokenizer(models.WordLevel({"▁the": 0, "▁lake": 1, "s": 2}, unk_token="s"))
    own.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=own)
    assert decode(tokenizer, [0, 1, 2]) == "the lakes" and decode(tokenizer, [1]) == "lake"
    assert char_lengths([0, 1, 2], "the lakes", tokenizer) == [3, 5, 1]


def test_no_token_no_character(tokenizer):
    assert char_lengths([], "", tokenizer) == []
    assert char_lengths([tokenizer.eos_token_id], "", tokenizer) == [0]
    # bytes that are no character: whatever the text shows for them is shared out and nothing is lost
    broken = encode(tokenizer, "鰐")[:2]
    assert sum(char_lengths(broken, decode(tokenizer, broken), tokenizer)) == len(decode(tokenizer, broken))
