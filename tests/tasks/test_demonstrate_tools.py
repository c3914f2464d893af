"""Demonstrations that call tools: rows of files, scripts of the user's, and rollouts of another model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.calling import begin
from holdfast.agent.protocol import CLEAN, CallTurn, SearchProtocol, render_prompt
from holdfast.agent.tools import NATIVE, ToolProtocol
from holdfast.agent.trajectory import Answer, Call, Search, ToolResult
from holdfast.base.errors import ConfigError, DataError
from holdfast.base.jsonl import BadField, Skipped
from holdfast.model.text.chat_template import ChatTemplate
from holdfast.model.text.tokens import decode
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Document
from holdfast.tasks.demonstrate_tools import (
    EXTRA,
    FAILED,
    LONG,
    UNASKED,
    WRONG,
    demonstrate_by,
    demonstrations_in,
    script_named,
)
from holdfast.tasks.demonstrations import read_demonstrations, text_of, write_demonstrations
from holdfast.tasks.questions import Example
from holdfast.train.warm_start import encode_demonstration

from ..tool_templates import OURS, VARIABLES

LAMP, BELL = '"Lamp"\nA lamp costs 7 crowns.', '"Bell"\nA bell costs 12 crowns.'
SHOP = BM25Retriever.build([Document("lamp", LAMP), Document("bell", BELL)])


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToolProtocol:
    """`search` and `read`, and two functions of the user's."""
    source = '''
def times(left: int, right: int) -> int:
    """Multiply two numbers.

    Args:
        left: The first.
        right: The second.
    """
    if right > 100:
        raise ValueError("too large")
    return left * right


def shout(text: str) -> str:
    """Say it aloud.

    Args:
        text: What to say.
    """
    return text.upper()
'''
    (tmp_path / "shop_functions.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    return replace(NATIVE, tools=("search", "read", "shop_functions:times", "shop_functions:shout"), topk=1)


CALLS = [
    {"thought": "I look it up.", "tool": "search", "arguments": {"query": "lamp"}, "observation": [LAMP]},
    {"tool": "times", "arguments": {"left": 3, "right": 7}, "observation": 21},
    {"thought": "That is it.", "answer": "21"},
]
ROW = {"question": "What do 3 lamps cost?", "turns": CALLS}


def test_a_row_has_calls_of_ones_own_tools_beside_searches(tools: ToolProtocol) -> None:
    question, turns = text_of(ROW, tools)
    assert question == ROW["question"]
    (search, (lamp,)), (call, result), (answer, nothing) = turns
    assert search == "<think> I look it up. </think>\n<search> lamp </search>"
    assert lamp.document.contents == LAMP
    assert call == CallTurn("", "times", {"left": 3, "right": 7})
    assert result == ToolResult("21", False, 0.0)
    assert (answer, nothing) == ("<think> That is it. </think>\n<answer> 21 </answer>", "")


def test_rows_that_are_written_are_those_that_were_read(tools: ToolProtocol, tmp_path: Path) -> None:
    read = {"tool": "read", "arguments": {"id": "lamp"}, "observation": [{"id": "lamp", "contents": LAMP}]}
    found = {"tool": "search", "arguments": {"query": "lamp"}, "observation": [{"id": "lamp", "contents": LAMP}]}
    rows = [text_of(ROW, tools), text_of(ROW | {"turns": [found, read, *CALLS[1:]]}, tools)]
    write_demonstrations(tmp_path / "rows.jsonl", rows)
    assert read_demonstrations(tmp_path / "rows.jsonl", tools) == rows


def test_searches_and_answers_need_no_tags_in_a_protocol_of_tags() -> None:
    _, turns = text_of({"question": "q", "turns": [CALLS[0], CALLS[2]]}, CLEAN)
    tagged = {"text": "<think> I look it up. </think>\n<search> lamp </search>", "observation": [LAMP]}
    answer = {"text": "<think> That is it. </think>\n<answer> 21 </answer>"}
    assert turns == text_of({"question": "q", "turns": [tagged, answer]}, CLEAN)[1]


@pytest.mark.parametrize(
    ("turn", "field", "reason"),
    [
        ({"tool": "divide", "arguments": {}}, "turns[0].tool", "is 'divide', but the recipe has search, read, times"),
        ({"tool": "times", "arguments": {"left": 3}}, "turns[0].arguments", "times takes left (integer), right"),
        ({"tool": "times", "arguments": '{"left": 3}'}, "turns[0].arguments", "times takes left (integer)"),
        ({"tool": "times"}, "turns[0].arguments", "times takes left (integer)"),
        ({"tool": "times", "arguments": {"left": 3, "right": 7}}, "turns[0].observation", "missing"),
        ({"tool": "search", "arguments": {"query": " "}}, "turns[0].arguments", "empty query"),
        ({"tool": "search", "arguments": {"query": "a </search> b"}}, "turns[0].arguments", "cannot be written"),
        ({"answer": "a </answer> b"}, "turns[0].answer", "cannot be written"),
        ({"answer": " "}, "turns[0].answer", "is empty"),
        ({"answer": "21", "observation": "so"}, "turns[0].answer", "an observation follows"),
        ({"answer": "21", "thought": 7}, "turns[0].thought", "must be a string"),
        ({"answer": "21", "tool": "times"}, "turns[0]", "one of text, tool and answer; it has tool and answer"),
        ({"thought": "hm"}, "turns[0]", "one of text, tool and answer; it has none"),
    ],
)
def test_a_row_that_cannot_be_used_says_which_field_and_why(
    tools: ToolProtocol, turn: Any, field: str, reason: str
) -> None:
    with pytest.raises(BadField) as bad:
        text_of({"question": "q", "turns": [turn, {"answer": "21"}]}, tools)
    assert bad.value.field == field and reason in bad.value.reason


def test_a_call_needs_a_protocol_with_calls() -> None:
    with pytest.raises(BadField, match="'times', but the recipe has search"):
        text_of(ROW, CLEAN)


@pytest.mark.parametrize("name", OURS)
def test_a_demonstration_has_the_ids_of_a_rollout(name: str, tools: ToolProtocol, speaker: Any) -> None:
    """Each turn is parsed as what it demonstrates, and each result is what a rollout appends."""
    tokenizer = speaker(name)
    protocol = replace(tools, template=ChatTemplate(variables=VARIABLES.get(name, {})))
    found = {**CALLS[0], "thought": "", "observation": [{"id": "lamp", "contents": LAMP}]}
    turns = text_of(ROW | {"turns": [found, CALLS[1], {"answer": "21"}]}, protocol)[1]
    actions = (Search("lamp"), Call("times", '{"left": 3, "right": 7}'), Answer("21"))
    ids = prompt = render_prompt(ROW["question"], protocol, tokenizer)
    mask = [False] * len(prompt)
    for (said, _), action in zip(turns, actions, strict=True):
        turn = protocol.encode_turn(said, tokenizer)
        assert protocol.parse(decode(tokenizer, turn[:-1]), tokenizer, finished=True)[0] == action
        seen: tuple[int, ...] = ()
        if isinstance(action, Search):
            seen = protocol.observe(SHOP.search([action.query], 1)[0], tokenizer, turn=turn).token_ids
        elif isinstance(action, Call):
            result = begin(protocol.by_name[action.tool], action.arguments, 10.0).result()
            seen = protocol.observe_result(result, tokenizer, turn=turn).token_ids
        ids, mask = [*ids, *turn, *seen], [*mask, *[True] * len(turn), *[False] * len(seen)]
    learned = encode_demonstration(prompt, turns, protocol, tokenizer)
    assert list(learned.token_ids) == ids and list(learned.loss_mask) == mask


# ---- scripts


def example(question: str, *golds: str) -> Example:
    return Example(source="own", split="train", index=0, question=question, golden_answers=golds)


LAMPS, BELLS = example("What do 3 lamps cost?", "21"), example("What do 200 bells cost?", "2400")


def prices(question: str) -> Iterator[Any]:
    count = int(question.split()[2])
    (passage,) = yield {"tool": "search", "arguments": {"query": question}, "thought": "I look it up."}
    price = int(passage.split()[-2])
    total = yield {"tool": "times", "arguments": {"left": price, "right": count}}
    return {"answer": total, "thought": "That is it."}


def by(script: Any, protocol: SearchProtocol, *examples: Example) -> Any:
    return demonstrate_by(script, examples or [LAMPS], SHOP, protocol)


def test_a_script_is_answered_by_the_real_tools(tools: ToolProtocol) -> None:
    ((question, turns),) = by(prices, tools).rows
    assert question == LAMPS.question
    (search, hits), (call, result), (answer, _) = turns
    assert search == "<think> I look it up. </think>\n<search> What do 3 lamps cost? </search>"
    assert [hit.document.contents for hit in hits] == [LAMP]
    assert call == CallTurn("", "times", {"left": 7, "right": 3})
    assert (result.text, result.failed) == ("21", False)
    assert answer == "<think> That is it. </think>\n<answer> 21 </answer>"


def test_what_a_script_does_not_solve_is_left_out_and_said(tools: ToolProtocol) -> None:
    wrong = example("What do 4 lamps cost?", "29")
    made = by(prices, tools, LAMPS, BELLS, wrong)
    assert [question for question, _ in made.rows] == [LAMPS.question]
    assert made.left_out == {FAILED: [BELLS.question], WRONG: [wrong.question]}
    assert by(prices, replace(tools, max_turns=2)).left_out == {LONG: [LAMPS.question]}
    assert len(by(prices, replace(tools, max_turns=3)).rows) == 1
    with pytest.raises(DataError, match="Print what the script yields"):
        by(prices, tools, wrong).some()


def test_a_passage_that_was_found_can_be_read(tools: ToolProtocol) -> None:
    def reader(question: str) -> Iterator[Any]:
        yield {"tool": "search", "arguments": {"query": "lamp"}}
        (whole,) = yield {"tool": "read", "arguments": {"id": "lamp"}}
        (*none,) = yield {"tool": "read", "arguments": {"id": "bell"}}
        assert none == []
        return "21" if whole == LAMP else "?"

    assert len(by(reader, tools).rows) == 1


def fails(question: str) -> Iterator[Any]:
    yield {"tool": "search", "arguments": {"query": "lamp"}}
    raise KeyError("price")


def no_call(question: str) -> Iterator[Any]:
    yield "lamp"


def no_tool(question: str) -> Iterator[Any]:
    yield {"tool": "divide", "arguments": {}}


def no_generator(question: str) -> Any:
    return "21"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (fails, r"the script fails fails on 'What do 3 lamps cost\?' \(KeyError"),
        (no_call, "a step must be a dict with tool and arguments, is 'lamp'"),
        (no_tool, "a step.tool is 'divide', but the recipe has"),
        (no_generator, "has no attribute 'send'"),
    ],
)
def test_a_script_that_cannot_be_used_says_where(tools: ToolProtocol, script: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        by(script, tools)


def test_the_name_of_a_script_must_be_one_of_a_function(tools: ToolProtocol) -> None:
    Path("shop_script.py").write_text("one = 1\n")
    with pytest.raises(ConfigError, match="name a generator function"):
        script_named("shop_script:one")
    with pytest.raises(ConfigError, match="no two"):
        script_named("shop_script:two")


# ---- rollouts of another model


def message(role: str, content: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(name: str, arguments: Any) -> list[Any]:
    return [{"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}]


def solved(question: str = LAMPS.question, answer: str = "<think>so</think>\n21") -> dict[str, Any]:
    return {
        "messages": [
            message("system", "You are a clerk."),
            message("user", f"Use the tools.\nQuestion: {question}"),
            message("assistant", "I look it up.", tool_calls=call("search", '{"query": "lamp"}')),
            message("tool", [{"type": "text", "text": "Lamp: 7 crowns"}], tool_call_id="1"),
            message("assistant", None, tool_calls=call("times", {"left": 3, "right": 7}), reasoning_content="3 of 7"),
            message("tool", "21", tool_call_id="1"),
            message("assistant", answer),
        ]
    }


def taken(rows: list[Any], protocol: SearchProtocol, **settings: Any) -> tuple[Any, list[Skipped]]:
    path, skipped = Path("large.jsonl"), list[Skipped]()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return demonstrations_in(path, [LAMPS, BELLS], protocol, on_skip=skipped.append, **settings), skipped


def test_a_correct_rollout_of_another_model_is_a_demonstration(tools: ToolProtocol) -> None:
    made, skipped = taken([solved()], tools)
    ((question, turns),) = made.rows
    assert (question, skipped) == (LAMPS.question, [])
    assert turns == [
        ("<think> I look it up. </think>\n<search> lamp </search>", ToolResult("Lamp: 7 crowns", False, 0.0)),
        (CallTurn("3 of 7", "times", {"left": 3, "right": 7}), ToolResult("21", False, 0.0)),
        ("<think> so </think>\n<answer> 21 </answer>", ""),
    ]


def test_rollouts_are_kept_by_their_answer_and_so_many_of_each_question(tools: ToolProtocol) -> None:
    other = solved("What do 5 lamps cost?")
    rows = [solved(answer="22"), solved(), ROW, solved(), other]
    made, _ = taken(rows, tools, per_question=2)
    assert len(made.rows) == 2
    counts = {why: len(questions) for why, questions in made.left_out.items()}
    assert counts == {WRONG: 1, EXTRA: 1, UNASKED: 1}
    assert len(taken(rows, tools)[0].rows) == 1
    assert len(taken(rows, tools, per_question=9, most=2)[0].rows) == 2
    assert taken(rows, replace(tools, max_turns=2))[0].left_out[LONG]


def test_a_rollout_that_cannot_be_read_is_skipped_with_its_reason(tools: ToolProtocol) -> None:
    unknown, twice, open_end, no_json = solved(), solved(), solved(), solved()
    unknown["messages"][4]["tool_calls"] = call("divide", {})
    twice["messages"][4]["tool_calls"] *= 2
    del open_end["messages"][5]
    no_json["messages"][4]["tool_calls"] = call("times", "{left: 3}")
    made, skipped = taken([solved()] * 6 + [unknown, twice, open_end, no_json, {"messages": "so"}], tools)
    assert len(made.rows) == 1
    assert [skip.line for skip in skipped] == [7, 8, 9, 10, 11]
    for skip, reason in zip(
        skipped,
        ("is 'divide'", "needs one call", "needs one call", "not JSON", "must be a list of messages"),
        strict=True,
    ):
        assert reason in skip.reason
