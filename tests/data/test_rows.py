"""One row in each form, and the ways in which a row can be wrong."""

from __future__ import annotations

import pytest

from holdfast.base.errors import DataError
from holdfast.base.jsonl import BadField
from holdfast.data.catalogue import FORMS
from holdfast.data.questions import Example
from holdfast.data.rows import example_of, light, row_of


def read(row, **place):
    return example_of(row, **({"source": "file", "split": "test", "index": 9} | place))


@pytest.mark.parametrize("form", ["searchr1", "verl", "skyrl"])
def test_the_forms_of_others_mean_the_same(form, published):
    example = read(published(form, 3, "hotpotqa", "train"))
    assert (example.id, example.question) == ("hotpotqa/train/3", "hotpotqa 3?")
    assert example.golden_answers == ("G 3", "h")
    assert [message["role"] for message in example.metadata["prompt"]][-1] == "user"
    assert not {"reward_model", "reward_spec", "extra_info", "ability", "env_class"} & set(example.metadata)


def test_a_flashrag_row_is_placed_by_its_file(published):
    row = published("flashrag", 0)
    example = read(row, source="nq", split="dev", index=4)
    assert example.id == "nq/dev/4"
    assert example.metadata == {"id": "test_0", "metadata": row["metadata"]}


EXAMPLES = [
    Example(source="nq", split="test", index=0, question="Who?", golden_answers=("x", "")),
    Example(
        source="hotpotqa",
        split="train",
        index=7,
        question="Wer “war” es?",
        golden_answers=("é", "e\u0301"),
        metadata={
            "id": "q7",
            "metadata": {"type": "bridge", "n": None, "context": [["a", 1], []]},
            "prompt": [{"role": "user", "content": "Wer?\n"}],
            "level": 3,
            "fields": "mine",
            "extra_info": {"origin": "elsewhere"},
        },
    ),
    Example(
        source="a b", split="x", index=1, question="?", golden_answers=("x",), metadata={"metadata": "a note", "id": 5}
    ),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.id)
def test_a_row_of_any_form_comes_back_equal(example, form):
    back = read(row_of(example, form))
    if "prompt" not in example.metadata and form != "jsonl":
        (message,) = back.metadata.pop("prompt")
        assert example.question in message["content"]
    assert back == example


@pytest.mark.parametrize(("form", "tag"), [("searchr1", "<search>"), ("skyrl", "<search>"), ("verl", "<tool_call>")])
def test_a_prompt_is_kept_unless_it_is_to_be_worded_anew(form, tag, published):
    example = read(published("searchr1", 1))
    assert row_of(example, form)["prompt"] == published("searchr1", 1)["prompt"]
    (message,) = row_of(example, form, reword=True)["prompt"]
    assert tag in message["content"]
    assert "nq 1?" in message["content"]
    assert "prompt" not in row_of(example, "jsonl", reword=True)


def test_what_each_trainer_looks_for(published):
    example = read(published("searchr1", 2))
    assert row_of(example, "searchr1")["data_source"] == "nq"
    verl, skyrl = row_of(example, "verl"), row_of(example, "skyrl")
    assert verl["data_source"] == skyrl["data_source"] == "searchR1_nq"
    assert verl["agent_name"] == "tool_agent"
    assert verl["reward_model"] == skyrl["reward_spec"] == {"style": "rule", "ground_truth": {"target": ["G 2", "h"]}}
    assert skyrl["env_class"] == "search"
    assert "reward_model" not in skyrl
    arguments = verl["extra_info"]["tools_kwargs"]["search"]["create_kwargs"]
    assert arguments == {
        "question": "nq 2?",
        "ground_truth": {"target": ["G 2", "h"]},
        "data_source": "searchR1_nq",
    }


def test_an_agent_of_the_rows_own_is_kept():
    example = read({"question": "Who?", "golden_answers": ["x"], "agent_name": "holdfast_search"})
    assert row_of(example, "verl")["agent_name"] == "holdfast_search"
    assert read(row_of(example, "searchr1")).metadata["agent_name"] == "holdfast_search"


GOOD = {"question": "Who?", "golden_answers": ["x"]}


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ({"golden_answers": ["x"]}, "question", "missing; the row has 'golden_answers'"),
        ({**GOOD, "question": " "}, "question", "is empty"),
        ({**GOOD, "question": 3}, "question", "must be a string, is a number"),
        ({"question": "Who?"}, "golden_answers", "missing; the row has 'question'"),
        ({**GOOD, "golden_answers": []}, "golden_answers", "is an empty list"),
        ({**GOOD, "golden_answers": ["", " "]}, "golden_answers", "contains only '', ' '"),
        ({**GOOD, "golden_answers": ["x", 7]}, "golden_answers[1]", "must be a string, is a number"),
        ({**GOOD, "golden_answers": {"a": 1}}, "golden_answers", "must be a string or a list of strings, is an object"),
        ({**GOOD, "reward_model": {"ground_truth": {"target": ["y"]}}}, "reward_model.ground_truth.target", "differs"),
        ({"question": "Who?", "reward_model": {"ground_truth": {}}}, "reward_model.ground_truth.target", "missing"),
        ({"question": "Who?", "reward_spec": "x"}, "reward_spec", "must be an object, is a string"),
        ({**GOOD, "extra_info": []}, "extra_info", "must be an object, is a list"),
        ({**GOOD, "extra_info": {"index": -1}}, "extra_info.index", "must be a row number, is -1"),
        ({**GOOD, "index": "7"}, "index", "must be a row number, is '7'"),
        ({**GOOD, "data_source": ""}, "data_source", "is empty"),
        ({**GOOD, "prompt": "Who?"}, "prompt", "must be a list of messages, is a string"),
        ({**GOOD, "prompt": []}, "prompt", "must be a list of messages"),
        ({**GOOD, "prompt": [{"content": "x"}]}, "prompt[0].role", "missing"),
        ({**GOOD, "question": "\ud800"}, "question", "half of a surrogate pair"),
    ],
)
def test_a_wrong_row_is_named_by_its_field(row, field, reason):
    with pytest.raises(BadField) as caught:
        read(row)
    assert caught.value.field == field
    assert reason in caught.value.reason


def test_an_answer_that_scoring_erases_is_kept():
    # `The The` is a band. Training skips such a question, an evaluation must count it.
    assert read({"question": "Who?", "golden_answers": ["The The"]}).golden_answers == ("The The",)


def test_light_rows_keep_what_is_small(published):
    example = light(read(published("flashrag", 0)))
    assert example.metadata == {"id": "test_0", "metadata": {"type": "bridge"}}
    heavy = read({**GOOD, "metadata": {"context": []}})
    assert light(heavy).metadata == {}
    assert light(read(GOOD)) == read(GOOD)


def test_what_json_has_not_is_told_by_question_and_column():
    nan = float("nan")
    assert read({"question": "Who?", "golden_answers": ["x"], "score": nan}).metadata == {}  # pandas' null
    bad = Example(source="s", split="t", index=3, question="?", golden_answers=("x",), metadata={"when": b"\x00"})
    with pytest.raises(DataError, match=r"s/t/3: when cannot be written as JSON .* drop that column"):
        row_of(bad, "jsonl")
