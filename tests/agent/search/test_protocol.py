"""The action parser, prompts of base and instruct models, and protocols that cannot work."""

from dataclasses import replace

import pytest

from holdfast.agent.env import format_hits
from holdfast.agent.protocol import (
    CLEAN,
    R1,
    SAPO,
    SEARCH_R1,
    SearchProtocol,
    parse_action,
    parse_turn,
    render_prompt,
)
from holdfast.agent.tools import PRESETS
from holdfast.agent.trajectory import Answer, Invalid, Search
from holdfast.base.errors import ConfigError, DataError
from holdfast.model.tokens import decode
from holdfast.retrieval.types import Document, Hit

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<search> lake of Orsa </search>", Search("lake of Orsa")),
        ("<search>\n two\nlines \n</search>", Search("two\nlines")),
        ("<think> t </think>\n<answer> Orsa </answer>", Answer("Orsa")),
        ("<answer>Orsa</answer>\n\n", Answer("Orsa")),
        # The overhang of the token that closed the tag is not read.
        ("<search> a </search><answer> b </answer>", Search("a")),
        ("<answer> a </answer><search> b </search>", Answer("a")),
        # A tag that is only mentioned does no harm.
        ("I use <search> now: <search> a </search>", Search("a")),
        ("no <search> needed: <answer> a </answer>", Answer("a")),
        ("<answer> not yet <search> a </search>", Search("a")),
        ("<search> 鰐 & <b>x</b> </search>", Search("鰐 & <b>x</b>")),
        ("<information> <answer> </information> <search> a </search>", Search("a")),
        # Nothing that can be acted on.
        ("", Invalid("neither a search nor an answer")),
        ("just words", Invalid("neither a search nor an answer")),
        ("<search> cut", Invalid("a tag is not closed")),
        ("<answer> cut", Invalid("a tag is not closed")),
        ("a </search>", Invalid("</search> without <search>")),
        ("<search> a </answer>", Invalid("</answer> without <answer>")),
        ("</answer> <answer> a </answer>", Invalid("</answer> without <answer>")),
        ("<search></search>", Invalid("empty query")),
        ("<answer> \n </answer>", Invalid("empty answer")),
        ("<SEARCH> a </SEARCH>", Invalid("neither a search nor an answer")),
        ("<search > a </search>", Invalid("</search> without <search>")),
    ],
)
def test_parse_action(text, action):
    assert parse_action(text, CLEAN) == action


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("ab<answer> Orsa </answer>\n", "<answer> Orsa </answer>"),
        ("<answer> x <answer> Orsa </answer> y </answer>", "<answer> Orsa </answer>"),
        ("<answer>  </answer>", None),
        ("<search> a </search><answer> b </answer>", "<search> a </search>"),
        ("<search>  </search>", None),
        ("no", None),
    ],
)
def test_characters_of_an_action(text, span):
    found = parse_turn(text, CLEAN)[1]
    assert (None if found is None else text[slice(*found)]) == span


def test_tags_are_the_protocols_own():
    own = replace(CLEAN, search_open="[[", search_close="]]", answer_open="{", answer_close="}")
    assert parse_action("so [[ a ]] {b}", own) == Search("a")
    assert parse_action("so {b}", own) == Answer("b")
    assert parse_action("<search> a </search>", own) == Invalid("neither a search nor an answer")
    assert own.stop == ("]]", "}")


def test_one_closing_tag_may_begin_like_the_other():
    own = replace(CLEAN, search_close="</s>", answer_close="</s>!")
    assert parse_action("<answer> a </s>!", own) == Answer("a")
    assert parse_action("<search> a </s>", own) == Search("a")


def test_passages_are_written_as_search_r1_writes_them():
    hits = [Hit(Document("a", '"Orsa"\nA town. \nOld.'), 2.0), Hit(Document("b", "Mora"), 1.0)]
    assert format_hits(hits) == ["Doc 1(Title: Orsa) A town. \nOld.\n", "Doc 2(Title: Mora)\n"]
    assert format_hits(hits, title_quotes=True)[0] == 'Doc 1(Title: "Orsa") A town. \nOld.\n'
    assert format_hits([]) == []


def test_the_preset_without_search_never_names_one(tokenizer):
    text = decode(tokenizer, render_prompt("Who?", R1, tokenizer))
    assert text.endswith("Question: Who?\n") and R1.max_turns == 1
    assert all(tag in text for tag in R1.answer_tags)
    assert "search" not in text.lower() and R1.information_open not in text
    assert PRESETS["r1"] is R1


@pytest.mark.parametrize("protocol", [CLEAN, SEARCH_R1, SAPO])
def test_presets(protocol, tokenizer):
    text = decode(tokenizer, render_prompt("Who?", protocol, tokenizer))
    assert text.count("Who?") == 1
    assert text.endswith("Question: Who?\n")
    for tag in (*protocol.search_tags, *protocol.answer_tags, *protocol.information_tags):
        assert tag in text
    for tag in (*protocol.search_tags, *protocol.answer_tags):
        assert tag in protocol.invalid_note
    assert PRESETS[protocol.name] is protocol


def test_turns_of_search_r1_are_four_searches_and_an_answer():
    assert (CLEAN.max_turns, SEARCH_R1.max_turns) == (4, 5)


