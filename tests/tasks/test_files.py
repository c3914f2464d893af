"""Files of every form: out and in again, as others write them, damaged, and empty."""

from __future__ import annotations

import gzip

import pytest

from holdfast.base.errors import DataError
from holdfast.base.jsonl import BadField
from holdfast.tasks.catalogue import FORMS
from holdfast.tasks.files import check_files, iter_examples, place_of, read_examples, size_lines, write_examples
from holdfast.tasks.questions import Example
from holdfast.tasks.rows import example_of, light, row_of


def made(n: int = 5, source: str = "nq", split: str = "test") -> list[Example]:
    return [
        Example(
            source=source,
            split=split,
            index=i,
            question=f"Who is {i}?",
            golden_answers=("é" * i + "x", "b")[: 1 + i % 2],
            metadata={"prompt": [{"role": "user", "content": f"{i}"}], "metadata": {"n": [i]}, "id": f"own {i}"},
        )
        for i in range(n)
    ]


def ending(form: str) -> str:
    return "jsonl" if form == "jsonl" else "parquet"


@pytest.mark.parametrize(("first", "second"), list(zip(FORMS, [*FORMS[1:], FORMS[0]], strict=True)))
def test_a_chain_of_two_forms_loses_nothing(tmp_path, first, second):
    examples = made(1100)  # more than are converted at a time
    a, b = tmp_path / f"a.{ending(first)}", tmp_path / f"b.{ending(second)}"
    assert write_examples(a, examples, first) == 1100
    write_examples(b, iter_examples(a), second)
    assert read_examples(b) == tuple(examples)


def test_flashrag_files_are_placed_by_their_names(tmp_path, published, put):
    path = put(tmp_path / "nq" / "dev.jsonl", [published("flashrag", i) for i in range(2)])
    assert [e.id for e in read_examples(path)] == ["nq/dev/0", "nq/dev/1"]
    assert [e.id for e in read_examples(path, source="own", split="x")] == ["own/x/0", "own/x/1"]
    assert place_of("mine.jsonl") == ("mine", "test")
    zipped = tmp_path / "nq" / "train.jsonl.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert [e.id for e in read_examples(zipped)] == ["nq/train/0", "nq/train/1"]


@pytest.mark.parametrize("name", ["bad.jsonl", "bad.parquet"])
def test_the_first_bad_row_is_named_and_can_be_left_out(tmp_path, put, name):
    rows = [{"question": f"{i}?", "golden_answers": ["x"]} for i in range(4)]
    rows[2]["golden_answers"] = []
    path = put(tmp_path / name, rows)
    with pytest.raises(DataError, match=rf"{name}:3: golden_answers: is an empty list"):
        read_examples(path)
    bad = []
    assert [e.index for e in iter_examples(path, on_bad=bad.append)] == [0, 1, 3]  # ids do not shift
    assert [(b.line, b.field) for b in bad] == [(3, "golden_answers")]


def test_parquet_text_that_is_not_utf8_is_a_sentence(tmp_path):
    import pyarrow
    from pyarrow import parquet

    questions = pyarrow.array([b"a?", b"caf\xe9?", b"c?"]).cast(pyarrow.binary()).view(pyarrow.string())
    golds = pyarrow.array([["x"]] * 3)
    parquet.write_table(pyarrow.table({"question": questions, "golden_answers": golds}), tmp_path / "x.parquet")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and nothing else")
    for name, message in (("x", "as parquet: 'utf-8' codec"), ("cut", "as parquet"), ("no", "does not exist")):
        with pytest.raises(DataError, match=rf"{name}\.parquet .*{message}"):
            read_examples(tmp_path / f"{name}.parquet")


@pytest.mark.parametrize("form", FORMS)
def test_an_error_while_writing_leaves_the_old_file(tmp_path, form):
    path = tmp_path / f"x.{ending(form)}"
    write_examples(path, made(3), form)
    before = path.read_bytes()

    def failing():
        yield from made(2000)
        raise DataError("later")

    with pytest.raises(DataError, match="later"):
        write_examples(path, failing(), form)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_form_and_ending_must_fit(tmp_path):
    for name, form in (("x.jsonl", "verl"), ("x.parquet", "jsonl"), ("x.csv", "jsonl"), ("x.jsonl.gz", "jsonl")):
        with pytest.raises(DataError, match=rf"{name}: "):
            write_examples(tmp_path / name, made(1), form)
    assert list(tmp_path.iterdir()) == []


