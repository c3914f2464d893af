"""A scripted OpenAI-compatible server: what is sent, what may come back, and what is made of a server that fails."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.agent.tools import NATIVE
from holdfast.base.answers import Answer
from holdfast.base.errors import ConfigError, RolloutError
from holdfast.cli.main import app
from holdfast.evaluate.methods import METHODS
from holdfast.evaluate.model import refuse_unfit
from holdfast.evaluate.openai import OpenAIPolicy, WordTokenizer, parse_completion
from holdfast.evaluate.run import Evaluation
from holdfast.evaluate.servers import Server, completions_url
from holdfast.model.sampler.policy import Completion, Request, generate
from holdfast.tasks.questions import Example

from ..waiting import wait_for
from .conftest import TINY, CompletionServer, Shelf, Told, evaluated_model, example, serve

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


@pytest.fixture
def asked(completion_server: CompletionServer, words: Any) -> Callable[..., Completion]:
    """asked(**settings of a policy): its turn for one request."""

    def ask(**more: Any) -> Completion:
        policy = policy_of(completion_server, words, **more)
        (completion,) = generate(policy, [request(words)])
        policy.close()
        return completion

    return ask


WHO = example(0, "Who?", "Mira")


def evaluated(policy: OpenAIPolicy, method: str, out: Path, questions: Sequence[Example] = (WHO,), **found: Any) -> Any:
    """What an evaluation by a server counts over all questions. Searches find what `found` has."""
    evaluation = Evaluation(evaluated_model(policy, local=False), METHODS[method], questions, Shelf(found))
    try:
        return evaluation.run(out, Told(), batch=9)["micro"]
    finally:
        policy.close()


class Beginning(WordTokenizer):
    """Begins every text with its BOS, "Who"."""

    bos_token = "Who"

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return super().__call__(text if text.startswith("Who") else f"Who {text}")


def test_what_is_sent(completion_server: CompletionServer) -> None:
    completion_server.saying = lambda body: choice(" Mira")
    words = Beginning()  # a template writes the first token, and the server would write it once more
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
    completion = parse_completion(Answer("http://h", 200, body), request(words, stop=STOP))
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
        (b'{"choices": [{"text": "a", "finish_reason": "hush"}]}', "finish_reason = '***'"),
        (b"[" * 200_000, "without `choices`"),
    ],
)
def test_half_answers_are_told_from_answers(body: bytes, said: str, words: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_completion(Answer("http://h", 200, body, secrets=["hush"]), request(words))


def test_a_tool_call_that_nobody_offered_is_the_servers_parser(words: Any) -> None:
    """The same request would give the same answer, so it is not repeated."""
    said = {"message": {"content": None, "tool_calls": [{"id": "1"}]}, "finish_reason": "tool_calls"}
    body = json.dumps({"choices": [said]}).encode()
    with pytest.raises(RolloutError, match="no tool was offered to the model"):
        parse_completion(Answer("http://h", 200, body), request(words), chat=True)


def test_what_passes_is_tried_again(completion_server: CompletionServer, asked: Callable[..., Completion]) -> None:
    completion_server.saying = lambda body: choice("Mira")
    completion_server.replies = [(503, b"busy"), (201, b'{"choi'), (200, b'{"choices": [{"te'), (200, b"")]
    completion = asked(retries=4)
    assert (completion.text, completion.error, len(completion_server.bodies)) == ("Mira", None, 5)


def test_what_does_not_pass_is_said_at_once(
    completion_server: CompletionServer, asked: Callable[..., Completion]
) -> None:
    completion_server.replies = [(400, b'{"message": "context too long"}')]
    url = f"{completion_server.url}/v1/completions"
    assert asked().error == f'{url} answered 400: {{"message": "context too long"}}'
    assert len(completion_server.bodies) == 1
    completion_server.replies = [(404, b"This is a chat model and not supported in the v1/completions endpoint.")]
    assert str(asked().error).endswith(f"give --server {completion_server.url}/v1/chat/completions")


def test_a_stop_does_not_wait_for_a_server_that_hangs(completion_server: CompletionServer, words: Any) -> None:
    completion_server.hold = threading.Event()
    completion_server.saying = lambda body: choice("late")
    policy = policy_of(completion_server, words, concurrency=2, timeout=60)
    policy.submit([request(words, id=str(i)) for i in range(6)])
    wait_for(lambda: len(completion_server.bodies) == 2, minutes=1)
    started = time.monotonic()
    policy.release([str(i) for i in range(6)])
    policy.close()
    assert time.monotonic() - started < 30, "closing waits for the calls"
    completion_server.hold.set()
    assert len(completion_server.bodies) == 2, "what was queued is still sent"


def test_a_turn_has_the_characters_of_its_tokens(completion_server: CompletionServer, words: Any) -> None:
    """More would fill the memory when it is encoded."""
    texts = ["half \ud800", "x" * 2**20]
    completion_server.saying = lambda body: choice(texts.pop(0))
    policy = policy_of(completion_server, words, retries=0)
    (half,), (long,) = (generate(policy, [request(words)]) for _ in range(2))
    policy.close()
    assert (half.text, half.error) == ("half ?", None)
    assert long.error is not None and "sent more than" in long.error


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
    found = {f"number {i}": [ORSA] for i in range(12)} | {q.question: [ORSA] for q in questions}
    for method, calls, searches in (("direct", 12, 0), ("rag", 12, 1), ("search-r1", 24, 1)):
        completion_server.bodies.clear()
        results = evaluated(policy_of(completion_server, words), method, tmp_path / method, questions, **found)
        assert results["em"] == 1.0, method
        assert (len(completion_server.bodies), results["searches"]) == (calls, searches)
    asked = {body["prompt"] for body in completion_server.bodies}
    assert sum("<information>Doc 1(Title: Orsa) Orsa lies on the Lomme.</information>" in text for text in asked) == 12


# ---- refusals


def test_calls_that_a_server_does_not_show_are_refused(completion_server: CompletionServer, speaker: Any) -> None:
    """vLLM and its like return texts without special tokens, and Mistral's calls begin with one."""
    shown, hidden = (policy_of(completion_server, speaker(name)) for name in ("hermes", "mistral-small"))
    refuse_unfit(evaluated_model(shown, local=False), METHODS["search-r1"], NATIVE)
    refuse_unfit(evaluated_model(hidden, local=False), METHODS["direct"], NATIVE)
    with pytest.raises(ConfigError, match=r"special token .*without --server"):
        refuse_unfit(evaluated_model(hidden, local=False), METHODS["search-r1"], NATIVE)


