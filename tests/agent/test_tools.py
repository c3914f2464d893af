"""Reading calls, writing results, and templates that cannot do it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.agent.agent import Task, run_rollouts
from holdfast.agent.call_syntax import Found
from holdfast.agent.calling import TOOLS, Tool
from holdfast.agent.metrics.control import ControlTokens
from holdfast.agent.protocol import render_prompt
from holdfast.agent.state import RolloutState
from holdfast.agent.template_format import read_format
from holdfast.agent.tools import NATIVE
from holdfast.agent.trajectory import Answer, Call, Invalid, Read, Search, Status, Trajectory, Turn
from holdfast.base.errors import ConfigError
from holdfast.model.sampler.policy import Completion
from holdfast.model.text.chat_template import ChatTemplate
from holdfast.model.text.tokens import decode, encode
from holdfast.retrieval.types import Document, Hit

from ..tool_templates import HERMES, OURS, VARIABLES
from .conftest import ScriptedPolicy, Shelf

BOTH = replace(NATIVE, tools=("search", "read"))
Speaker = Callable[[str], Any]


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# ---- reading

HERMES_CALLS = [
    (call("search", '{"query": " the lake "}'), Search("the lake")),
    (call("read", '{"id": "d1"}'), Read("d1")),
    ('<tool_call>{"arguments":{"query":"caf\\u00e9"},"name":"search"}</tool_call>\n', Search("café")),
    ("<think>\nno <tool_call> yet\n</think>\n\nI look. " + call("search", '{"query": "x"}'), Search("x")),
    ("<think> hm </think> Orsa ", Answer("Orsa")),
    ("[THINK] hm [/THINK] Orsa ", Answer("Orsa")),
    ("[THINK] hm", Invalid("the message has no end")),
    ('the set {"name": 1}', Answer('the set {"name": 1}')),
    (call("search", '{"query": "\\ud800x"}'), Search("?x")),
    (call("browse", '{"query": "x"}'), Invalid("there is no tool 'browse'")),
    (call("search", "{query: x}"), Invalid("the call is not JSON")),
    (call("search", '{"query": 3}'), Invalid("search takes query (string)")),
    (call("search", '{"query": "x", "topk": 9}'), Invalid("search takes query (string)")),
    (call("search", '{"query": " "}'), Invalid("empty query")),
    (call("search", '{"query": "x"}') * 2, Invalid("more than one call")),
    (call("search", '{"query": "x"}') + " and so", Invalid("text after the call")),
    ('<tool_call>{"name": "search", "arguments": {"query": "x"}}', Invalid("the call is not closed")),
    ('<tool_call>["search"]</tool_call>', Invalid("the call names no tool")),
    ("<tool_call>" + "[" * 100_000, Invalid("the call is not JSON")),
    ("<think> still", Invalid("the message has no end")),
    ("<think> hm </think>\n", Invalid("empty answer")),
]


LLAMA_CALLS = [  # without an opening
    ('{"name": "search", "parameters": {"query": "x"}}', Search("x")),
    ('\n{"type": "function", "name": "search", "parameters": {"query": "x"}}', Search("x")),
    ('<|python_tag|>{"name": "search", "parameters": {"query": "x"}}', Search("x")),
    ('{"name": "search", "parameters": {"query": "x"}}; {"name": 1}', Invalid("text after the call")),
    ('{"name": "search", "arguments": {"query": "x"}}', Invalid("search takes query (string)")),
    ("the set {1}", Answer("the set {1}")),
    ('the set {"a": 1}', Answer('the set {"a": 1}')),
]


def tagged(**arguments: str) -> str:
    tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function=search>\n{tags}</function>\n</tool_call>"


X = tagged(query="x")
XML_CALLS = [  # a tag for each parameter, and a message that begins inside a thought
    ("hm\n</think>\n\n" + tagged(query="12"), Search("12")),
    ("</think>I look. " + tagged(query="a </parameter> b\n</function>"), Search("a </parameter> b\n</function>")),
    ("</think><tool_call><function=search><parameter=query>x</parameter></function></tool_call>\n", Search("x")),
    ("</think>" + tagged(query="x", topk="9"), Invalid("search takes query (string)")),
    ("</think>" + tagged(), Invalid("search takes query (string)")),
    ("</think>" + tagged(query=""), Invalid("empty query")),
    (
        "</think>" + X.replace("search", "my-tools.browse"),
        Invalid("there is no tool 'my-tools.browse'"),
    ),
    ("</think>" + X.replace("<function=search>\n", ""), Invalid("the call names no tool")),
    ("</think>" + X.removesuffix("</tool_call>"), Invalid("the call is not closed")),
    ("</think>" + X.replace("</parameter>", ""), Invalid("the call is not closed")),
    (
        "</think>" + X.replace("</function>", "</function><function=search>"),
        Invalid("more than one call"),
    ),
    ("</think>" + X * 2, Invalid("more than one call")),
    ("</think>" + X + " and so", Invalid("text after the call")),
    ("I look. " + tagged(query="x"), Invalid("the call is inside a thought")),
    ("Orsa", Invalid("the message has no end")),
    ("no <tool_call> yet </think> Orsa", Answer("Orsa")),
]
THOUGHT = "<|channel|>analysis<|message|>to=functions.search?<|end|><|start|>assistant"
HARMONY_CALLS = [  # as gpt-oss samples: a call's header in another order than in the template
    (
        THOUGHT + '<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": "x"}',
        Search("x"),
    ),
    (' to=functions.search<|channel|>commentary json<|message|>{"query": "x"}', Search("x")),
    (THOUGHT + "<|channel|>final<|message|>Orsa", Answer("Orsa")),
    ("<|channel|>final<|message|>to=functions.search", Answer("to=functions.search")),
    ("<|channel|>final<|message|> ", Invalid("empty answer")),
    ("<|channel|>analysis<|message|>Orsa", Invalid("neither a call nor an answer")),
    (THOUGHT + " to=functions.search<|message|>{query}", Invalid("the call is not JSON")),
    (THOUGHT + " to=functions.browse<|message|>{}", Invalid("there is no tool 'browse'")),
]
QUOTED_CALLS = [  # Gemma 4's notation
    ('<|tool_call>call:search{query:<|"|>a, {b: "c"}<|"|>}<tool_call|>', Search('a, {b: "c"}')),
    ('<|tool_call>call:search{query:<|"|>x<|"|>}<tool_call|> and so', Invalid("text after the call")),
    ("<|tool_call>call:search{query:5}<tool_call|>", Invalid("search takes query (string)")),
    ("<|tool_call>call:search{query:x}<tool_call|>", Invalid("the arguments of the call cannot be read")),
    ('<|tool_call>call:search{query:<|"|>x}<tool_call|>', Invalid("the call is not closed")),
    ('<|tool_call>call:search{query:<|"|>x<|"|>}', Invalid("the call is not closed")),
    ("<|tool_call>search{}<tool_call|>", Invalid("the call names no tool")),
    ("<|tool_call>" + '<|"|>' * 9_999 + "<tool_call|>", Invalid("the call names no tool")),
    ("<|tool_call>call:search{" + '<|"|>' * 9_999, Invalid("the call is not closed")),
    ("<|channel>thought\nhm<channel|>Orsa", Answer("Orsa")),
]
CASES = {
    "hermes": HERMES_CALLS,
    "llama": LLAMA_CALLS,
    "xml": XML_CALLS,
    "harmony": HARMONY_CALLS,
    "quoted": QUOTED_CALLS,
}
CALLS = [(template, *case) for template, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("template", "text", "action"), CALLS, ids=[str(i) for i in range(len(CALLS))])
def test_what_a_message_does(template: str, text: str, action: Any, speaker: Speaker) -> None:
    found, span = BOTH.parse(text, speaker(template), finished=True)
    assert found == action
    assert (span is None) == isinstance(action, Invalid)
    if span is not None:
        inside = text[slice(*span)]
        assert inside == inside.strip() and (
            action.text == inside if isinstance(action, Answer) else "search" in inside or "read" in inside
        )


# ---- writing


def hits(*texts: str) -> list[Hit]:
    return [Hit(Document(f"d{i}", f"Orsa\n{text}"), 0.0) for i, text in enumerate(texts)]


@pytest.mark.parametrize("name", ["hermes", "llama"])
def test_a_result_that_is_too_long_keeps_its_frame_and_the_limit(name: str, speaker: Speaker) -> None:
    tokenizer = speaker(name)
    whole = BOTH.observe(hits("lake " * 60, "town"), tokenizer)
    for limit in range(60, len(whole.token_ids)):
        protocol = replace(BOTH, max_observation_tokens=limit)
        cut = protocol.observe(hits("lake " * 60, "town"), tokenizer)
        assert limit - 6 <= len(cut.token_ids) <= limit and cut.truncated
        assert "town" in cut.text and "Doc d0(Title: Orsa) lake" in cut.text
        frame = protocol.format(tokenizer)
        assert decode(tokenizer, cut.token_ids).startswith(frame.before)
        assert decode(tokenizer, cut.token_ids).endswith(frame.after)
    assert not whole.truncated and len(whole.token_ids) > 90
    with pytest.raises(
        ConfigError, match=r"protocol\.max_observation_tokens = 5, but the chat template alone takes \d+"
    ):
        replace(BOTH, max_observation_tokens=5).observe(hits("x"), tokenizer)


def test_a_demonstration_is_written_with_tags_and_learnt_as_calls(speaker: Speaker) -> None:
    tokenizer = speaker("hermes")
    turn = BOTH.encode_turn('<think> hm </think>\n<search> a "lake" </search>\n', tokenizer)
    written = (
        '<think> hm </think>\n<tool_call>\n{"name": "search", "arguments": {"query": "a \\"lake\\""}}\n</tool_call>'
    )
    assert decode(tokenizer, turn) == written + "<|im_end|>"
    assert BOTH.parse(written, tokenizer, finished=True)[0] == Search('a "lake"')
    assert decode(tokenizer, BOTH.encode_turn("<answer> Orsa </answer>", tokenizer)) == "Orsa<|im_end|>"
    seen = BOTH.observe(hits("x"), tokenizer, turn=turn)
    tagged = f"\n\n<information>{seen.text}</information>\n\n"
    assert tuple(BOTH.encode_observation(tagged, tokenizer, turn=turn)) == seen.token_ids
    note = BOTH.encode_observation(f"\n\n{BOTH.invalid_note}\n\n", tokenizer)
    assert tuple(note) == BOTH.observe(None, tokenizer).token_ids
    assert BOTH.encode_observation("", tokenizer) == []


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("tool", ["my-tools.find", "find_2", "web.search-v2"])
def test_names_may_have_dashes_and_dots(name: str, tool: str, speaker: Speaker) -> None:
    tokenizer = speaker(name)
    form = read_format(tokenizer, ChatTemplate(variables=VARIABLES.get(name, {})))
    schema = {"function": {"name": tool, "parameters": {"properties": {"query": {"type": "string"}}}}}
    written = form.write(tool, {"query": "the lake"})
    found = form.syntax.find(written, {tool: Tool(tool, schema, Call)})
    assert isinstance(found, Found) and (found.name, found.arguments) == (tool, {"query": "the lake"})


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("said", ["", "<think> hm </think>\n", "I look. "])
def test_a_demonstration_is_read_as_what_it_demonstrates(name: str, said: str, speaker: Speaker) -> None:
    tokenizer = speaker(name)
    protocol = replace(BOTH, template=ChatTemplate(variables=VARIABLES.get(name, {})))
    if said and not protocol.format(tokenizer).syntax.opening:
        pytest.skip("a call without an opening begins its message")
    for turn, action in (
        ('<search> a "lake" & 1 </search>', Search('a "lake" & 1')),
        ("<answer> Orsa, 2 </answer>", Answer("Orsa, 2")),
    ):
        ids = protocol.encode_turn(said + turn, tokenizer)
        read, span = protocol.parse(decode(tokenizer, ids[:-1]), tokenizer, finished=True)
        told = action if isinstance(action, Search) or said != "I look. " else Answer(f"I look.\n{action.text}")
        assert read in (action, told) and span is not None
        assert ids[-1] == protocol.turn_ends(tokenizer)[isinstance(action, Answer)]


def test_a_thought_of_a_demonstration_is_a_message_of_its_own_where_the_template_has_it_so(speaker: Speaker) -> None:
    tokenizer = speaker("harmony")
    written = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    for turn, said, action in (
        (
            "<search> lake </search>",
            ' to=functions.search<|channel|>commentary json<|message|>{"query": "lake"}',
            Search,
        ),
        ("<answer> Orsa </answer>", "<|channel|>final<|message|>Orsa", Answer),
    ):
        ids = BOTH.encode_turn(f"<think> hm </think>\n{turn}", tokenizer)
        assert decode(tokenizer, ids[:-1]) == written + said and ids == encode(tokenizer, decode(tokenizer, ids))
        assert isinstance(BOTH.parse(written + said, tokenizer, finished=True)[0], action)
        assert ids[-1] in BOTH.turn_ends(tokenizer)


# ---- a rollout


class Ended(ScriptedPolicy):
    """Ends each turn with the token of the template."""

    def answer(self, request: Any) -> Completion:
        text = self.script[request.id].pop(0)
        ids = (*encode(self.tokenizer, text), self.tokenizer.eos_token_id)[: request.max_new_tokens]
        done = len(ids) < request.max_new_tokens
        return Completion(
            id=request.id,
            token_ids=ids,
            logprobs=(-0.1,) * len(ids),
            stop_reason="eos" if done else "length",
            text=decode(self.tokenizer, ids[:-1] if done else ids),
        )


def test_a_rollout_searches_reads_and_answers(speaker: Speaker) -> None:
    tokenizer = speaker("hermes")
    protocol = replace(BOTH, max_turns=6, max_observation_tokens=200)
    turns = [
        call("read", '{"id": "d0"}'),
        call("search", '{"query": "x"}'),
        call("read", '{"id": "d1"}'),
        call("click", "{}"),
        "Orsa",
    ]
    policy = Ended(tokenizer, {"a": list(turns)})
    prompt = tuple(render_prompt("Who?", protocol, tokenizer))
    task = Task(id="a", example_id="q", prompt=prompt, seed=0)
    shelf = Shelf(lambda query: [hit.document for hit in hits("lake " * 300, "town")])
    (done,) = run_rollouts([task], policy=policy, retriever=shelf, protocol=protocol, tokenizer=tokenizer)
    assert (done.status, done.answer, done.searches) == (Status.OK, "Orsa", 1)
    assert [type(turn.action) for turn in done.turns] == [Read, Search, Read, Invalid, Answer]
    seen = [turn.observation_text for turn in done.turns]
    assert seen[0] == "Nothing was found."  # nothing has been found yet
    assert seen[1].startswith("Doc d0(Title: Orsa) lake") and done.turns[1].observation_truncated
    assert (seen[2], done.turns[2].hits) == ("Doc d1(Title: Orsa) town", ("d1",))
    assert seen[3] == protocol.invalid_note and not done.turns[3].hits and seen[4] == ""
    contexts = [tuple(request.token_ids) for request in policy.seen["a"]]
    for before, after, turn in zip(contexts, contexts[1:], done.turns, strict=False):
        assert after == before + (turn.tokens or ()) + turn.observation
    assert all(request.stop == () for request in policy.seen["a"])


# ---- what cannot work

NO_RESULTS = HERMES.replace("{{ m.content }}\n</tool_response>", "</tool_response>")
NO_JSON = HERMES.replace("{{ call.function.arguments | tojson }}", "{{ call.function.arguments.values() | join }}")
WITH_ID = HERMES.replace("<tool_response>\n", "<tool_response id={{ m.tool_call_id }}>\n")
BARE = HERMES.replace('<tool_call>\n{"name": "', "").replace('", "arguments": ', "").replace("}\n</tool_call>", "")
RENAMES = HERMES.replace("<|im_start|>{{ m.role }}", "<|im_start|>{{ m.role }} {{ loop.index }}")
FORGETS = HERMES.replace("{{ m.content }}\n</tool_response>", "{{ m.content if loop.last else '…' }}\n</tool_response>")
PLAIN_END = HERMES.replace("<|im_end|>", "END")


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (None, "there is no chat template"),
        (HERMES.replace("if tools", "if false"), "does not describe tools to the model"),
        (
            HERMES.replace("m.role == 'tool'", "m.role == 'tool' and raise_exception('no')"),
            "cannot render a conversation",
        ),
        (NO_RESULTS, "does not write each call and each result once"),
        (FORGETS, "does not write each call and each result once"),
        (NO_JSON, "does not write a call in JSON with a name and arguments, or with a tag for each"),
        (BARE, "does not write a call in JSON with a name and arguments, or with a tag for each"),
        (WITH_ID, "repeats in a result an id that its call does not have"),
        (RENAMES, "begins the model's earlier messages differently from its next one"),
        (PLAIN_END, "ends a message with 'END"),
    ],
    ids=["none", "no tools", "raises", "no results", "forgets", "not JSON", "bare", "id", "renames", "no token"],
)
def test_a_template_that_cannot_do_it_is_refused_in_one_sentence(
    template: str | None, why: str, speaker: Speaker
) -> None:
    tokenizer = speaker("hermes")
    tokenizer.chat_template = template
    with pytest.raises(ConfigError, match=r"protocol\.preset = 'tools'") as error:
        render_prompt("Who?", NATIVE, tokenizer)
    assert why in str(error.value) and "model.chat_template" in str(error.value)


def test_a_refusal_names_the_family_of_the_template(speaker: Speaker) -> None:
    tokenizer = speaker("hermes")
    tokenizer.chat_template = "{% for m in messages %}<start_of_turn>{{ m.content }}{% endfor %}"
    with pytest.raises(
        ConfigError, match=r"\(Gemma 3's\) does not describe tools to the model\. Gemma 4's template works"
    ):
        render_prompt("Who?", NATIVE, tokenizer)


def test_gemma_4_that_thinks_is_refused_by_its_name(speaker: Speaker) -> None:
    """Its template opens a thought after a result, and not at first."""
    tokenizer = speaker("quoted")
    tokenizer.chat_template += (
        "{% if add_generation_prompt and messages[-1].role == 'tool' %}<|channel>thought\n{% endif %}"
    )
    with pytest.raises(
        ConfigError, match=r"\(Gemma 4's\) begins a thought after .* It works without enable_thinking in"
    ):
        render_prompt("Who?", NATIVE, tokenizer)


def test_a_format_does_not_keep_its_tokenizer(speaker: Speaker) -> None:
    tokenizer = speaker("hermes")
    NATIVE.encode_turn("<search> x </search>", tokenizer)
    gone = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert gone() is None


def test_a_template_of_its_own_for_tools_is_found(speaker: Speaker) -> None:
    tokenizer = speaker("hermes")
    tokenizer.chat_template = {"default": "{{ messages[0].content }}", "tool_use": HERMES}
    assert NATIVE.format(tokenizer).syntax.opening == "<tool_call>"
    assert TOOLS["search"].description in decode(tokenizer, render_prompt("Who?", NATIVE, tokenizer))


def test_a_server_that_returns_text_alone_gets_the_same_context(speaker: Speaker) -> None:
    tokenizer, contexts = speaker("hermes"), []
    for with_ids in (True, False):
        state = RolloutState(render_prompt("Who?", BOTH, tokenizer), BOTH, tokenizer)
        text = call("search", '{"query": "x"}')
        ids = (*encode(tokenizer, text), tokenizer.eos_token_id)
        ended = Completion(
            id="a",
            token_ids=ids if with_ids else None,
            logprobs=(0.0,) * len(ids) if with_ids else None,
            stop_reason="eos",
            text=text,
        )
        assert state.take_turn(ended) == Search("x")
        state.take_hits(hits("town"))
        contexts.append(state.context)
    assert contexts[0] == contexts[1] and contexts[0].count(tokenizer.eos_token_id) == 4


def test_the_end_of_a_message_is_out_of_place_inside_a_call_alone(speaker: Speaker) -> None:
    tokenizer = speaker("hermes")
    ids, end = encode(tokenizer, f"I look. {call('search', 'x')}"), NATIVE.turn_ends(tokenizer)[0]
    turn = Turn(tokens=(*ids, end), logprobs=(-1.0,) * (len(ids) + 1), action=Invalid(""), text=decode(tokenizer, ids))
    rollout = Trajectory(example_id="q", prompt=(1,), turns=(turn,))
    (row,) = ControlTokens(NATIVE.control_tags(tokenizer), tokenizer, {end}).misplaced([rollout]).rows
    opened, closed = (decode(tokenizer, ids).index(tag) + len(tag) for tag in ("<tool_call>", "</tool_call>"))
    for place in range(len(ids) + 1):
        begin = len(decode(tokenizer, ids[:place]))
        assert (end in row[place]) is (opened <= begin < closed), decode(tokenizer, ids[:place])