def test_huggingface_datasets_reads_what_we_write(tmp_path):
    import datasets

    for form in ("verl", "skyrl"):
        write_examples(tmp_path / f"{form}.parquet", made(4), form)
        table = datasets.Dataset.from_parquet(str(tmp_path / f"{form}.parquet"), cache_dir=str(tmp_path / "cache"))
        assert table[3]["prompt"] == [{"role": "user", "content": "3"}]
        truth = table[3]["reward_spec" if form == "skyrl" else "reward_model"]["ground_truth"]
        assert truth == {"target": ["éééx", "b"]}


# ---- one row in each form


def read_row(row, **place):
    return example_of(row, **({"source": "file", "split": "test", "index": 9} | place))


@pytest.mark.parametrize("form", ["searchr1", "verl", "skyrl"])
def test_the_forms_of_others_mean_the_same(form, published):
    example = read_row(published(form, 3, "hotpotqa", "train"))
    assert (example.id, example.question) == ("hotpotqa/train/3", "hotpotqa 3?")
    assert example.golden_answers == ("G 3", "h")
    assert [message["role"] for message in example.metadata["prompt"]][-1] == "user"
    assert not {"reward_model", "reward_spec", "extra_info", "ability", "env_class"} & set(example.metadata)


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
    back = read_row(row_of(example, form))
    if "prompt" not in example.metadata and form != "jsonl":
        (message,) = back.metadata.pop("prompt")
        assert example.question in message["content"]
    assert back == example


@pytest.mark.parametrize(("form", "tag"), [("searchr1", "<search>"), ("skyrl", "<search>"), ("verl", "<tool_call>")])
def test_a_prompt_is_kept_unless_it_is_to_be_worded_anew(form, tag, published):
    example = read_row(published("searchr1", 1))
    assert row_of(example, form)["prompt"] == published("searchr1", 1)["prompt"]
    (message,) = row_of(example, form, reword=True)["prompt"]
    assert tag in message["content"]
    assert "nq 1?" in message["content"]
    assert "prompt" not in row_of(example, "jsonl", reword=True)


def test_what_each_trainer_looks_for(published):
    example = read_row(published("searchr1", 2))
    assert row_of(example, "searchr1")["data_source"] == "nq"
    verl, skyrl = row_of(example, "verl"), row_of(example, "skyrl")
    assert verl["data_source"] == skyrl["data_source"] == "searchR1_nq"
    assert verl["agent_name"] == "tool_agent"
    assert verl["reward_model"] == skyrl["reward_spec"] == {"style": "rule", "ground_truth": {"target": ["G 2", "h"]}}
    assert skyrl["env_class"] == "search"
    assert "reward_model" not in skyrl
    arguments = verl["extra_info"]["tools_kwargs"]["search"]["create_kwargs"]
    assert arguments == {"question": "nq 2?", "ground_truth": {"target": ["G 2", "h"]}, "data_source": "searchR1_nq"}


def test_an_agent_of_the_rows_own_is_kept():
    example = read_row({"question": "Who?", "golden_answers": ["x"], "agent_name": "holdfast_search"})
    assert row_of(example, "verl")["agent_name"] == "holdfast_search"
    assert read_row(row_of(example, "searchr1")).metadata["agent_name"] == "holdfast_search"


GOOD = {"question": "Who?", "golden_answers": ["x"]}


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ({"golden_answers": ["x"]}, "question", "missing; the row has 'golden_answers'"),
        ({**GOOD, "question": " "}, "question", "is empty"),
        ({**GOOD, "golden_answers": []}, "golden_answers", "is an empty list"),
        ({**GOOD, "golden_answers": ["", " "]}, "golden_answers", "contains only '', ' '"),
        ({**GOOD, "golden_answers": "['x' 'y']"}, "golden_answers", "looks like a list"),
        ({**GOOD, "question": "#REF! "}, "question", "is '#REF!', an error of the spreadsheet"),
        ({**GOOD, "golden_answers": " #REF!"}, "golden_answers", "is '#REF!', an error of the spreadsheet"),
        ({"query": "Who?", "gold": "x"}, "golden_answers", "'answer'"),
        ({**GOOD, "golden_answers": ["x", 7]}, "golden_answers[1]", "must be a string, is a number"),
        ({**GOOD, "reward_model": {"ground_truth": {"target": ["y"]}}}, "reward_model.ground_truth.target", "differs"),
        ({"question": "Who?", "reward_model": {"ground_truth": {}}}, "reward_model.ground_truth.target", "missing"),
        ({**GOOD, "extra_info": []}, "extra_info", "must be an object, is a list"),
        ({**GOOD, "extra_info": {"index": -1}}, "extra_info.index", "must be a row number, is -1"),
        ({**GOOD, "prompt": "Who?"}, "prompt", "must be a list of messages, is a string"),
        ({**GOOD, "prompt": [{"content": "x"}]}, "prompt[0].role", "missing"),
        ({**GOOD, "question": "\ud800"}, "question", "half of a surrogate pair"),
    ],
)
def test_a_wrong_row_is_named_by_its_field(row, field, reason):
    with pytest.raises(BadField) as caught:
        read_row(row)
    assert caught.value.field == field
    assert reason in caught.value.reason


