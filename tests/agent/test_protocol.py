"""A real byte-level BPE tokenizer, learned in memory. As in Qwen's, punctuation takes the newlines after it."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from holdfast.agent.observations import format_hits
from holdfast.agent.protocol import CLEAN, SEARCH_R1, parse_action, parse_turn, render_prompt
from holdfast.agent.trajectory import Answer, Invalid, Search
from holdfast.base.errors import ConfigError
from holdfast.model.text.chat_template import ChatTemplate
from holdfast.model.text.tokens import REPLACEMENT, char_lengths, cut_ids, decode, encode, token_span
from holdfast.retrieval.types import Document, Hit

TEXTS = [
    "<search> the lake of Orsa </search>\n\n",
    "<search> Orsa </search>\n",
    "<answer> Orsa </answer>\n\n",
    "<answer> a town </answer>.\n",
    "\n\n<information>Doc 1(Title: Orsa) the lake, the town.\n</information>\n\n",
    "<think> 漢字 café </think>\n",
    "so <answer> or <search>",
] * 30


@pytest.fixture
def own_tokenizer(learn_tokenizer: Callable[..., Any]) -> PreTrainedTokenizerFast:
    """A tokenizer that a test may change."""
    return learn_tokenizer(TEXTS, 400, ["<|end|>", "<|begin|>"], eos_token="<|end|>")


@pytest.fixture(scope="session")
def tokenizer(learn_tokenizer: Callable[..., Any]) -> PreTrainedTokenizerFast:
    return learn_tokenizer(TEXTS, 400, ["<|end|>", "<|begin|>"], eos_token="<|end|>")


# ---- the action parser


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("text", "action", "acted"),
    [
        ("<search>\n two\nlines \n</search>", Search("two\nlines"), "<search>\n two\nlines \n</search>"),
        ("ab<answer> Orsa </answer>\n", Answer("Orsa"), "<answer> Orsa </answer>"),
        # The overhang of the token that closed the tag is not read.
        ("<search> a </search><answer> b </answer>", Search("a"), "<search> a </search>"),
        ("<answer> a </answer><search> b </search>", Answer("a"), "<answer> a </answer>"),
        # A tag that is only mentioned does no harm.
        ("I use <search> now: <search> a </search>", Search("a"), "<search> a </search>"),
        ("<answer> not yet <search> a </search>", Search("a"), "<search> a </search>"),
        ("<answer> x <answer> Orsa </answer> y </answer>", Answer("Orsa"), "<answer> Orsa </answer>"),
        ("<search> 鰐 & <b>x</b> </search>", Search("鰐 & <b>x</b>"), "<search> 鰐 & <b>x</b> </search>"),
        ("", Invalid("neither a search nor an answer"), None),
        ("<answer> cut", Invalid("a tag is not closed"), None),
        ("<search> a </answer>", Invalid("</answer> without <answer>"), None),
        ("<search></search>", Invalid("empty query"), None),
        ("<answer> \n </answer>", Invalid("empty answer"), None),
        ("<SEARCH> a </SEARCH>", Invalid("neither a search nor an answer"), None),
        ("<search > a </search>", Invalid("</search> without <search>"), None),
    ],
)
def test_what_a_turn_does_and_where_it_says_so(text, action, acted):
    found, span = parse_turn(text, CLEAN)
    assert found == action
    assert (None if span is None else text[slice(*span)]) == acted


def test_tags_are_the_protocols_own():
    own = replace(CLEAN, search_tags=("[[", "]]"), answer_tags=("{", "}"))
    assert parse_action("so [[ a ]] {b}", own) == Search("a")
    assert parse_action("so {b}", own) == Answer("b")
    assert parse_action("<search> a </search>", own) == Invalid("neither a search nor an answer")
    assert own.stop == ("]]", "}")


def test_passages_and_questions_are_written_as_search_r1_writes_them(tokenizer):
    hits = [Hit(Document("a", '"Orsa"\nA town. \nOld.'), 2.0), Hit(Document("b", "Mora"), 1.0)]
    assert format_hits(hits) == ["Doc 1(Title: Orsa) A town. \nOld.\n", "Doc 2(Title: Mora)\n"]
    assert format_hits(hits, title_quotes=True)[0] == 'Doc 1(Title: "Orsa") A town. \nOld.\n'
    for question in ("Who", "Who?"):
        assert decode(tokenizer, render_prompt(question, SEARCH_R1, tokenizer)).endswith(" Who?\n")
    assert decode(tokenizer, render_prompt("Name it", CLEAN, tokenizer)).endswith(" Name it\n")
    own = replace(CLEAN, prompt="{a} {question} {}")  # braces around it are plain text
    assert decode(tokenizer, render_prompt(" {b} % {question} ", own, tokenizer)) == "{a} {b} % {question} {}"


def with_template(source, **variables):
    return replace(CLEAN, template=ChatTemplate(source, variables))


def test_an_instruct_model_gets_its_template_and_a_base_model_plain_text(own_tokenizer, tmp_path):
    prompt = CLEAN.prompt.replace("{question}", "Who?")
    (tmp_path / "own.jinja").write_text("[{{ messages[0]['content'] }}]")
    for template, protocol, expected in (
        (None, CLEAN, prompt),
        (CHATML, CLEAN, f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"),
        (CHATML, with_template("none"), prompt),
        (CHATML, with_template(str(tmp_path / "own.jinja")), f"[{prompt}]"),
    ):
        own_tokenizer.chat_template = template
        assert decode(own_tokenizer, render_prompt("Who?", protocol, own_tokenizer)) == expected


def test_the_date_is_the_same_every_day_and_a_variable(own_tokenizer):
    own_tokenizer.chat_template = (
        "  {% if true %}{{ date_string }} {{ strftime_now('%B %d, %Y') }}: {{ messages[0]['content'] }}{% endif %}"
    )
    prompt = CLEAN.prompt.replace("{question}", "Who?")
    own = {"date_string": "27 Nov 2026"}
    for variables, written in (({}, "26 Jul 2024"), (own, "27 Nov 2026")):
        text = decode(own_tokenizer, render_prompt("Who?", with_template("auto", **variables), own_tokenizer))
        assert text == f"{written} July 26, 2024: {prompt}"


def test_a_variable_that_the_template_never_reads_is_named_once(own_tokenizer, caplog):
    own_tokenizer.chat_template = (
        "{{ bos_token }}{% if effort is not defined %}{% set effort = 1 %}{% endif %}{% set ns = namespace() %}"
        "{% for m in messages %}{% set content = m.content %}{{ content }}{% endfor %}{{ effort }}"
        "{% if thinking %}{{ raise_exception('no') }}{% endif %}"
    )
    for _ in range(2):
        render_prompt("Who?", with_template("auto", thinkin=False, effort=2), own_tokenizer)
    (record,) = caplog.records
    assert record.getMessage().endswith("never reads thinkin; it reads effort, thinking")
    with pytest.raises(ConfigError, match=r"cannot render .*: no\..*model\.chat_template_kwargs"):
        render_prompt("Who?", with_template("auto", thinking=True), own_tokenizer)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "cannot be read"),
        (b"caf\xe9", "cannot be read"),
        (b"{% for %}", "cannot render messages of user"),
        (b"{{ raise_exception('system first') }}", "system first"),
        (b"{{ message }} hello", "drops the user's message"),
    ],
)
def test_templates_that_cannot_work(template, message, own_tokenizer, tmp_path):
    if template is not None:
        (tmp_path / "own.jinja").write_bytes(template)
    with pytest.raises(ConfigError, match=message):
        render_prompt("Who?", with_template(tmp_path / "own.jinja"), own_tokenizer)


def test_bos_is_kept_once_and_a_final_eos_is_not(own_tokenizer):
    from tokenizers.processors import TemplateProcessing

    own_tokenizer.bos_token = "<|begin|>"
    bos, eos = own_tokenizer.bos_token_id, own_tokenizer.eos_token_id
    own_tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin|> $A <|end|>", special_tokens=[("<|begin|>", bos), ("<|end|>", eos)]
    )
    plain = render_prompt("Who?", CLEAN, own_tokenizer)
    assert (plain[0], plain.count(bos), plain.count(eos)) == (bos, 1, 0)
    # A template writes its own BOS; another one in front would double it.
    own_tokenizer.chat_template = "{{ bos_token }}{{ messages[0]['content'] }}"
    assert render_prompt("Who?", CLEAN, own_tokenizer) == plain


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "no place"},
        {"answer_tags": ("<answer>", "</search>")},
        {"information_tags": ("", "</information>")},
        {"max_turns": 0},
    ],
)
def test_protocols_that_cannot_work(change):
    with pytest.raises(ConfigError, match=r"prompt must contain|six different texts|max_turns = 0"):
        replace(CLEAN, **change)


# ---- observations


def hits(*texts: str) -> list[Hit]:
    return [Hit(Document(str(i), f'"T{i}"\n{text}'), 1.0) for i, text in enumerate(texts)]


def test_what_is_shown_and_its_budget_at_the_boundary(tokenizer):
    seen = CLEAN.observe(hits("the lake", "漢字"), tokenizer)
    assert seen.text == "\n\n<information>Doc 1(Title: T0) the lake\nDoc 2(Title: T1) 漢字</information>\n\n"
    n = len(seen.token_ids)
    assert replace(CLEAN, max_observation_tokens=n).observe(hits("the lake", "漢字"), tokenizer) == seen
    less = replace(CLEAN, max_observation_tokens=n - 1).observe(hits("the lake", "漢字"), tokenizer)
    assert less.truncated and len(less.token_ids) == n - 1
    assert CLEAN.observe([], tokenizer).text == "\n\n<information>Nothing was found.</information>\n\n"
    assert SEARCH_R1.observe([], tokenizer).text == "\n\n<information></information>\n\n"
    assert CLEAN.observe(None, tokenizer).text == f"\n\n{CLEAN.invalid_note}\n\n"


def test_any_passages_any_budget(tokenizer):
    rng = random.Random(0)
    pieces = ["lake ", "漢字", "🦊", "<|end|>", "\n", "Orsa. ", "é"]
    tags = len(encode(tokenizer, "\n\n<information>")) + len(encode(tokenizer, "</information>\n\n"))
    cuts = 0
    for _ in range(200):
        found = hits(*("".join(rng.choices(pieces, k=rng.randint(0, 80))) for _ in range(rng.randint(1, 5))))
        limit = rng.randint(tags + 1, 250)
        seen = replace(CLEAN, max_observation_tokens=limit).observe(found, tokenizer)
        assert len(seen.token_ids) <= limit
        assert seen.text == decode(tokenizer, seen.token_ids)
        assert seen.text.startswith("\n\n<information>")
        assert seen.text.endswith("</information>\n\n")  # the closing tag survives every cut
        assert REPLACEMENT not in seen.text  # and no character is halved
        assert tokenizer.eos_token_id not in seen.token_ids
        if seen.truncated:
            cuts += 1
            # A halved character is up to three tokens per passage; otherwise a cut wastes nothing.
            assert len(seen.token_ids) >= limit - 3 * len(found) - 2
    assert 20 < cuts < 180


# ---- spans of text as spans of tokens


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


def test_spans_and_characters_against_the_slow_count_on_random_texts(tokenizer):
    rng = random.Random(0)
    pieces = ["<answer>", "</answer>", ">\n\n", " Orsa", "鰐", "é", "🦊🦊", "x", "\n", " ", "漢字", "’", "👩‍👩‍👧"]
    for _ in range(300):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 9)))
        ids = encode(tokenizer, text)
        assert decode(tokenizer, ids) == text
        start = rng.randrange(len(text))
        span = (start, rng.randint(start + 1, len(text)))
        assert token_span(ids, span, tokenizer) == slow_span(ids, span, tokenizer), (text, span)
        if rng.random() < 0.5:  # the end of the sequence is sampled, and stands in no text
            ids.append(tokenizer.eos_token_id)
        found = char_lengths(ids, text, tokenizer)
        assert found == slow_lengths(ids, text, tokenizer) and sum(found) == len(text)


def test_tokens_that_are_not_a_canonical_encoding(tokenizer):
    # A model may sample `>` and `\n\n` apart, or one byte at a time: what counts is the text of the tokens there are.
    ids = [i for character in "鰐<answer>é</answer>\n" for i in encode(tokenizer, character)]
    start, end = token_span(ids, (1, 19), tokenizer)
    assert (start, decode(tokenizer, ids[start:end])) == (3, "<answer>é</answer>")


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


def test_the_characters_of_tokens_that_decode_otherwise_alone():
    """A first token without a space before it, as SentencePiece's have: tokens alone do not give the text."""
    own = Tokenizer(models.WordLevel({"▁the": 0, "▁lake": 1, "s": 2}, unk_token="s"))
    own.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=own)
    assert decode(tokenizer, [0, 1, 2]) == "the lakes" and decode(tokenizer, [1]) == "lake"
    assert char_lengths([0, 1, 2], "the lakes", tokenizer) == [3, 5, 1]
