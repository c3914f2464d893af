"""Questions from files, and the order in which the sampler deals them."""

import json

import pytest

from holdfast.base.errors import CheckpointError
from holdfast.base.jsonl import Skipped
from holdfast.tasks.files import iter_examples, read_questions
from holdfast.tasks.questions import Example, QuestionOrder, hold_out


def put(tmp_path, *rows, name="nq.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


GOOD = {"question": " Who? ", "golden_answers": ["Mira", "M."], "id": "q1", "metadata": {"hops": 2}}


def test_a_row_becomes_an_example(tmp_path):
    kept = [{"question": "Which blood group?", "golden_answers": golds} for golds in (["A", "", "type A"], "AB")]
    examples = read_questions(put(tmp_path, *kept), on_skip=pytest.fail)
    assert [e.golden_answers for e in examples] == [("A", "", "type A"), ("AB",)]
    (example,) = read_questions(put(tmp_path, GOOD), split="dev")
    assert example == Example(
        source="nq",
        split="dev",
        index=0,
        question="Who?",
        golden_answers=("Mira", "M."),
        metadata={"id": "q1", "metadata": {"hops": 2}},
    )
    assert example.id == "nq/dev/0"
    assert read_questions(put(tmp_path, GOOD), source="own")[0].id == "own/train/0"


# ---- as sets publish their rows, written for this test

PUBLISHED = {
    "nq": ({"question": "Who?", "answer": ["Mira", "M."]}, "answer"),
    "triviaqa": (
        {"Question": "Who?", "QuestionId": "q", "Answer": {"Value": "Mira", "Aliases": ["Mira", "M."], "Type": "x"}},
        "Answer.Value + Answer.Aliases",
    ),
    "triviaqa on the hub": (
        {"question": "Who?", "answer": {"aliases": ["M."], "value": "Mira", "normalized_aliases": ["m"]}},
        "answer.value + answer.aliases",
    ),
    "popqa": ({"question": "Who?", "obj": "Mira", "possible_answers": '["Mira", "M."]'}, "possible_answers"),
    "hotpotqa": ({"_id": "5a", "question": "Who?", "answer": "Mira", "context": [["T", ["x"]]]}, "answer"),
    "musique": (
        {"id": "2hop", "question": "Who?", "answer": "Mira", "answer_aliases": ["M."], "answerable": True},
        "answer + answer_aliases",
    ),
    "bamboogle": ({"Question": "Who?", "Answer": "Mira"}, "Answer"),
    "squad": ({"question": "Who?", "answers": {"text": ["Mira", "M."], "answer_start": [1, 2]}}, "answers.text"),
    "search-r1": (
        {"question": "Who?", "answer": "a note", "reward_model": {"ground_truth": {"target": ["Mira", "M."]}}},
        "reward_model.ground_truth.target",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_rows_as_published(name, ending, tmp_path):
    row, place = PUBLISHED[name]
    path = tmp_path / f"q.{ending}"
    wrapped = {"Version": 1.0, "Data": [row, row]} if "trivia" in name else [row, row]
    path.write_text("\n".join(map(json.dumps, [row, row])) if ending == "jsonl" else json.dumps(wrapped, indent=2))
    taken = []
    for examples in (read_questions(path), tuple(iter_examples(path, on_taken=taken.append))):
        assert [e.question for e in examples] == ["Who?"] * 2
        assert examples[1].golden_answers in (("Mira", "M."), ("Mira",)) and examples[1].index == 1
    assert taken == [place] * 2 and ("M." in examples[0].golden_answers) == ("M." in json.dumps(row))


def test_a_spreadsheet(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text('\ufeffQuestion;Answer;Aliases\r\n"Who; or\nwhat?";Mira;"[""M.""]"\r\n;;\r\nWhere?;Orsa;\r\n')
    first, second = read_questions(path)
    assert (first.question, first.golden_answers) == ("Who; or\nwhat?", ("Mira", "M."))
    assert (second.question, second.golden_answers, second.source) == ("Where?", ("Orsa",), "mine")


def test_what_cannot_be_learned_from_is_skipped_and_told(tmp_path):
    rows = [
        GOOD,
        {"question": "Who?", "answer": "x", "answerable": False},
        {"question": "Who?", "answer": {"n": 1}},
        {"question": "Who?", "golden_answers": ["A", "?!"]},
    ]
    skips: list[Skipped] = []
    examples = read_questions(put(tmp_path, *rows, GOOD, GOOD), on_skip=skips.append)
    assert [(skip.line, skip.field) for skip in skips] == [(2, "answerable"), (3, "answer"), (4, "golden_answers")]
    assert "'A', '?!' is empty without punct" in skips[-1].reason
    assert [e.id for e in examples] == ["nq/train/0", "nq/train/4", "nq/train/5"]  # ids do not shift


def examples(n: int, tag: str = "Who?") -> list[Example]:
    return [Example(source="s", split="train", index=i, question=f"{tag} {i}", golden_answers=("x",)) for i in range(n)]


def deal(sampler: QuestionOrder, batches: int, n: int = 3) -> list[list[int]]:
    return [[example.index for example in sampler.next(n)] for _ in range(batches)]


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def test_every_epoch_deals_each_question_once_and_the_rest_is_a_short_batch():
    batches = deal(QuestionOrder(examples(8), seed=0), 6)
    assert [len(batch) for batch in batches] == [3, 3, 2, 3, 3, 2]
    first, second = flat(batches[:3]), flat(batches[3:])
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second


def test_order_depends_on_seed_and_epoch_alone():
    assert deal(QuestionOrder(examples(8), seed=3), 5) == deal(QuestionOrder(examples(8), seed=3), 5)
    assert deal(QuestionOrder(examples(8), seed=3), 3) != deal(QuestionOrder(examples(8), seed=4), 3)
    # and not on the batch size
    assert flat(deal(QuestionOrder(examples(8), seed=3), 3, n=3)) == flat(
        deal(QuestionOrder(examples(8), seed=3), 2, n=4)
    )


def test_the_order_is_pinned():
    # A changed order would change every published run; it must be a decision, not an accident of a library version.
    assert deal(QuestionOrder(examples(8), seed=0), 3) == [[7, 0, 1], [5, 3, 4], [2, 6]]


@pytest.mark.parametrize("dealt", range(8))
def test_restore_continues_exactly(dealt):
    # 0 is the start, 3 the end of an epoch (position = number of questions), 4 the first batch of the next
    sampler = QuestionOrder(examples(8), seed=1)
    deal(sampler, dealt)
    state = json.loads(json.dumps(sampler.state()))
    expected = deal(sampler, 7)
    other = QuestionOrder(examples(8), seed=1)
    deal(other, 2)
    other.restore(state)
    assert deal(other, 7) == expected


def test_restore_refuses_other_questions_and_another_seed():
    state = QuestionOrder(examples(8), seed=1).state()
    with pytest.raises(CheckpointError, match="has changed since this checkpoint"):
        QuestionOrder(examples(8, "What?"), seed=1).restore(state)
    with pytest.raises(CheckpointError, match="has changed since this checkpoint"):
        QuestionOrder(examples(9), seed=1).restore(state)
    with pytest.raises(CheckpointError, match="seed 1, this run has seed 2"):
        QuestionOrder(examples(8), seed=2).restore(state)


def test_every_tenth_question_is_held_out() -> None:
    examples = [Example(source="s", split="train", index=i, question="?", golden_answers=("x",)) for i in range(23)]
    train, dev = hold_out(examples)
    assert [e.index for e in dev] == [0, 10, 20]
    assert sorted([*train, *dev], key=lambda e: e.index) == examples
    many = [examples[0]] * 169_615
    assert [len(part) for part in hold_out(many)] == [168_617, 998]