FULL = [
    "This model's maximum context length is 64 tokens. However, you requested 90 tokens",
    "The input (70 tokens) is longer than the model's context length (64 tokens).",
    "the request exceeds the available context size, try increasing it",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 64. Given: 60 and 16",
    "prompt is too long: 70 tokens > 64 maximum",
    '{"error": {"code": "context_length_exceeded"}}',
]


@pytest.mark.parametrize("message", FULL)
def test_a_turn_is_shortened_until_it_fits(
    message: str, completion_server: CompletionServer, asked: Callable[..., Completion]
) -> None:
    completion_server.saying = lambda body: choice("cut", "length")
    completion_server.replies = [(400, message.encode())] * 2
    completion = asked()
    assert [body["max_tokens"] for body in completion_server.bodies] == [16, 8, 4]
    assert (completion.text, completion.stop_reason, completion.error) == ("cut", "length", None)


@pytest.mark.parametrize("method", ["search-r1", "direct", "cot", "ircot", "search-o1"])
def test_a_context_without_any_room_is_cut_and_not_failed(
    method: str, completion_server: CompletionServer, words: Any, tmp_path: Path
) -> None:
    completion_server.replies = [(400, FULL[0].encode())] * 100
    results = evaluated(policy_of(completion_server, words), method, tmp_path)
    assert (results["truncated"], results["failed"]) == (1.0, 0)