def test_a_table_without_names_of_columns_says_where_they_go(tmp_path):
    """As a colleague sends it: the first question would be read as the name of a column."""
    (tmp_path / "a.csv").write_text("Who opened it?,Oda Quist\nWhen?,1916\n")
    with pytest.raises(DataError, match="Name the columns question and answer; in a CSV file"):
        read_examples(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("question,result\nWho opened it?,Oda Quist\n")
    with pytest.raises(DataError, match=r"the row has 'question', 'result'$"):
        read_examples(tmp_path / "b.csv")


def test_light_rows_keep_what_is_small(published):
    example = light(read_row(published("flashrag", 0)))
    assert example.metadata == {"id": "test_0", "metadata": {"type": "bridge"}}
    heavy = read_row({**GOOD, "metadata": {"context": []}})
    assert light(heavy).metadata == {}
    assert light(read_row(GOOD)) == read_row(GOOD)


def test_what_json_has_not_is_told_by_question_and_column():
    nan = float("nan")
    assert read_row({"question": "Who?", "golden_answers": ["x"], "score": nan}).metadata == {}  # pandas' null
    bad = Example(source="s", split="t", index=3, question="?", golden_answers=("x",), metadata={"when": b"\x00"})
    with pytest.raises(DataError, match=r"s/t/3: when cannot be written as JSON .* drop that column"):
        row_of(bad, "jsonl")


# ---- what `holdfast data validate` says about files


def test_sound_files_have_sizes_and_no_problems(tmp_path, published, put):
    a = put(tmp_path / "test.parquet", [published("searchr1", i, name) for name in ("nq", "own") for i in range(3)])
    b = put(tmp_path / "bamboogle" / "test.jsonl", [published("flashrag", i) for i in range(125)])
    first, second = check_files([a, b])
    assert (first.problems, first.bad, first.notes) == ([], 0, [])
    assert size_lines(first) == [("nq/test", 3, "published: 3,610"), ("own/test", 3, "")]
    assert size_lines(second) == [("bamboogle/test", 125, "as published")]


def test_ids_are_compared_within_and_between_files(tmp_path, published, put):
    a = put(tmp_path / "a.parquet", [published("verl", i) for i in (0, 1, 0)])
    changed = published("searchr1", 1) | {"question": "Another?"}
    b = put(tmp_path / "b.jsonl", [changed, published("searchr1", 5)])
    first, second = check_files([a, b])
    assert first.problems == [f"question 3: nq/test/0 is also question 1 of {a}"]
    expected = f"question 1: nq/test/1 is also question 2 of {a}, with another question or other golden answers"
    assert second.problems == [expected]


def test_files_that_cannot_be_read_are_problems_and_the_others_are_checked(tmp_path, published, put):
    good = put(tmp_path / "good.jsonl", [published("searchr1", 0)])
    mostly_bad = put(tmp_path / "bad.jsonl", [{"question": "a?"}] * 3)
    gone, bad, fine = check_files([tmp_path / "gone.parquet", mostly_bad, good])
    assert "does not exist" in gone.problems[0]
    assert bad.problems[-1].endswith("none of 3 rows can be used as a question. The first that cannot:")
    assert fine.bad == 0


def test_a_question_that_no_answer_can_be_right_to_is_a_note(tmp_path, put):
    rows = [
        {"question": "Which band?", "golden_answers": ["The The"]},
        {"question": "b?", "golden_answers": ["A", "x"]},
    ]
    (report,) = check_files([put(tmp_path / "x.jsonl", rows)])
    assert report.bad == 0
    (note,) = report.notes
    assert note.startswith("1 question has no golden answer that scoring can match: x/test/0 ('The The')")


@pytest.mark.parametrize(
    ("golds", "noted"),
    [
        (["x|y", "z; w|v", "u"], 1),
        (["x / y", "z / w", "u"], 1),
        (["x/y", "1/2", "u"], 0),
        (["x; y", ["z; w", "z"], "u"], 0),
    ],
)
def test_several_answers_in_one_text_are_a_note(tmp_path, put, golds, noted):
    rows = [{"question": f"{gold}?", "golden_answers": gold} for gold in golds]
    (report,) = check_files([put(tmp_path / "x.jsonl", rows)])
    assert (report.bad, len(report.notes)) == (0, noted)
