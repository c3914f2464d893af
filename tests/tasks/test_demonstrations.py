"""Demonstrations over a user's own passages: each search is a real one, and the answer is in what it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.agent.protocol import CLEAN, parse_action
from holdfast.agent.trajectory import Answer, Search
from holdfast.base.scoring import in_passages
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Document
from holdfast.tasks.demonstrate import CUT_OFF, NOT_FOUND, YES_OR_NO, Demonstrations, answer_in, demonstrate
from holdfast.tasks.demonstrations import read_demonstrations, write_demonstrations
from holdfast.tasks.questions import Example

PASSAGES = (
    '"Oslo"\nOslo is the capital of Norway.',
    '"Mira Voss"\nMira Voss is the engineer who built the Halden bridge.',
    '"Mira Voss, early life"\nEngineer Mira Voss was born in Bergen.',
    '"Trees"\nPines grow slowly.',
)


def example(question: str, *golds: str) -> Example:
    return Example(source="own", split="train", index=0, question=question, golden_answers=golds)


def over(passages: Sequence[str]) -> BM25Retriever:
    return BM25Retriever.build([Document(str(i), text) for i, text in enumerate(passages)])


def made(*examples: Example, seed: int = 0, max_turns: int = 4) -> Demonstrations:
    return demonstrate(examples, over(PASSAGES), replace(CLEAN, topk=1, max_turns=max_turns), seed=seed)


@pytest.mark.parametrize(
    ("passage", "answer", "found"),
    [
        ("The Lake of Orsa.", "lake of orsa", True),
        ("The lake of Moravia.", "Mora", False),
        ("“Mora” was opened.", "Mora", True),
        ("石桥由工程师王小明设计，于1896年建成。", "王小明", True),
        ("石桥由工程师王小明设计，于1896年建成。", "1896年", True),
        ("于11896年建成。", "1896年", False),
        ("ทะเลสาบโมราลึกมาก", "โมรา", True),
        ("다리는 왕소명으로부터 1896년에 완공되었다.", "왕소명", True),
        ("다리는 왕소명으로부터 1896년에 완공되었다.", "1896년", True),
        ("1896에 Mora는 완공되었다.", "Mora", True),
        ("신왕소명가 설계하였다.", "왕소명", False),
        ("강원도에 있다.", "강", False),
    ],
)
def test_an_answer_stands_in_a_passage_as_a_word_of_its_script(passage: str, answer: str, found: bool) -> None:
    assert (answer_in([passage], [answer]) == answer) is found


def test_questions_in_other_scripts_become_demonstrations() -> None:
    passages = (
        "埃斯比\n埃斯比的石桥由工程师王小明设计，于1896年建成。",
        "에스비\n에스비의 다리는 기술자 왕소명가 설계하였다.",
    )
    questions = example("埃斯比的石桥是谁设计的？", "王小明"), example("에스비의 다리는 누가 설계했습니까?", "왕소명")
    demonstrations = demonstrate(questions, over(passages), replace(CLEAN, topk=1))
    assert len(demonstrations.rows) == 2 and not demonstrations.left_out


CAPITAL = example("What is the capital of Norway?", "Kristiania", "Oslo")
BORN = example("Where was the engineer who built the Halden bridge born?", "Bergen")


def test_a_question_whose_search_finds_a_golden_answer_is_answered_with_it() -> None:
    ((question, turns),) = made(CAPITAL).rows
    search, answer = (parse_action(text, CLEAN) for text, _ in turns)
    assert question == CAPITAL.question
    assert isinstance(search, Search) and isinstance(answer, Answer)
    assert answer.text == "Oslo"
    assert in_passages([hit.document.contents for hit in turns[0][1]], ["Oslo"])
    assert turns[-1][1] == ""


def test_a_second_search_looks_up_the_title_of_what_the_first_found() -> None:
    ((_, turns),) = made(BORN).rows
    _, second, answer = (parse_action(text, CLEAN) for text, _ in turns)
    assert isinstance(second, Search) and second.query == "Mira Voss born"
    assert isinstance(answer, Answer) and answer.text == "Bergen"
    assert made(BORN, max_turns=2).rows == []  # one search at most


def test_what_no_passage_answers_is_left_out_and_said() -> None:
    never, either = example("How fast do pines grow?", "two metres"), example("Pines grow?", "Yes.")
    demonstrations = made(never, either, CAPITAL)
    assert demonstrations.left_out == {NOT_FOUND: [never.question], YES_OR_NO: [either.question]}
    assert (len(demonstrations.rows), demonstrations.asked) == (1, 3)


def test_an_answer_is_a_whole_word_that_the_model_will_see() -> None:
    """No `4` in 1945, and nothing behind the end of an observation."""
    retriever = over(['"War"\nThe war ended in 1945.', '"Oslo"\n' + "It rains. " * 30 + "Its fjord is deep."])
    war, fjord = example("When did the war end?", "4"), example("What is deep in Oslo?", "fjord")

    def made(tokens: int) -> Demonstrations:
        return demonstrate([war, fjord], retriever, replace(CLEAN, topk=1, max_observation_tokens=tokens))

    assert made(50).left_out == {NOT_FOUND: [war.question], CUT_OFF: [fjord.question]}
    assert [question for question, _ in made(200).rows] == [fjord.question]


def test_each_passage_has_its_share_of_an_observation() -> None:
    """As the model sees them: a long first passage does not hide the second, and is cut itself."""
    retriever = over(['"Oslo"\n' + "Oslo has rain. " * 12 + "Its fjord is deep.", '"Oslo, trees"\nIts pines are tall.'])
    fjord, pines = example("What is deep in Oslo?", "fjord"), example("What is tall in Oslo?", "pines")
    demonstrations = demonstrate([fjord, pines], retriever, replace(CLEAN, topk=2, max_observation_tokens=60))
    assert [question for question, _ in demonstrations.rows] == [pines.question]
    assert demonstrations.left_out == {CUT_OFF: [fjord.question]}


def test_queries_vary_with_the_seed_and_repeat_with_it() -> None:
    queries = {made(CAPITAL, seed=seed).rows[0][1][0][0] for seed in range(12)}
    assert len(queries) > 2
    assert {query.partition("<search> ")[2] for query in queries} == {
        "What is the capital of Norway </search>",
        "capital Norway </search>",
    }
    assert made(CAPITAL, BORN, seed=3) == made(CAPITAL, BORN, seed=3)


def test_the_file_is_one_that_a_warm_start_reads(tmp_path: Path) -> None:
    path = tmp_path / "demonstrations.jsonl"
    written = made(CAPITAL, BORN)
    write_demonstrations(path, written.some())
    rows = read_demonstrations(path, CLEAN)
    assert [question for question, _ in rows] == [question for question, _ in written.rows]
    for (_, read), (_, turns) in zip(rows, written.rows, strict=True):
        assert [text for text, _ in read] == [text for text, _ in turns]
        found = [[hit.document.contents for hit in seen] for _, seen in read[:-1] if not isinstance(seen, str)]
        assert found == [[hit.document.contents for hit in hits] for _, hits in turns[:-1]]
