"""A scripted OpenAI-compatible server: what is sent, what may come back, and what is made of a server that fails."""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.base.errors import ConfigError, ModelError, RolloutError
from holdfast.cli.main import app
from holdfast.evaluate import methods
from holdfast.evaluate.methods import METHODS
from holdfast.evaluate.model import open_model, settings_of
from holdfast.evaluate.openai import OpenAIPolicy, WordTokenizer, parse_completion
from holdfast.evaluate.run import Evaluation
from holdfast.evaluate.servers import Server, completions_url
from holdfast.evaluate.state import read_whole_rows
from holdfast.model.policy import Request, generate

from .conftest import CompletionServer, Shelf, Told, evaluated_model, example

ORSA = '"Orsa"\nOrsa lies on the Lomme.'


def choice(text: str, finish: str = "stop", **more: Any) -> dict[str, Any]:
    return {"text": text, "finish_reason": finish, **more}


def server_at(url: str, **more: Any) -> Server:
    return Server(url=completions_url(url), model="some-model", **more)


def policy_of(server: CompletionServer, words: Any, api_key: str | None = None, **more: Any) -> OpenAIPolicy:
    given = {"backoff": 0.001, "timeout": 5, "patience": 0, **more}
    return OpenAIPolicy(server_at(server.url, api_key=api_key), words, **given)


def request(words: Any, text: str = "Who?", id: str = "a", stop: tuple[str, ...] = ()) -> Request:
    return Request(id=id, token_ids=words(text)["input_ids"], max_new_tokens=16, stop=stop, seed=2**62 + 5)


def test_what_is_sent(completion_server: CompletionServer, words: Any) -> None:
    completion_server.saying = lambda body: choice(" Mira")
    words.bos_token = "Who"  # a template writes the first token, and the server would write it once more
    policy = policy_of(completion_server, words, api_key="secret")
    (completion,) = generate(policy, [request(words, stop=("</answer>",))])
    assert (completion.text, completion.stop_reason, completion.token_ids) == (" Mira", "eos", None)
    assert completion_server.bodies == [
        {
            "path": "/v1/completions",
            "model": "some-model",
            "prompt": "?",
            "max_tokens": 16,
            "temperature": 0.0,
            "top_p": 1.0,
            "seed": 5,
            "stop": ["</answer>"],
            "top_k": -1,
            "repetition_penalty": 1.0,
            "include_stop_str_in_output": True,
        }
    ]
    assert completion_server.headers[0]["Authorization"] == "Bearer secret"
    policy.close()


STOP = ("</search>", "</answer>")


@pytest.mark.parametrize(
    ("answer", "text", "reason"),
    [
        (choice("<search> a </search>"), "<search> a </search>", "stop"),
        (choice("<search> a </search> and more"), "<search> a </search>", "stop"),
        (choice("<search> a "), "<search> a </search>", "stop"),
        (choice("<search> a ", stop_reason="</search>"), "<search> a </search>", "stop"),
        (choice("hm <answer> b", stop_reason="</answer>"), "hm <answer> b</answer>", "stop"),
        (choice("or <search>? <answer> b "), "or <search>? <answer> b </answer>", "stop"),
        (choice("no tag at all"), "no tag at all", "eos"),
        (choice("<search> a ", matched_stop="</search>"), "<search> a </search>", "stop"),
        # The model itself ended the turn, and the server says so: nothing was left out.
        (choice("I cannot <search> for that", stop_reason=None), "I cannot <search> for that", "eos"),
        (choice("<answer> b", matched_stop=151645), "<answer> b", "eos"),
        (choice("<answer> b", "eos_token"), "<answer> b", "eos"),
        (choice("<search> a ", "length"), "<search> a ", "length"),
        (choice("a <search> b </search> c", "length"), "a <search> b </search>", "stop"),
    ],
)
def test_the_text_that_stopped_a_turn_is_there(answer: dict[str, Any], text: str, reason: str, words: Any) -> None:
    body = json.dumps({"choices": [answer]}).encode()
    completion = parse_completion(body, request(words, stop=STOP), "http://h")
    assert (completion.text, completion.stop_reason, completion.error) == (text, reason, None)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "without `choices` that contain text: an empty answer"),
        (b"<html>busy</html>", "without `choices` that contain text: <html>busy</html>"),
        (b'{"choices": []}', "without `choices`"),
        (b'{"choices": [{"text": "half', "without `choices`"),
        (b'{"choices": [{"message": {"content": "a"}}]}', "without `choices`"),
        (b'{"choices": [{"text": null, "finish_reason": "stop"}]}', "`text` that is not a string"),
        (b'{"choices": [{"text": "half a tur", "finish_reason": null}]}', "may be half a turn"),
        (b'{"choices": [{"text": "a", "finish_reason": "abort"}]}', "finish_reason = 'abort'"),
    ],
)
def test_half_answers_are_told_from_answers(body: bytes, said: str, words: Any) -> None:
    completion = parse_completion(body, request(words), "http://h")
    assert completion.error is not None and said in completion.error