def test_fields_that_a_server_does_not_know_are_left_out(completion_server: CompletionServer, words: Any) -> None:
    completion_server.saying = lambda body: choice("Mira</answer> and more")
    completion_server.replies = [
        (400, b"Unrecognized request arguments supplied: include_stop_str_in_output, repetition_penalty, top_k"),
        (422, b'{"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"]}]}'),
        (400, b"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'"),
        (400, b"Unsupported parameter: 'stop' is not supported with this model."),
    ]
    policy = policy_of(completion_server, words)
    stop = ("</answer>",)
    first, second = (generate(policy, [request(words, id=id, stop=stop)])[0] for id in "ab")
    policy.close()
    assert first.text == second.text == "Mira</answer>" and first.stop_reason == "stop"
    assert len(completion_server.bodies) == 6, "the second request is sent once"
    assert {*completion_server.bodies[-1]} == {
        "path",
        "model",
        "prompt",
        "max_completion_tokens",
        "temperature",
        "top_p",
    }


# ---- patience


def test_retry_after_is_waited_for(completion_server: CompletionServer, asked: Callable[..., Completion]) -> None:
    completion_server.saying = lambda body: choice("Mira")
    completion_server.replies, completion_server.retry_after = [(429, b"slow down")] * 2, "0.4"
    started = time.monotonic()
    assert asked(retries=0, patience=30).text == "Mira" and time.monotonic() - started >= 0.8


@pytest.mark.parametrize(
    ("retry_after", "body", "sentence"),
    [
        ("3600", b"daily limit", "The server asks to wait 3600 seconds; repeat the command then"),
        (None, b'{"error": {"code": "insufficient_quota"}}', "insufficient_quota"),
    ],
)
def test_what_waiting_does_not_help(
    retry_after: str | None,
    body: bytes,
    sentence: str,
    completion_server: CompletionServer,
    asked: Callable[..., Completion],
) -> None:
    completion_server.replies, completion_server.retry_after = [(429, body)] * 9, retry_after
    assert sentence in str(asked(patience=60).error)
    assert len(completion_server.bodies) == 1


def test_a_server_that_goes_away_for_a_while(
    completion_server: CompletionServer, words: Any, caplog: pytest.LogCaptureFixture
) -> None:
    completion_server.saying = lambda body: choice("Mira")
    completion_server.replies = [(503, b"loading")] * 30
    policy = policy_of(completion_server, words, retries=1, patience=30, backoff=0.01, concurrency=4)
    with caplog.at_level(logging.WARNING):
        completions = generate(policy, [request(words, id=str(i)) for i in range(12)])
    policy.close()
    assert {completion.text for completion in completions} == {"Mira"}
    assert any("tries again for another 30 seconds" in record.message for record in caplog.records)


# ---- chat endpoints


def said(text: str | None, finish: str = "stop", **more: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}, "finish_reason": finish, **more}


def chat_policy(server: CompletionServer, **more: Any) -> OpenAIPolicy:
    endpoint = Server(url=f"{server.url}/v1/chat/completions", model="m")
    return OpenAIPolicy(endpoint, WordTokenizer(), backoff=0.001, timeout=5, patience=0, **more)


