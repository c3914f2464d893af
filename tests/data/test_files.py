"""Files of every form: out and in again, as others write them, damaged, and empty."""

from __future__ import annotations

import gzip
import json

import pytest

from holdfast.base.errors import DataError
from holdfast.data.catalogue import FORMS
from holdfast.data.files import iter_examples, place_of, read_examples, write_examples
from holdfast.data.questions import Example, read_questions


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


@pytest.mark.grid(3)
@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("second", FORMS)
def test_a_chain_of_two_forms_loses_nothing(tmp_path, first, second):
    examples = made(2500)  # more than are converted at a time
    a, b = tmp_path / f"a.{ending(first)}", tmp_path / f"b.{ending(second)}"
    assert write_examples(a, examples, first) == 2500
    write_examples(b, iter_examples(a), second)
    assert read_examples(b) == tuple(examples)


@pytest.mark.parametrize("form", ["searchr1", "verl", "skyrl"])
def test_parquet_as_others_write_it(tmp_path, form, published, put):
    path = put(tmp_path / "test.parquet", [published(form, i, "musique") for i in range(3)])
    examples = read_examples(path)
    assert [e.id for e in examples] == [f"musique/test/{i}" for i in range(3)]
    back = tmp_path / "back.jsonl"
    write_examples(back, examples, "jsonl")
    assert read_examples(back) == examples
    # and `holdfast train` reads that file
    assert [e.golden_answers for e in read_questions(back).examples] == [e.golden_answers for e in examples]


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


def test_a_file_that_is_mostly_bad_is_refused_at_the_end(tmp_path, put):
    rows = [{"question": f"{i}?", "golden_answers": golds} for i, golds in enumerate((None, None, ["x"], None))]
    for name in ("bad.jsonl", "bad.parquet"):
        path = put(tmp_path / name, rows)
        with pytest.raises(DataError, match="only 1 of 4 rows can be used"):
            list(iter_examples(path, on_bad=lambda bad: None))


def test_two_questions_with_one_id_are_refused(tmp_path, published, put):
    path = put(tmp_path / "x.parquet", [published("verl", i) for i in (0, 1, 0)])
    with pytest.raises(DataError, match="questions 1 and 3 are both nq/test/0"):
        read_examples(path)


def test_text_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "x.jsonl"
    good = json.dumps({"question": "a?", "golden_answers": ["x"]}).encode()
    path.write_bytes(good + b'\n{"question": "caf\xe9?", "golden_answers": ["x"]}\n' + good + b"\n")
    with pytest.raises(DataError, match=r"x\.jsonl:2: row: is not UTF-8 at byte 18"):
        read_examples(path)


def test_parquet_text_that_is_not_utf8_is_named(tmp_path):
    import pyarrow
    from pyarrow import parquet

    questions = pyarrow.array([b"a?", b"caf\xe9?", b"c?"]).cast(pyarrow.binary()).view(pyarrow.string())
    golds = pyarrow.array([["x"]] * 3)
    parquet.write_table(pyarrow.table({"question": questions, "golden_answers": golds}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet:2: question: is not UTF-8"):
        read_examples(tmp_path / "x.parquet")
    assert [e.question for e in iter_examples(tmp_path / "x.parquet", on_bad=lambda bad: None)] == ["a?", "c?"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("no.jsonl", None, "does not exist"),
        ("no.parquet", None, "does not exist"),
        ("empty.jsonl", b"", "is empty"),
        ("cut.parquet", b"PAR1 and nothing else", "cannot be read as parquet"),
        ("cut.jsonl", b'{"question": "a?", "golden_answers": ["x"]}\n{"quest', "the file was cut off here"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_examples(tmp_path / name)


def test_an_empty_parquet_file(tmp_path):
    write_examples(tmp_path / "x.parquet", [], "searchr1")
    with pytest.raises(DataError, match="is empty"):
        read_examples(tmp_path / "x.parquet")


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

    for form in ("searchr1", "verl", "skyrl"):
        write_examples(tmp_path / f"{form}.parquet", made(4), form)
        table = datasets.Dataset.from_parquet(str(tmp_path / f"{form}.parquet"), cache_dir=str(tmp_path / "cache"))
        assert table[3]["prompt"] == [{"role": "user", "content": "3"}]
        truth = table[3]["reward_spec" if form == "skyrl" else "reward_model"]["ground_truth"]
        assert truth == {"target": ["éééx", "b"]}