def test_what_passes_is_tried_again(completion_server: CompletionServer, words: Any) -> None:
    completion_server.saying = lambda body: choice("Mira")
    completion_server.replies = [(503, b"busy"), (201, b'{"choi'), (200, b'{"choices": [{"te'), (200, b"")]
    policy = policy_of(completion_server, words, retries=4)
    (completion,) = generate(policy, [request(words)])
    assert (completion.text, completion.error, len(completion_server.bodies)) == ("Mira", None, 5)
    policy.close()


def test_what_does_not_pass_is_said_at_once(completion_server: CompletionServer, words: Any) -> None:
    completion_server.replies = [(400, b'{"message": "context too long"}')]
    policy = policy_of(completion_server, words)
    (completion,) = generate(policy, [request(words)])
    assert completion.error == f'{completion_server.url}/v1/completions answered 400: {{"message": "context too long"}}'
    assert len(completion_server.bodies) == 1
    policy.close()


def test_a_server_that_is_down_ends_the_evaluation(completion_server: CompletionServer, words: Any) -> None:
    completion_server.replies = [(500, b"no")] * 100
    policy = policy_of(completion_server, words, retries=0, concurrency=1)
    with pytest.raises(RolloutError, match=r"8 calls in a row failed. The last error: .* answered 500: no"):
        generate(policy, [request(words, id=str(i)) for i in range(20)])
    policy.close()


def test_a_stop_does_not_wait_for_a_server_that_hangs(completion_server: CompletionServer, words: Any) -> None:
    completion_server.hold = threading.Event()
    completion_server.saying = lambda body: choice("late")
    policy = policy_of(completion_server, words, concurrency=2)
    policy.submit([request(words, id=str(i)) for i in range(6)])
    while len(completion_server.bodies) < 2:
        time.sleep(0.01)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("completions")]
    started = time.monotonic()
    policy.release([str(i) for i in range(6)])
    policy.close()
    assert time.monotonic() - started < 5, "closing waits for the calls"
    completion_server.hold.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a call is tried again after the stop"
    assert len(completion_server.bodies) == 2, "what was queued is still sent"


def test_an_answer_that_drips_in_ends_at_the_deadline(completion_server: CompletionServer, words: Any) -> None:
    completion_server.replies = [(202, b"x" * 1000)]
    policy = policy_of(completion_server, words, retries=0, timeout=0.5)
    (completion,) = generate(policy, [request(words)])
    assert completion.error is not None and "did not answer within 0.5 seconds" in completion.error
    policy.close()


def test_nobody_listens(words: Any) -> None:
    policy = OpenAIPolicy(server_at("http://127.0.0.1:9"), words, retries=0, patience=0)
    (completion,) = generate(policy, [request(words)])
    assert completion.error is not None and "cannot be reached" in completion.error
    policy.close()


