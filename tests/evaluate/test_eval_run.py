"""An evaluation that is stopped, resumed, damaged or mixed up with another one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import ConfigError, DataError, RolloutError
from holdfast.evaluate.folder import read_results, read_whole_rows
from holdfast.evaluate.methods import METHODS
from holdfast.evaluate.model import EvaluatedModel
from holdfast.evaluate.questions import load_questions
from holdfast.evaluate.results import set_of
from holdfast.evaluate.run import Evaluation
from holdfast.model.sampler.hf import HFPolicy
from holdfast.recipe import load
from holdfast.tasks.questions import Example
from holdfast.tasks.world.model import build_tokenizer

from .conftest import ScriptedPolicy, Shelf, Told, evaluated_model, example

QUESTIONS = [example(i, f"What is number {i}?", str(i % 3), source="nq" if i % 2 else "musique") for i in range(23)]
DIRECT = METHODS["direct"]
FILES = ("settings.json", "questions.jsonl", "results.json")


class Killed(BaseException):
    """What no code catches."""


@pytest.fixture(scope="module")
def tiny(random_model: Callable[..., Any]) -> tuple[Any, Any]:
    tokenizer = build_tokenizer(["Question: What is number 1?\nAnswer: 2 <answer> 0 </answer>\n"] * 20)
    return random_model("Qwen2", tokenizer, max_position_embeddings=4096, initializer_range=0.2), tokenizer


def local(tiny: tuple[Any, Any], tokens: int, samples: int | None, *settings: str) -> EvaluatedModel:
    """A model that dies, as it were, after so many tokens."""
    left = tokens

    def count(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    return EvaluatedModel(
        name="tiny",
        config=load(None, settings),
        policy=HFPolicy(*tiny, greedy=samples is None, on_token=count),
        tokenizer=tiny[1],
        positions=4096,
        local=True,
        weights="",
        decoding="greedy",
    )


@pytest.mark.parametrize(("method", "samples"), [("direct", None), ("search-r1", 2)])
def test_kills_change_no_byte(method: str, samples: int | None, tiny: Any, tmp_path: Path) -> None:
    limits = ("--protocol.max_turn_tokens", "12", "--protocol.max_turns", "2", "--protocol.max_total_tokens", "400")
    shelf = Shelf({})

    def evaluation(tokens: int = 10**9) -> Evaluation:
        retriever = shelf if method == "search-r1" else None
        return Evaluation(local(tiny, tokens, samples, *limits), METHODS[method], QUESTIONS, retriever, samples=samples)

    undisturbed, broken = tmp_path / "a", tmp_path / "b"
    evaluation().run(undisturbed, Told(), batch=4)
    rng = random.Random(7)
    for kill in range(6):
        with pytest.raises(Killed):
            evaluation(rng.randrange(1, 180)).run(broken, Told(), batch=4)
        rows = broken / "questions.jsonl"
        if rows.exists() and kill % 3 == 2:  # the kill fell into the writing of a batch: its last bytes never arrived
            whole = rows.read_bytes()
            rows.write_bytes(whole[: len(whole) - rng.randrange(1, 300)])
        assert not (broken / "results.json").exists()
    assert read_whole_rows(broken / "questions.jsonl"), "nothing was kept from kill to kill"
    evaluation().run(broken, Told(), batch=4)
    for name in FILES:
        assert (broken / name).read_bytes() == (undisturbed / name).read_bytes(), name


def echo(words: Any, **more: Any) -> ScriptedPolicy:
    return ScriptedPolicy(words, lambda context, request: context.split("number ")[-1].split("?")[0])


@pytest.mark.parametrize(("is_local", "asked"), [(True, [5, 6, 7, 8, 9]), (False, [7])])
def test_what_is_missing_is_asked_again_and_locally_with_its_batch(
    words: Any, tmp_path: Path, is_local: bool, asked: list[int]
) -> None:
    first = echo(words)
    whole = Evaluation(evaluated_model(first, local=is_local), DIRECT, QUESTIONS, None).run(tmp_path, Told(), batch=5)
    assert len(first.calls) == 23 and whole["micro"]["em"] == pytest.approx(3 / 23, abs=1e-6)
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    lines = before["questions.jsonl"].splitlines(keepends=True)
    (tmp_path / "questions.jsonl").write_bytes(b"".join(lines[:7] + lines[8:]))
    (tmp_path / "results.json").unlink()
    with pytest.raises(DataError, match="unfinished; the same command continues it"):
        read_results(tmp_path)
    again, told = echo(words), Told()
    Evaluation(evaluated_model(again, local=is_local), DIRECT, QUESTIONS, None).run(tmp_path, told, batch=5)
    assert [int(id.split("/")[2].removesuffix("#0")) for id, *_ in again.calls] == asked
    assert told.notes == [f"22 of 23 answers exist already, in {tmp_path}"]
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == before


@pytest.mark.parametrize("content", ['{"split": "test"}', '{"format": '])
def test_results_that_are_none(tmp_path: Path, content: str) -> None:
    with pytest.raises(DataError, match="give a folder of eval"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(DataError, match=r"results\.json .*(not a results file|is not valid JSON)"):
        read_results(tmp_path)


def test_questions_that_no_answer_can_be_right_to_are_named(words: Any, tmp_path: Path) -> None:
    examples = [*QUESTIONS[:2], replace(QUESTIONS[2], golden_answers=("A", "the"))]
    for scorer, named in (("table", True), ("official", False)):
        told = Told()
        evaluation = Evaluation(evaluated_model(echo(words), local=False), DIRECT, examples, None, scorer=scorer)
        evaluation.run(tmp_path / scorer, told)
        notes = [note for note in told.notes if "no golden answer" in note]
        assert len(notes) == named and all("musique/test/2" in note for note in notes)


@pytest.mark.parametrize("is_local", [True, False])
def test_progress_is_told_inside_a_batch(words: Any, tmp_path: Path, is_local: bool) -> None:
    told = Told()
    Evaluation(evaluated_model(echo(words), local=is_local), DIRECT, QUESTIONS, None).run(tmp_path, told, batch=20)
    assert told.done == [0, *range(2, 21, 2), 20, 21, 22, 23, 23]


@pytest.mark.parametrize(("is_local", "kept"), [(True, 0), (False, 6)])
def test_what_a_server_answered_is_kept_when_its_batch_ends_early(
    words: Any, tmp_path: Path, is_local: bool, kept: int
) -> None:
    def die_after_six(context: str, request: Any) -> str:
        if len(policy.calls) > 6:
            raise Killed
        return "1"

    policy = ScriptedPolicy(words, die_after_six)
    with pytest.raises(Killed):
        Evaluation(evaluated_model(policy, local=is_local), DIRECT, QUESTIONS, None).run(tmp_path, Told())
    assert len(read_whole_rows(tmp_path / "questions.jsonl")) == kept
    again = echo(words)
    Evaluation(evaluated_model(again, local=is_local), DIRECT, QUESTIONS, None).run(tmp_path, Told())
    assert len(again.calls) == 23 - kept


def test_a_smaller_batch_continues_an_evaluation(words: Any, tmp_path: Path) -> None:
    Evaluation(evaluated_model(echo(words)), DIRECT, QUESTIONS, None).run(tmp_path, Told(), batch=5)
    rows = (tmp_path / "questions.jsonl").read_bytes()
    (tmp_path / "questions.jsonl").write_bytes(b"".join(rows.splitlines(keepends=True)[:10]))
    again = echo(words)
    results = Evaluation(evaluated_model(again), DIRECT, QUESTIONS, None).run(tmp_path, Told(), batch=2)
    assert len(again.calls) == 13 and results["batch"] == 2
    assert json.loads((tmp_path / "settings.json").read_text())["batch"] == 2
    assert (tmp_path / "questions.jsonl").read_bytes() == rows


def test_failed_questions_are_asked_again(words: Any, tmp_path: Path) -> None:
    def say(context: str, request: Any) -> Any:
        return ("the server burns", "error") if "number 4?" in context and burning else "1"

    burning = True
    policy = ScriptedPolicy(words, say)
    results = Evaluation(evaluated_model(policy, local=False), DIRECT, QUESTIONS, None).run(tmp_path, Told())
    assert results["micro"]["failed"] == 1 and results["micro"]["scored"] == 22
    row = next(row for row in read_whole_rows(tmp_path / "questions.jsonl") if row["id"] == "musique/test/4#0")
    assert (row["status"], row["em"], row["error"]) == ("error", None, "the server burns")
    burning = False
    results = Evaluation(evaluated_model(policy, local=False), DIRECT, QUESTIONS, None).run(tmp_path, Told())
    assert results["micro"]["failed"] == 0 and len(policy.calls) == 24


def test_an_outage_stops_the_evaluation(words: Any, tmp_path: Path) -> None:
    policy = ScriptedPolicy(words, lambda context, request: ("no power", "error"))
    with pytest.raises(
        RolloutError, match=r"all 5 questions of a batch failed. The first error, of musique.* no power"
    ):
        Evaluation(evaluated_model(policy), DIRECT, QUESTIONS, None).run(tmp_path, Told(), batch=5)
    assert not (tmp_path / "results.json").exists()


def test_questions_that_always_fail_are_no_outage(words: Any, tmp_path: Path) -> None:
    def say(context: str, request: Any) -> Any:
        too_long = "number 4?" in context or "number 5?" in context
        return ("the context is too long", "error") if too_long else "1"

    policy = ScriptedPolicy(words, say)
    for local in (False, True):  # on a server the second run asks what failed alone; here they are a whole batch
        folder = tmp_path / str(local)
        for _ in range(2):
            evaluation = Evaluation(evaluated_model(policy, local=local), DIRECT, QUESTIONS, None)
            assert evaluation.run(folder, Told(), batch=2 if local else 5)["micro"]["failed"] == 2


def test_other_settings_are_refused(words: Any, tmp_path: Path) -> None:
    Evaluation(evaluated_model(echo(words)), DIRECT, QUESTIONS, None).run(tmp_path, Told())
    with pytest.raises(ConfigError, match='contains an evaluation with method = "direct", and this one has "cot";'):
        Evaluation(evaluated_model(echo(words)), METHODS["cot"], QUESTIONS, None).run(tmp_path, Told())
    with pytest.raises(ConfigError, match="with questions = 23, and this one has 4"):
        Evaluation(evaluated_model(echo(words)), DIRECT, QUESTIONS[:4], None).run(tmp_path, Told())
    changed = [*QUESTIONS[:-1], example(22, QUESTIONS[-1].question, "another")]
    with pytest.raises(ConfigError, match="with questions_digest = "):
        Evaluation(evaluated_model(echo(words)), DIRECT, changed, None).run(tmp_path, Told())


def test_samples_differ_by_seed_and_are_averaged(words: Any, tmp_path: Path) -> None:
    policy = ScriptedPolicy(words, lambda context, request: "1" if request.seed % 2 else "x")
    one = [example(0, "Who?", "1")]
    results = Evaluation(evaluated_model(policy), DIRECT, one, None, samples=50).run(tmp_path, Told())
    assert len({request.seed for *_, request in policy.calls}) == 50
    assert results["micro"]["questions"] == 1 and results["micro"]["answers"] == 50
    assert results["samples"] == 50 and 0.2 < results["sets"]["nq"]["em"] < 0.8


def test_the_official_rule_is_that_of_each_questions_set(words: Any, tmp_path: Path) -> None:
    questions = [example(0, "a?", "Jean Luc", source="triviaqa"), example(0, "b?", "Jean Luc", source="nq")]
    policy = ScriptedPolicy(words, lambda context, request: "Jean-Luc")
    for scorer, expected in (("table", [0.0, 0.0]), ("official", [1.0, 0.0])):
        out = tmp_path / scorer
        Evaluation(evaluated_model(policy), DIRECT, questions, None, scorer=scorer).run(out, Told())
        assert [row["em"] for row in read_whole_rows(out / "questions.jsonl")] == expected


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, list[dict[str, Any]]], str]:
    def make(name: str, rows: list[dict[str, Any]]) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return make


ROW = {"question": "Who?", "golden_answers": ["x"]}


def test_questions_know_their_set(write: Callable[..., str]) -> None:
    merged = write("all.jsonl", [ROW | {"data_source": "searchR1_nq"}, ROW | {"data_source": "musique"}])
    plain = write("popqa.jsonl", [ROW] * 3)
    found = load_questions([merged, plain], load(None), limit=2)
    assert [set_of(one) for one in found] == ["nq", "musique", "popqa", "popqa"]
    with pytest.raises(DataError, match=r"contains none of test\.jsonl"):
        load_questions([str(Path(plain).parent)], load(None))
    (Path(plain).parent / "test.jsonl").write_text(json.dumps(ROW))
    assert len(load_questions([str(Path(plain).parent)], load(None))) == 1, "a prepared folder stands for its test set"
    world = load_questions(["world"], load(None, ["--world.people", "60", "--world.test_questions", "10"]))
    assert {set_of(one) for one in world} == {"world-1hop", "world-2hop"}


def test_questions_that_cannot_be_found(write: Callable[..., str]) -> None:
    config = load(None)
    path = write("a.jsonl", [ROW])
    with pytest.raises(DataError, match="two questions have the id a/test/0"):
        load_questions([path, write("sub/a.jsonl", [ROW])], config)
    assert isinstance(load_questions([path], config)[0], Example)
