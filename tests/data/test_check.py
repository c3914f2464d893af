"""What `holdfast data validate` says about files, one at a time and together."""

from __future__ import annotations

from holdfast.data.catalogue import SETS
from holdfast.data.check import SHOWN, check_files, size_lines


def test_sound_files_have_sizes_and_no_problems(tmp_path, published, put):
    a = put(tmp_path / "test.parquet", [published("searchr1", i, name) for name in ("nq", "own") for i in range(3)])
    b = put(tmp_path / "bamboogle" / "test.jsonl", [published("flashrag", i) for i in range(125)])
    first, second = check_files([a, b])
    assert (first.problems, first.bad, first.notes) == ([], 0, [])
    assert size_lines(first) == [("nq/test", 3, "published: 3,610"), ("own/test", 3, "")]
    assert size_lines(second) == [("bamboogle/test", 125, "as published")]


def test_a_size_is_known_by_role_and_by_published_split():
    assert SETS["hotpotqa"].size("test") == SETS["hotpotqa"].size("dev") == 7405
    assert SETS["nq"].size("dev") == 8757
    assert SETS["popqa"].size("train") is None


def test_every_bad_row_is_counted_and_the_first_are_named(tmp_path, put):
    rows = [{"question": f"{i}?", "golden_answers": [] if i % 2 else ["x"]} for i in range(60)]
    (report,) = check_files([put(tmp_path / "x.jsonl", rows)])
    assert report.problems[0] == "line 2: golden_answers: is an empty list"
    assert (len(report.problems), report.bad) == (SHOWN, 30)
    assert report.counts == {("x", "test"): 30}


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
    assert note.startswith("1 question(s) have no golden answer that scoring can match, such as x/test/0")