def test_methods_through_a_server(completion_server: CompletionServer, words: Any, tmp_path: Path) -> None:
    """The same calls as with a policy in this process, one after another for each question."""
    questions = [example(i, f"Who is number {i}?", f"Mira{i}") for i in range(12)]

    def say(body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        number = prompt.split("Who is number ")[-1].split("?")[0]
        if "<answer> your answer </answer>" not in prompt:
            return choice(f" Mira{number}")
        if "Orsa lies" in prompt:
            return choice(f"<answer> Mira{number} ")
        return choice(f"<search> number {number} ")

    completion_server.saying = say
    shelf = Shelf({f"number {i}": [ORSA] for i in range(12)} | {q.question: [ORSA] for q in questions})
    for method, calls, searches in (("direct", 12, 0), ("rag", 12, 1), ("search-r1", 24, 1)):
        completion_server.bodies.clear()
        policy = policy_of(completion_server, words)
        out = tmp_path / method
        results = Evaluation(evaluated_model(policy, local=False), METHODS[method], questions, shelf).run(
            out, Told(), batch=5
        )
        policy.close()
        assert results["micro"]["em"] == 1.0, method
        assert (len(completion_server.bodies), results["micro"]["searches"]) == (calls, searches)
    asked = {body["prompt"] for body in completion_server.bodies}
    assert sum("<information>Doc 1(Title: Orsa) Orsa lies on the Lomme.</information>" in text for text in asked) == 12


Q = methods.QUERY_OPEN, methods.QUERY_CLOSE
SEQUENCES: dict[str, tuple[list[str], list[str]]] = {
    # method: what the server says call by call, closing texts left out as servers do; the queries that follow from it
    "direct": ([" Mira"], []),
    "cot": (["She is <answer> Mira"], []),
    "rag": ([" Mira"], ["Who wrote it?"]),
    "ircot": (["It is a book. And more.", "So the answer is: Mira.", " Mira"], ["wrote it?", "It is a book."]),
    "search-o1": (
        [f"Hm {Q[0]}it", f"{methods.FINDINGS} Mira did.", f"And {Q[0]}it", r"So \boxed{Mira}"],
        ["it"],
    ),
    "r1": (["<think> m </think> <answer> Mira"], []),
    "search-r1": (["<search> it", "hm", "<search> more", "<answer> Mira"], ["it", "more"]),
}


@pytest.mark.parametrize("method", SEQUENCES)
def test_every_method_makes_exactly_its_calls(
    method: str, completion_server: CompletionServer, words: Any, tmp_path: Path
) -> None:
    turns, queries = SEQUENCES[method]
    left = list(turns)
    completion_server.saying = lambda body: choice(left.pop(0))
    shelf = Shelf({query: [ORSA] for query in queries})
    policy = policy_of(completion_server, words, concurrency=1)
    question = [example(0, "Who wrote it?", "Mira")]
    results = Evaluation(evaluated_model(policy, local=False), METHODS[method], question, shelf).run(tmp_path, Told())
    policy.close()
    assert left == [] and len(completion_server.bodies) == len(turns)
    assert shelf.queries == queries
    assert results["micro"]["em"] == 1.0 and results["micro"]["calls"] == len(turns)
    assert results["micro"]["searches"] == len(queries)
    contexts = [body["prompt"] for body in completion_server.bodies]
    if method in ("search-o1", "search-r1"):  # one text that only grows, but for the reading of documents
        own = [text for text in contexts if not text.startswith("Read the documents")]
        assert all(after.startswith(before) for before, after in itertools.pairwise(own)) and len(own) > 1


def test_one_bad_question_does_not_fail_the_others(
    completion_server: CompletionServer, words: Any, tmp_path: Path
) -> None:
    completion_server.saying = lambda body: choice("half", "abort") if "number 3?" in body["prompt"] else choice("Mira")
    questions = [example(i, f"Who is number {i}?", "Mira") for i in range(6)]
    policy = policy_of(completion_server, words, retries=1)
    results = Evaluation(evaluated_model(policy, local=False), METHODS["search-r1"], questions, Shelf({})).run(
        tmp_path, Told()
    )
    policy.close()
    assert results["micro"]["failed"] == 1
    (row,) = [row for row in read_whole_rows(tmp_path / "questions.jsonl") if row["status"] == "error"]
    assert row["id"] == "nq/test/3#0" and "may be half a turn" in row["error"] and row["em"] is None


def test_a_server_is_opened_with_a_tokenizer_or_without(completion_server: CompletionServer) -> None:
    config, run = settings_of("some/model", ["--sampling.temperature", "0.7", "--sampling.top_p", "0.9"], [])
    given = ["--sampling.top_p", "0.9"]
    model = open_model(
        "some/model", config, run, samples=3, server=server_at(completion_server.url), tokenizer="none", given=given
    )
    assert isinstance(model.tokenizer, WordTokenizer) and not model.local
    assert model.decoding == "sampled at temperature 0.7, top-p 0.9"
    assert (model.policy.temperature, model.policy.top_p) == (0.7, 0.9)
    plain = open_model("some/model", config, run, samples=3, server=server_at(completion_server.url), tokenizer="none")
    assert plain.policy.top_p == 1.0, "truncation is used only where it is asked for"
    with pytest.raises(ModelError, match=r"the tokenizer '/no/such' cannot be loaded.*--tokenizer none"):
        open_model(
            "some/model", config, run, samples=None, server=server_at(completion_server.url), tokenizer="/no/such"
        )
    with pytest.raises(ConfigError, match="--tokenizer has no effect without --server"):
        open_model("some/model", config, run, samples=None, tokenizer="none")


def test_the_command_asks_a_server(
    completion_server: CompletionServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    completion_server.saying = lambda body: choice(" Mira")
    (tmp_path / "q.jsonl").write_text('{"question": "Who?", "golden_answers": ["Mira"]}\n' * 3)
    words = [
        "eval",
        "run",
        "some/model",
        "--server",
        completion_server.url,
        "--tokenizer",
        "none",
        "--method",
        "direct",
    ]
    result = CliRunner().invoke(app, [*words, "--data", "q.jsonl"])
    assert result.exit_code == 0, result.output
    assert "1.000 (1.000–1.000)" in result.output
    assert {headers["Authorization"] for headers in completion_server.headers} == {"Bearer key"}
    assert (tmp_path / "runs" / "evals" / "model-direct-q" / "results.json").is_file()


@pytest.mark.parametrize("address", ["localhost:8000", "ftp://h", "http://", "http://h:x"])
def test_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a server"):
        completions_url(address)


@pytest.mark.parametrize("text", ["a  b\n\nc-d, 'é' ", "<search> x </search>\n", methods.QUERY_OPEN, "\t1,000.5"])
def test_words_are_read_back_as_they_were(text: str, words: Any) -> None:
    assert words.decode(words(text)["input_ids"]) == text
