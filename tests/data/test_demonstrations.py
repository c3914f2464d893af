"""Demonstrations over a user's own passages: each search is a real one, and the answer is in what it found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.agent.protocol import CLEAN, parse_action
from holdfast.agent.trajectory import Answer, Search
from holdfast.base.errors import DataError
from holdfast.base.scoring import in_passages
from holdfast.data.demonstrations import Turns, demonstrations_of, write_demonstrations
from holdfast.data.questions import Example
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Document
from holdfast.train.warm_start import read_demonstrations

PASSAGES = (
    '"Oslo"\nOslo is the capital of Norway.',
    '"Mira Voss"\nMira Voss is the engineer who built the Halden bridge.',
    '"Mira Voss, early life"\nEngineer Mira Voss was born in Bergen.',
    '"Trees"\nPines grow slowly.',
)


def example(question: str, *golds: str) -> Example:
    return Example(source="own", split="train", index=0, question=question, golden_answers=golds)


def made(*examples: Example, seed: int = 0, **protocol: int) -> list[tuple[str, Turns]]:
    retriever = BM25Retriever.build([Document(str(i), text) for i, text in enumerate(PASSAGES)])
    return list(demonstrations_of(examples, retriever, replace(CLEAN, topk=1, **protocol), seed=seed))


CAPITAL = example("What is the capital of Norway?", "Kristiania", "Oslo")
BORN = example("Where was the engineer who built the Halden bridge born?", "Bergen")


def test_a_question_whose_search_finds_a_golden_answer_is_answered_with_it() -> None:
    ((question, turns),) = made(CAPITAL)
    search, answer = (parse_action(text, CLEAN) for text, _ in turns)
    assert question == CAPITAL.question
    assert isinstance(search, Search) and isinstance(answer, Answer)
    assert answer.text == "Oslo"
    assert in_passages([hit.document.contents for hit in turns[0][1]], ["Oslo"])
    assert turns[-1][1] == ()


def test_a_second_search_looks_up_the_title_of_what_the_first_found() -> None:
    ((_, turns),) = made(BORN)
    _, second, answer = (parse_action(text, CLEAN) for text, _ in turns)
    assert isinstance(second, Search) and second.query == "Mira Voss born"
    assert isinstance(answer, Answer) and answer.text == "Bergen"
    assert made(BORN, max_turns=2) == []  # one search at most


@pytest.mark.parametrize(
    "unanswered", [example("How fast do pines grow?", "two metres"), example("Pines grow?", "yes")]
)
def test_what_no_passage_answers_is_left_out(unanswered: Example) -> None:
    assert made(unanswered) == []


def test_an_answer_is_a_whole_word_that_the_model_will_see() -> None:
    """No `4` in 1945, and nothing behind the end of an observation."""
    passages = ['"War"\nThe war ended in 1945.', '"Oslo"\n' + "It rains. " * 30 + "Its fjord is deep."]
    retriever = BM25Retriever.build([Document(str(i), text) for i, text in enumerate(passages)])
    war, fjord = example("When did the war end?", "4"), example("What is deep in Oslo?", "fjord")

    def count(tokens: int) -> list[str]:
        protocol = replace(CLEAN, topk=1, max_observation_tokens=tokens)
        return [question for question, _ in demonstrations_of([war, fjord], retriever, protocol)]

    assert count(50) == []
    assert count(200) == [fjord.question]


def test_a_passage_without_a_title_is_not_looked_up() -> None:
    passage = "The engineer who built the Halden bridge, which is the longest of all in the south, is Mira Voss."
    retriever = BM25Retriever.build([Document("0", passage)])
    assert list(demonstrations_of([BORN], retriever, replace(CLEAN, topk=1))) == []


def test_queries_vary_with_the_seed_and_repeat_with_it() -> None:
    queries = {made(CAPITAL, seed=seed)[0][1][0][0] for seed in range(12)}
    assert len(queries) > 2
    assert {query.partition("<search> ")[2] for query in queries} == {
        "What is the capital of Norway </search>",
        "capital Norway </search>",
    }
    assert made(CAPITAL, BORN, seed=3) == made(CAPITAL, BORN, seed=3)


def test_the_file_is_one_that_a_warm_start_reads(tmp_path: Path) -> None:
    path = tmp_path / "demonstrations.jsonl"
    written = made(CAPITAL, BORN)
    write_demonstrations(path, written, [CAPITAL, BORN])
    rows = read_demonstrations(path, CLEAN)
    assert [question for question, _ in rows] == [question for question, _ in written]
    for (_, read), (_, turns) in zip(rows, written, strict=True):
        assert [text for text, _ in read] == [text for text, _ in turns]
        found = [[hit.document.contents for hit in seen] for _, seen in read[:-1] if not isinstance(seen, str)]
        assert found == [[hit.document.contents for hit in hits] for _, hits in turns[:-1]]


def test_nothing_to_demonstrate_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no passage that a search found has a golden answer of these 1 questions"):
        write_demonstrations(tmp_path / "x.jsonl", [], [CAPITAL])