def test_sapo_has_tags_of_its_own_and_five_searches(tokenizer):
    assert SAPO.information_tags == ("<documents>", "</documents>") and SAPO.max_turns - 1 == 5
    assert "information" not in SAPO.prompt and SAPO.prompt != SEARCH_R1.prompt
    assert (SAPO.topk, SAPO.title_quotes, SAPO.invalid_note) == (3, True, SEARCH_R1.invalid_note)
    assert decode(tokenizer, render_prompt("Who", SAPO, tokenizer)).endswith("Question: Who?\n")


def test_questions_are_put_in_as_they_are(tokenizer):
    own = replace(CLEAN, prompt="{a} {question} {}")  # braces around it are plain text
    assert decode(tokenizer, render_prompt(" {b} % {question} ", own, tokenizer)) == "{a} {b} % {question} {}"


def test_search_r1_ends_a_question_with_a_mark(tokenizer):
    for question in ("Who", "Who?"):
        assert decode(tokenizer, render_prompt(question, SEARCH_R1, tokenizer)).endswith(" Who?\n")
    assert decode(tokenizer, render_prompt("Name it", CLEAN, tokenizer)).endswith(" Name it\n")


def test_an_empty_question(tokenizer):
    with pytest.raises(DataError, match="question is empty"):
        render_prompt(" \n", CLEAN, tokenizer)


def test_a_base_model_gets_plain_text(tokenizer):
    assert tokenizer.chat_template is None
    plain = render_prompt("Who?", CLEAN, tokenizer)
    assert plain == render_prompt("Who?", CLEAN, tokenizer, "none")
    assert decode(tokenizer, plain) == CLEAN.prompt.replace("{question}", "Who?")


def test_an_instruct_model_gets_its_template(own_tokenizer):
    own_tokenizer.chat_template = CHATML
    text = decode(own_tokenizer, render_prompt("Who?", CLEAN, own_tokenizer))
    prompt = CLEAN.prompt.replace("{question}", "Who?")
    assert text == f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    assert decode(own_tokenizer, render_prompt("Who?", CLEAN, own_tokenizer, "none")) == prompt


def test_a_template_that_prints_the_date_prints_one_date(own_tokenizer):
    own_tokenizer.chat_template = (
        "{% if date_string is not defined %}{% set date_string = strftime_now('%H:%M:%S.%f') %}{% endif %}"
        "{{ date_string }} {{ messages[0]['content'] }}"
    )
    assert render_prompt("Who?", CLEAN, own_tokenizer) == render_prompt("Who?", CLEAN, own_tokenizer)


def test_a_template_file_wins_over_the_tokenizers(own_tokenizer, tmp_path):
    own_tokenizer.chat_template = CHATML
    file = tmp_path / "own.jinja"
    file.write_text("[{{ messages[0]['content'] }}]", encoding="utf-8")
    prompt = CLEAN.prompt.replace("{question}", "Who?")
    for path in (file, str(file)):
        assert decode(own_tokenizer, render_prompt("Who?", CLEAN, own_tokenizer, path)) == f"[{prompt}]"


def test_several_named_templates_mean_the_default_one(own_tokenizer):
    own_tokenizer.chat_template = {"default": "D {{ messages[0]['content'] }}", "rag": "R {{ messages[0]['content'] }}"}
    assert decode(own_tokenizer, render_prompt("Who?", CLEAN, own_tokenizer)).startswith("D ")


def test_templates_that_cannot_work(own_tokenizer, tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.jinja' cannot be read .*give 'auto', 'none'"):
        render_prompt("Who?", CLEAN, own_tokenizer, tmp_path / "missing.jinja")
    with pytest.raises(ConfigError, match="cannot be read"):
        render_prompt("Who?", CLEAN, own_tokenizer, tmp_path)
    for name, template, message in [
        ("broken", "{% for %}", "cannot render one user message"),
        ("refuses", "{{ raise_exception('system first') }}", "system first"),
        ("drops", "{{ message }} hello", "drops the user's message"),
    ]:
        (tmp_path / name).write_text(template)
        with pytest.raises(ConfigError, match=message):
            render_prompt("Who?", CLEAN, own_tokenizer, tmp_path / name)
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match="cannot be read"):
        render_prompt("Who?", CLEAN, own_tokenizer, tmp_path / "latin")
    own_tokenizer.chat_template = "{{ nothing }}"
    with pytest.raises(ConfigError, match="the tokenizer's chat template drops"):
        render_prompt("Who?", CLEAN, own_tokenizer)


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
    ("change", "message"),
    [
        ({"prompt": "no place"}, r"prompt must contain \{question\}"),
        ({"answer_close": "</search>"}, "six different texts"),
        ({"information_open": ""}, "six different texts"),
        ({"max_turns": 0}, "max_turns = 0"),
        ({"topk": -1}, "topk = -1"),
        ({"max_observation_tokens": 0}, "max_observation_tokens = 0"),
    ],
)
def test_protocols_that_cannot_work(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(CLEAN, **change)


def test_a_protocol_of_ones_own_needs_a_name_a_prompt_and_a_note():
    own = SearchProtocol(name="own", prompt="{question}", invalid_note="?")
    assert own.stop == ("</search>", "</answer>")
