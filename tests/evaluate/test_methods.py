"""Each prompting method on a scripted policy: exactly these calls in this order, and the answer they lead to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.agent.protocol import R1, bare_question
from holdfast.base.errors import ConfigError
from holdfast.cli.main import app
from holdfast.evaluate import methods
from holdfast.evaluate.folder import read_results, read_whole_rows
from holdfast.evaluate.methods import METHODS, Conversation, Limits, Method, Outcome, Prompt, method_named, search
from holdfast.evaluate.model import agent_protocol, open_model, retriever_for, run_of, settings_of
from holdfast.evaluate.questions import load_questions, usual_questions
from holdfast.evaluate.run import Evaluation
from holdfast.evaluate.servers import Server
from holdfast.recipe import BUNDLED, absolute, dump, load
from holdfast.tasks import opening as loading

from .conftest import ScriptedPolicy, Shelf, Told, evaluated_model, example

ORSA = '"Orsa"\nOrsa lies on the Lomme.'
LOMME = '"Lomme"\nThe Lomme flows into lake Tarn.'
TARN = '"Tarn"\nTarn is a lake. It is deep.'
WHERE = example(0, "Into which lake does the river of Orsa flow?", "Tarn", "Lake Tarn")


def asked(
    method: str, turns: list[Any], shelf: Shelf | None, words: Any, tmp_path: Path, *settings: str, **more: Any
) -> tuple[dict[str, Any], ScriptedPolicy]:
    """(the row of the one question, the policy) after a method got these turns in this order."""
    left = list(turns)
    policy = ScriptedPolicy(words, lambda context, request: left.pop(0))
    questions = [more.pop("question", WHERE)]
    evaluation = Evaluation(evaluated_model(policy, *settings), METHODS[method], questions, shelf, **more)
    evaluation.run(tmp_path / "out", Told())
    assert not left, "turns that nobody asked for"
    (row,) = read_whole_rows(tmp_path / "out" / "questions.jsonl")
    return row, policy


def test_direct_is_one_call_of_32_tokens(words: Any, tmp_path: Path) -> None:
    row, policy = asked("direct", ["\n Lake Tarn\nIt lies in the north."], None, words, tmp_path)
    ((_, context, request),) = policy.calls
    assert context == f"{methods.DIRECT_PROMPT}\n\n{bare_question(WHERE.question)}"
    assert context.endswith("Question: Into which lake does the river of Orsa flow?\nAnswer:")
    assert (request.max_new_tokens, request.stop) == (32, ())
    assert (row["prediction"], row["em"], row["em_raw"], row["sub_em"]) == ("Lake Tarn", 1.0, 0.0, 1.0)
    assert (row["searches"], row["calls"], row["hit"], row["status"]) == (0, 1, None, "ok")


def test_a_stop_inside_a_thought_is_none(words: Any, tmp_path: Path) -> None:
    """The call goes on from there, with the tokens that are left."""
    turns = ["<think> maybe <answer>x</answer>", " no </think> <answer>Tarn</answer>"]
    row, policy = asked("cot", turns, None, words, tmp_path)
    (_, before, first), (_, after, second) = policy.calls
    assert after == before + turns[0]
    assert first.max_new_tokens - second.max_new_tokens == len(words(turns[0])["input_ids"])
    assert (row["prediction"], row["steps"]) == ("Tarn", [{"says": "".join(turns)}])


def test_a_search_inside_a_thought_is_one_for_search_o1(words: Any, tmp_path: Path) -> None:
    turns = [
        f"<think> so {methods.QUERY_OPEN} Orsa {methods.QUERY_CLOSE}",
        f"{methods.FINDINGS} Orsa lies on the Lomme.",
        " </think> \\boxed{Tarn}",
    ]
    row, _ = asked("search-o1", turns, Shelf({"Orsa": [ORSA]}), words, tmp_path)
    assert (row["prediction"], row["searches"]) == ("Tarn", 1)


def test_a_taught_model_is_asked_without_instructions(words: Any, tmp_path: Path) -> None:
    shelf = Shelf({WHERE.question: [ORSA]})
    row, policy = asked("rag", [" Tarn"], shelf, words, tmp_path, bare=True)
    assert policy.calls[0][1] == f"Doc 1(Title: Orsa) Orsa lies on the Lomme.\nQuestion: {WHERE.question}\nAnswer:"
    assert row["em"] == 1.0


def test_chain_of_thought_takes_the_tagged_answer(words: Any, tmp_path: Path) -> None:
    row, _ = asked("cot", [("The river is", "length")], None, words, tmp_path / "cut")
    assert (row["prediction"], row["em"], row["status"]) == (None, 0.0, "truncated")
    row, _ = asked("cot", ["I do not know."], None, words, tmp_path / "none")
    assert (row["prediction"], row["em"], row["status"]) == (None, 0.0, "ok")
    text = "The river is the Lomme. <answer> Tarn </answer> and more"
    row, policy = asked("cot", [text], None, words, tmp_path)
    ((_, context, request),) = policy.calls
    assert context == f"{methods.COT_PROMPT}\n\n{bare_question(WHERE.question)}"
    assert (request.max_new_tokens, request.stop) == (512, ("</answer>",))
    assert (row["prediction"], row["em"], row["em_raw"]) == ("Tarn", 1.0, 0.0)


def test_rag_searches_with_the_question_and_reads_three_passages(words: Any, tmp_path: Path) -> None:
    shelf = Shelf({WHERE.question: [ORSA, LOMME, TARN, '"Mora"\nMora is a town.']})
    row, policy = asked("rag", ["Mora"], shelf, words, tmp_path)
    assert shelf.queries == [WHERE.question]
    ((_, context, _),) = policy.calls
    assert "Doc 1(Title: Orsa) Orsa lies on the Lomme.\nDoc 2(Title: Lomme)" in context
    assert "Mora" not in context, "topk is 3"
    assert (row["em"], row["hit"], row["searches"], row["calls"]) == (0.0, 1.0, 1, 1)
    assert row["steps"][0] == {"searches": WHERE.question, "hits": ['"Orsa"', '"Lomme"', '"Tarn"']}


def test_ircot_makes_each_new_sentence_a_query_but_conclusions(words: Any, tmp_path: Path) -> None:
    first = "Into lake does the river of Orsa flow?"  # without its question word
    second = "The river of Orsa is the Lomme."
    shelf = Shelf({first: [ORSA], second: [ORSA, LOMME]})
    turns = [f" {second} It flows far.", " So it ends in Tarn. Yes.", "So the answer is: Tarn. Indeed.", "lake Tarn"]
    row, policy = asked("ircot", turns, shelf, words, tmp_path)
    assert shelf.queries == [first, second], "a sentence that only concludes is no query, nor is the last"
    contexts = [context for _, context, _ in policy.calls]
    assert (
        contexts[0].endswith("\nAnswer:")
        and "Doc 1(Title: Orsa)" in contexts[0]
        and "Doc 2(Title: L" not in contexts[0]
    )
    assert contexts[1].endswith(f"Answer: {second}"), "only the first sentence is kept"
    assert "Doc 2(Title: Lomme)" in contexts[1], "what is found is added, without what is there"
    assert contexts[2].endswith(f"{second} So it ends in Tarn.")
    assert contexts[3].endswith(f"Question: {WHERE.question}\nAnswer:"), "a reader answers, without the thoughts"
    assert [request.max_new_tokens for *_, request in policy.calls] == [100, 100, 100, 32]
    assert (row["prediction"], row["em"], row["searches"], row["calls"]) == ("lake Tarn", 1.0, 2, 4)


def test_ircot_stops_after_ten_sentences_and_at_fifteen_passages(words: Any, tmp_path: Path) -> None:
    class Endless(Shelf):
        def search(self, queries: Any, k: int) -> Any:
            n = len(self.queries)
            self.contents = {q: [f'"{n}-{i}"\nText {n} {i}.' for i in range(k)] for q in queries}
            return super().search(queries, k)

    shelf = Endless({})
    _, policy = asked("ircot", [f"Fact number {i}." for i in range(10)] + ["x"], shelf, words, tmp_path)
    assert len(policy.calls) == 11 and len(shelf.queries) == 11
    assert "Doc 15(" in policy.calls[-1][1] and "Doc 16(" not in policy.calls[-1][1]


O1_FIRST = f"First.\n\nI must search. {methods.QUERY_OPEN} river of Orsa {methods.QUERY_CLOSE}"


def test_search_o1_reads_documents_in_a_second_call(words: Any, tmp_path: Path) -> None:
    shelf = Shelf({"river of Orsa": [ORSA], "Lomme": [LOMME]})
    turns = [
        O1_FIRST + " and what follows is not read",
        f"Hm. {methods.FINDINGS}\nThe river is the Lomme.",
        f"Now {methods.QUERY_OPEN}Lomme{methods.QUERY_CLOSE}",
        "no marker here",
        f"Again {methods.QUERY_OPEN}Lomme{methods.QUERY_CLOSE}",
        r"So it is \boxed{\text{Lake {Tarn}}}.",
    ]
    row, policy = asked("search-o1", turns, shelf, words, tmp_path)
    contexts = [context for _, context, _ in policy.calls]
    assert shelf.queries == ["river of Orsa", "Lomme"], "a query asked before is not searched again"
    told = methods.SEARCH_O1_PROMPT.replace("{searches}", "5")
    assert contexts[0] == f"{told}\n\n{bare_question(WHERE.question)}", "five searches on a single-hop set"
    assert contexts[1].startswith(methods.READING_PROMPT) and "river of Orsa" in contexts[1] and O1_FIRST in contexts[1]
    found = f"{methods.RESULT_OPEN}The river is the Lomme.{methods.RESULT_CLOSE}"
    assert contexts[2].endswith(f"{O1_FIRST}\n\n{found}\n\n")
    assert f"{methods.RESULT_OPEN}{methods.NO_FINDINGS}{methods.RESULT_CLOSE}" in contexts[4]
    assert methods.REPEAT_NOTICE in contexts[5]
    assert (row["prediction"], row["em"], row["searches"], row["calls"]) == ("Lake {Tarn}", 1.0, 2, 6)


def test_search_o1_has_limits_and_falls_back_to_direct(words: Any, tmp_path: Path) -> None:
    many = example(0, "Who?", "Mira", source="musique")
    shelf = Shelf({})
    turns: list[Any] = []
    for i in range(10):
        turns += [f"{methods.QUERY_OPEN}q{i}{methods.QUERY_CLOSE}", methods.NO_FINDINGS]
    turns += [f"{methods.QUERY_OPEN}q10{methods.QUERY_CLOSE}", "I give up.", "Mira"]
    row, policy = asked("search-o1", turns, shelf, words, tmp_path, question=many)
    assert shelf.queries == [f"q{i}" for i in range(10)], "ten on a multi-hop set"
    assert methods.LIMIT_NOTICE in policy.calls[-2][1]
    assert policy.calls[-1][1] == f"{methods.DIRECT_PROMPT}\n\n{bare_question('Who?')}" and row["em"] == 1.0


def test_the_agent_loop_searches_and_answers(words: Any, tmp_path: Path) -> None:
    shelf = Shelf({"river of Orsa": [ORSA], "lake of Lomme": [LOMME]})
    turns = [
        "<think> a </think><search> river of Orsa </search>",
        "nothing of the kind",
        "<search> lake of Lomme </search>",
        "<answer> Tarn </answer>",
    ]
    row, policy = asked("search-r1", turns, shelf, words, tmp_path)
    contexts = [context for _, context, _ in policy.calls]
    assert "<information>Doc 1(Title: Orsa) Orsa lies on the Lomme.</information>" in contexts[1]
    assert "neither a search nor an answer" in contexts[2]
    assert contexts[3].startswith(contexts[2]), "one message that only grows"
    assert (row["em"], row["hit"], row["searches"], row["calls"], row["status"]) == (1.0, 1.0, 2, 4, "ok")
    row, _ = asked("search-r1", ["<search> river of Orsa </search>"] * 4, shelf, words, tmp_path / "last")
    assert (row["searches"], row["calls"], row["status"]) == (3, 4, "truncated"), "the last one is not sent"


def test_the_agent_without_search_has_one_turn(words: Any, tmp_path: Path) -> None:
    row, policy = asked("r1", ["<think> a </think><answer> Tarn </answer>"], None, words, tmp_path)
    assert "search" not in policy.calls[0][1].lower()
    assert (row["em"], row["searches"], row["calls"]) == (1.0, 0, 1)
    row, _ = asked("r1", ["<search> river </search>"], None, words, tmp_path / "b")
    assert (row["em"], row["searches"], row["status"]) == (0.0, 0, "truncated")
    protocol = agent_protocol(METHODS["r1"], load(None, ["--protocol.topk", "5"]))
    assert (protocol.prompt, protocol.max_turns, protocol.topk) == (R1.prompt, 1, 5)
    own = agent_protocol(METHODS["r1"], load(None, ["--protocol.prompt", "Q: {question}"]))
    assert (own.prompt, own.max_turns) == ("Q: {question}", 1), "a recipe's own prompt is kept"


@pytest.mark.parametrize("method", ["rag", "search-r1"])
def test_a_search_that_fails_is_no_wrong_answer(
    method: str, words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    broken = Shelf({}, broken=["Bad?"])
    good, bad = example(0, "Good?", "x"), example(1, "Bad?", "x")

    def say(context: str, request: Any) -> str:
        if method == "search-r1" and "information>" not in context.split("Question:")[-1]:
            return f"<search> {'Bad?' if 'Bad?' in context else 'Good?'} </search>"
        return "<answer> x </answer>" if method == "search-r1" else "the answer is x"

    policy = ScriptedPolicy(words, say)
    out = tmp_path / "out"
    results = Evaluation(evaluated_model(policy), METHODS[method], [good, bad], broken).run(out, Told())
    rows = {row["id"]: row for row in read_whole_rows(out / "questions.jsonl")}
    assert rows["nq/test/1#0"]["status"] == "retrieval_failed" and rows["nq/test/1#0"]["em"] is None
    own = results["sets"]["nq"]
    assert (own["questions"], own["scored"], own["failed"]) == (2, 1, 1)


def test_a_context_that_fills_the_model_is_an_error_not_a_wrong_answer(words: Any, tmp_path: Path) -> None:
    policy = ScriptedPolicy(words, lambda context, request: "x")
    small = replace(evaluated_model(policy), positions=60)
    short, long = example(0, "Who?", "x"), example(1, "Who " * 60 + "?", "x")
    out = tmp_path / "out"
    Evaluation(small, METHODS["direct"], [short, long], None).run(out, Told())
    rows = read_whole_rows(out / "questions.jsonl")
    assert [row["status"] for row in rows] == ["ok", "error"]
    assert "fills the model's 60" in rows[1]["error"]


def test_a_long_reasoning_is_shortened_to_its_ends_and_its_searches() -> None:
    steps = [f"step {i}" for i in range(10)]
    steps[3] = f"look {methods.QUERY_OPEN}q"
    kept = methods.shortened("\n\n".join(steps))
    assert kept.split("\n\n") == ["step 0", "...", steps[3], "...", "step 6", "step 7", "step 8", "step 9"]
    assert methods.shortened("one\n\ntwo") == "one\n\ntwo"


# ---- the table of methods


def twice(question: str, limits: Limits) -> Conversation:
    """A toy: asks, searches with the answer, and asks again."""
    guess = yield Prompt(user=question, max_tokens=limits.answer_tokens)
    hits = yield search(guess.text)
    final = yield Prompt(user=f"{hits[0].document.contents} {question}", max_tokens=limits.answer_tokens)
    return Outcome(final.text, final.text)


def test_a_new_method_is_its_definition_and_one_entry(words: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(METHODS, "twice", Method(name="twice", conversation=twice, searches=True, most_searches="1"))
    answers = ["Orsa", "Tarn"]
    policy = ScriptedPolicy(words, lambda context, request: answers.pop(0))
    shelf = Shelf({"Orsa": ["Orsa lies on lake Tarn."]})
    evaluation = Evaluation(evaluated_model(policy), method_named("twice"), [example(0, "Which lake?", "Tarn")], shelf)
    evaluation.run(tmp_path, Told())
    (row,) = read_whole_rows(tmp_path / "questions.jsonl")
    assert (row["em"], row["hit"], row["searches"], row["calls"], row["status"]) == (1.0, 1.0, 1, 2, "ok")
    results = read_results(tmp_path)
    assert (results["method"], results["searches"], results["prompt"]) == ("twice", "1", "instructed")
    refused = CliRunner().invoke(app, ["eval", "run", "nowhere", "--method", "twic"])
    assert "did you mean twice?" in refused.output + str(refused.exception)


# ---- which recipe


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "mine"
    (folder / "checkpoints" / "step-000010" / "model").mkdir(parents=True)
    settings = ["--data.train", "t.jsonl", "--retrieval.corpus", "c.jsonl", "--retrieval.index", "i"]
    settings += ["--protocol.max_turns", "7", "--sampling.top_p", "0.9"]
    (folder / "config.toml").write_text(dump(load(None, settings)))
    return folder


def test_a_run_its_checkpoints_and_its_model(run: Path, tmp_path: Path) -> None:
    inside = run / "checkpoints" / "step-000010"
    for path in (run, inside, inside / "model"):
        assert run_of(path) is not None and run_of(path).resolve() == run.resolve()  # type: ignore[union-attr]
    (tmp_path / "config.toml").write_text("[other]\ntool = 1\n")
    (tmp_path / "hub-model").mkdir()
    assert run_of(tmp_path / "hub-model") is None, "somebody else's config.toml above it makes no run"


def test_settings_stand_above_a_runs_own(run: Path) -> None:
    config, folder = settings_of(str(run), ["--protocol.max_turns", "3"], [])
    assert folder == run and config.protocol.max_turns == 3 and config.retrieval.index == "i"
    config, _ = settings_of(str(run), ["--retrieval.url", "http://127.0.0.1:1"], ["seven"])
    assert config.retrieval.url is not None and config.retrieval.index is None
    config, folder = settings_of("some/model", [], ["nq"])
    assert folder is None and config.model.path == "some/model"
    config, _ = settings_of("m", ["--retrieval.url", "http://127.0.0.1:1"], ["dev"], BUNDLED / "factbook.toml")
    assert config.data.train == "factbook", "its own questions stay"


def test_a_named_recipe_takes_the_place_of_a_runs_own(run: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[protocol]\nmax_turns = 2\n[model]\npath = "what/it/began/from"\n')
    config, folder = settings_of("some/model", [], [], recipe)
    assert folder is None and (config.protocol.max_turns, config.model.path) == (2, "some/model")
    config, folder = settings_of(str(run), ["--protocol.topk", "1"], [], recipe)
    assert folder == run and (config.protocol.max_turns, config.protocol.topk) == (2, 1)
    assert config.retrieval.index is None


def test_what_training_held_out_is_evaluated_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"Which {i}?", "golden_answers": [str(i)]} for i in range(25)]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("my.toml").write_text('[data]\ntrain = "q.jsonl"\n[retrieval]\ncorpus = "c.jsonl"\n')
    recipe = load("my.toml")
    Path("run").mkdir()
    Path("run/config.toml").write_text(dump(absolute(recipe)))
    held_out = loading.load_questions(recipe).dev
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    moved = ["--retrieval.corpus", "new.jsonl"]
    for config, _ in (
        settings_of(str(tmp_path / "run"), moved, ["dev"]),
        settings_of("some/model", moved, ["dev"], tmp_path / "my.toml"),
    ):
        assert load_questions(["dev"], config) == list(held_out) and len(held_out) == 3
        assert config.retrieval.corpus == "new.jsonl"
        assert usual_questions(config) == "dev"  # as the closing scores of a run
        with pytest.raises(ConfigError, match=r"does not set data.test"):
            load_questions(["test"], config)
    assert usual_questions(load(tmp_path / "my.toml", ["--data.test", "test.jsonl"])) == "test"
    small = load(None, ["--world.people", "60"])
    assert load_questions(["dev"], small) == load_questions(["world-dev"], small)
    assert retriever_for(METHODS["rag"], small, ["dev"]) is not None
    (tmp_path / "q.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"--data.train PATH"):
        load_questions(["dev"], config)


def test_a_server_is_asked_without_the_runs_truncation(run: Path) -> None:
    config, folder = settings_of(str(run), [], [])
    server = Server(url="http://127.0.0.1:1/v1/completions", model="m")
    subject = open_model(str(run), config, folder, samples=1, server=server, tokenizer="none")
    assert subject.policy.top_p == 1.0 and subject.decoding == "sampled at temperature 1"
    subject.policy.close()


def test_passages_must_answer_the_questions(run: Path) -> None:
    own, _ = settings_of(str(run), [], [])
    world, _ = settings_of("some/model", [], ["nq"])
    with pytest.raises(ConfigError, match="--data world asks about the bundled world, but the retriever has other"):
        retriever_for(METHODS["search-r1"], own, ["test", "world"])
    assert retriever_for(METHODS["cot"], world, ["nq"]) is None
    small = load(None, ["--world.people", "60"])
    assert retriever_for(METHODS["rag"], small, ["world"]).search(["mentor"], 2)[0]