def test_a_baseline_on_a_chat_endpoint(
    completion_server: CompletionServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`direct` with the command, no tokenizer, and the one model that is served."""
    monkeypatch.chdir(tmp_path)
    serve(completion_server, TINY)
    completion_server.saying = lambda body: said("Mira.")
    (tmp_path / "q.jsonl").write_text('{"question": "Who?", "golden_answers": ["Mira"]}\n')
    url = f"{completion_server.url}/v1/chat/completions"
    result = CliRunner().invoke(app, ["eval", "run", "--server", url, "--method", "direct", "--data", "q.jsonl"])
    assert result.exit_code == 0, result.output
    (body,) = completion_server.bodies
    assert body["path"] == "/v1/chat/completions" and body["model"] == "tiny"
    (message,) = body["messages"]
    assert message["role"] == "user" and message["content"].endswith("\n\nQuestion: Who?\nAnswer:")
    results = json.loads((tmp_path / "runs" / "evals" / "tiny-direct-q" / "results.json").read_text())
    assert (results["micro"]["em"], results["model"], results["tokenizer"]) == (1.0, "tiny", "none")


@pytest.mark.parametrize("method", ["cot", "rag", "r1"])
def test_methods_of_one_call(method: str, completion_server: CompletionServer, tmp_path: Path) -> None:
    completion_server.saying = lambda body: said("Mira" if method == "rag" else "So <answer> Mira </answer> and more")
    assert evaluated(chat_policy(completion_server), method, tmp_path, **{"Who?": [ORSA]})["em"] == 1.0
    (body,) = completion_server.bodies
    assert "stop" not in body, "it would stop inside a thought, which the endpoint does not show"


THOUGHTS = [
    said("<think>maybe <answer>x</answer></think>\n<answer>Mira</answer>"),
    said("maybe <answer>x</answer>\n</think>\n<answer>Mira</answer>"),
    said("[THINK]maybe <answer>x</answer>[/THINK]<answer>Mira</answer>"),
    *(
        {"message": {"content": "<answer>Mira</answer>", field: "maybe <answer>x</answer>"}, "finish_reason": "stop"}
        for field in ("reasoning_content", "reasoning", "thinking")
    ),
]


@pytest.mark.parametrize("method", ["cot", "r1"])
@pytest.mark.parametrize("choice", THOUGHTS)
def test_a_thought_is_no_answer(
    choice: dict[str, Any], method: str, completion_server: CompletionServer, tmp_path: Path
) -> None:
    completion_server.saying = lambda body: choice
    assert evaluated(chat_policy(completion_server), method, tmp_path)["em"] == 1.0


def test_the_first_line_after_a_thought_is_the_answer(completion_server: CompletionServer, tmp_path: Path) -> None:
    completion_server.saying = lambda body: said("<think>\nIt is not Tarn.\n</think>\n\nMira\nIndeed.")
    assert evaluated(chat_policy(completion_server), "direct", tmp_path)["em"] == 1.0


TWO = [example(0, "Who?", "Mira"), example(1, "Who else?", "Tarn")]


def test_answers_that_are_all_cut_are_refused_with_the_setting(
    completion_server: CompletionServer, tmp_path: Path
) -> None:
    completion_server.saying = lambda body: said(None, "length")
    with pytest.raises(RolloutError, match=r"none of the 2 answers .* cut .*--thinking-tokens"):
        evaluated(chat_policy(completion_server), "direct", tmp_path, TWO)
    assert not list(tmp_path.iterdir()), "the same folder takes the next attempt"
    completion_server.saying = lambda body: said("")
    with pytest.raises(RolloutError, match=r"none of the 2 answers .* empty"):
        evaluated(chat_policy(completion_server), "direct", tmp_path, TWO)
    completion_server.saying = lambda body: said("Mira" if body["max_tokens"] == 132 else None, "length")
    policy = chat_policy(completion_server)
    told = Told()
    evaluation = Evaluation(evaluated_model(policy, local=False), METHODS["direct"], TWO, None, thinking_tokens=100)
    assert evaluation.run(tmp_path, told)["limits"]["thinking_tokens"] == 100
    policy.close()


def test_an_answer_in_the_field_of_thoughts_is_a_failure_of_the_server(
    completion_server: CompletionServer, tmp_path: Path
) -> None:
    """Its parser took a model that had not thought for one that had; the model did nothing wrong."""
    message = {"content": None, "reasoning_content": "Mira"}
    completion_server.saying = lambda body: {"message": message, "finish_reason": "stop"}
    with pytest.raises(RolloutError, match=r"all 2 .*field for thoughts.*reasoning parser"):
        evaluated(chat_policy(completion_server), "direct", tmp_path, TWO)
    assert len(completion_server.bodies) == 2, "it is not asked again"


def test_a_model_that_spends_its_tokens_on_reasoning(completion_server: CompletionServer, tmp_path: Path) -> None:
    completion_server.saying = lambda body: said(None, "length")
    results = evaluated(chat_policy(completion_server), "direct", tmp_path)
    assert (results["truncated"], results["failed"]) == (1.0, 0)


@pytest.mark.parametrize("method", ["search-r1", "ircot", "search-o1"])
def test_methods_that_continue_an_answer_are_refused(
    method: str, completion_server: CompletionServer, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"{method} continues .*Give --server {completion_server.url}/v1/completions"):
        evaluated(chat_policy(completion_server), method, tmp_path)
    assert not completion_server.bodies and not list(tmp_path.iterdir())
