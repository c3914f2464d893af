"""A scripted OpenAI-compatible server: what is sent, what may come back, and what is made of a server that fails."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.agent.tools import NATIVE
from holdfast.base.answers import Answer
from holdfast.base.errors import ConfigError, ModelError, RolloutError
from holdfast.cli.main import app
from holdfast.evaluate.methods import METHODS
from holdfast.evaluate.model import open_model, refuse_unfit, settings_of
from holdfast.evaluate.openai import OpenAIPolicy, WordTokenizer, parse_completion
from holdfast.evaluate.run import Evaluation
from holdfast.evaluate.servers import Server, completions_url, find_server, key_in
from holdfast.model.policy import Request, generate

from ..waiting import wait_for
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
        parse_completion(Answer("http://h", 200, body, secret="hush"), request(words))


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


def test_a_server_that_is_down_ends_the_evaluation(
    completion_server: CompletionServer, words: Any, tmp_path: Path
) -> None:
    completion_server.replies = [(500, b"no")] * 100
    policy = policy_of(completion_server, words, retries=0)
    questions = [example(i, "Who?", "Mira") for i in range(9)]
    with pytest.raises(RolloutError, match=r"all 9 questions of a batch failed.* answered 500: no"):
        Evaluation(evaluated_model(policy, local=False), METHODS["direct"], questions, Shelf({})).run(tmp_path, Told())
    policy.close()


def test_a_stop_does_not_wait_for_a_server_that_hangs(completion_server: CompletionServer, words: Any) -> None:
    completion_server.hold = threading.Event()
    completion_server.saying = lambda body: choice("late")
    policy = policy_of(completion_server, words, concurrency=2)
    policy.submit([request(words, id=str(i)) for i in range(6)])
    wait_for(lambda: len(completion_server.bodies) == 2, minutes=1)
    started = time.monotonic()
    policy.release([str(i) for i in range(6)])
    policy.close()
    assert time.monotonic() - started < 5, "closing waits for the calls"
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


def test_an_address_with_a_password_is_refused() -> None:
    with pytest.raises(ConfigError, match="the address of a server"):
        completions_url("http://me:hidden@h:8000")


# ---- what a server says of itself


TINY = {"id": "tiny", "object": "model"}


def serve(server: CompletionServer, *entries: dict[str, Any], **more: Any) -> None:
    server.pages["/v1/models"] = (200, {"object": "list", "data": list(entries), **more})


# ---- models and contexts


@pytest.mark.parametrize(
    ("entry", "pages", "context"),
    [
        ({"max_model_len": 1024}, {}, 1024),
        ({"meta": {"n_ctx": 2048, "n_ctx_train": 32768}}, {}, 2048),
        ({"context_length": 131072}, {}, 131072),
        ({"context_window": 8192}, {}, 8192),
        ({"meta": {"n_ctx_train": 32768}}, {}, None),
        ({"max_model_len": 0}, {}, None),
        ({}, {}, None),
        (
            {},
            {
                "/api/v0/models": {
                    "data": [{"id": "x", "loaded_context_length": 9}, TINY | {"loaded_context_length": 7}]
                }
            },
            7,
        ),
        ({}, {"/info": {"max_input_tokens": 1024, "max_total_tokens": 2048}}, 2048),
        ({}, {"/props": {"default_generation_settings": {"n_ctx": 4096}}}, 4096),
    ],
    ids=[
        "vllm",
        "llama.cpp",
        "openrouter",
        "groq",
        "trained-on",
        "zero",
        "openai",
        "lm-studio",
        "tgi",
        "llama.cpp-old",
    ],
)
def test_the_length_of_a_context(
    entry: dict[str, Any], pages: dict[str, Any], context: int | None, completion_server: CompletionServer
) -> None:
    serve(completion_server, TINY | entry)
    completion_server.pages |= {path: (200, page) for path, page in pages.items()}
    server = find_server(completion_server.url, "tiny")
    assert (server.model, server.context) == ("tiny", context)
    assert server.url == f"{completion_server.url}/v1/completions" and not server.is_chat


def test_one_model_needs_no_name(completion_server: CompletionServer) -> None:
    serve(completion_server, TINY | {"max_model_len": 64})
    server = find_server(f"{completion_server.url}/v1/chat/completions", None)
    assert (server.model, server.context, server.is_chat) == ("tiny", 64, True)


@pytest.mark.parametrize(
    ("entries", "model", "sentence"),
    [
        ([TINY], "tin", "it does not serve 'tin' but tiny; give that name"),
        ([TINY], "Qwen/Qwen2.5-3B", "it does not serve 'Qwen/Qwen2.5-3B' but tiny; give that name"),
        ([TINY, {"id": "other"}], None, "it serves tiny, other; give MODEL, one of these names"),
        ([{"id": f"m-{i}"} for i in range(30)], "zz", "but m-0, m-1, m-2, m-3, m-4, m-5, m-6, m-7 and 22 more; give"),
    ],
)
def test_a_model_that_the_server_lacks(
    entries: list[dict[str, Any]], model: str | None, sentence: str, completion_server: CompletionServer
) -> None:
    serve(completion_server, *entries)
    with pytest.raises(ConfigError, match=r"--server http://127.0.0.1:\d+: it ") as raised:
        find_server(completion_server.url, model)
    assert sentence in str(raised.value)


def test_a_context_that_is_shorter_than_the_protocols(completion_server: CompletionServer, tmp_path: Path) -> None:
    """The request asks for what fits, the answer counts as cut, and one note says so."""
    serve(completion_server, TINY | {"max_model_len": 150})
    server = find_server(completion_server.url, None)
    config, run = settings_of("tiny", [], [])
    completion_server.saying = lambda body: choice("word " * body["max_tokens"], "length")
    model = open_model("tiny", config, run, samples=None, server=server, tokenizer="none")
    told = Told()
    results = Evaluation(model, METHODS["search-r1"], [example(0, "Who?", "Mira")], Shelf({})).run(tmp_path, told)
    model.policy.close()
    (body,) = completion_server.bodies
    assert body["max_tokens"] + len(model.tokenizer(body["prompt"])["input_ids"]) == 150
    assert (results["micro"]["truncated"], results["micro"]["failed"]) == (1.0, 0)
    (note,) = told.notes
    assert "has 150 tokens, fewer than protocol.max_total_tokens = 4096" in note
    assert "--protocol.max_total_tokens 150" in note
    assert json.loads((tmp_path / "settings.json").read_text())["protocol"]["max_total_tokens"] == 150


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
def test_a_turn_is_shortened_until_it_fits(message: str, completion_server: CompletionServer, words: Any) -> None:
    completion_server.saying = lambda body: choice("cut", "length")
    completion_server.replies = [(400, message.encode())] * 2
    policy = policy_of(completion_server, words)
    (completion,) = generate(policy, [request(words)])
    policy.close()
    assert [body["max_tokens"] for body in completion_server.bodies] == [16, 8, 4]
    assert (completion.text, completion.stop_reason, completion.error) == ("cut", "length", None)


@pytest.mark.parametrize("method", ["search-r1", "direct", "cot", "ircot", "search-o1"])
def test_a_context_without_any_room_is_cut_and_not_failed(
    method: str, completion_server: CompletionServer, words: Any, tmp_path: Path
) -> None:
    completion_server.replies = [(400, FULL[0].encode())] * 100
    policy = policy_of(completion_server, words)
    results = Evaluation(evaluated_model(policy, local=False), METHODS[method], [example(0, "Q?", "a")], Shelf({})).run(
        tmp_path, Told()
    )
    policy.close()
    assert (results["micro"]["truncated"], results["micro"]["failed"]) == (1.0, 0)


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


# ---- keys


def test_the_variable_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert key_in(None) is None
    monkeypatch.setenv("OPENAI_API_KEY", "a")
    monkeypatch.setenv("GROQ_KEY", "b ")
    assert (key_in(None), key_in("GROQ_KEY")) == ("a", "b")
    with pytest.raises(ConfigError, match="--api-key-env NO_SUCH: this environment variable is not set"):
        key_in("NO_SUCH")


def test_a_server_that_requires_a_key(completion_server: CompletionServer) -> None:
    completion_server.pages["/v1/models"] = (401, {"error": "Unauthorized"})
    with pytest.raises(ConfigError, match="requires an API key; put it into the environment variable OPENAI_API_KEY"):
        find_server(completion_server.url, "tiny")
    assert find_server(completion_server.url, "tiny", api_key="k").model == "tiny", "the first call decides"


def test_a_key_is_neither_shown_nor_stored(
    completion_server: CompletionServer, words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(url=completions_url(completion_server.url), model="m", api_key="sk-secret")
    assert "sk-secret" not in repr(server)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINE", "sk-secret")
    (tmp_path / "q.jsonl").write_text('{"question": "Who?", "golden_answers": ["Mira"]}\n')
    completion_server.replies = [(401, b"Incorrect API key provided: sk-secret")]
    arguments = ["eval", "run", "m", "--server", completion_server.url, "--api-key-env", "MINE", "--tokenizer", "none"]
    result = CliRunner().invoke(app, [*arguments, "--method", "direct", "--data", "q.jsonl"])
    assert completion_server.headers[0]["Authorization"] == "Bearer sk-secret"
    assert "1 answer(s) failed" in result.output, result.output
    stored = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "Incorrect API key provided: ***. Check the API key" in stored
    assert "sk-secret" not in stored + result.output + str(result.exception)


@pytest.mark.parametrize("entry", [{"id": "sk-secret"}, {"id": "m", "root": "sk-secret"}, {"id": "sk-secret", "x": 1}])
def test_no_key_in_what_is_said_of_models(entry: dict[str, Any], completion_server: CompletionServer) -> None:
    serve(completion_server, entry)
    with pytest.raises(ConfigError) as raised:
        find_server(completion_server.url, "no-such-model", api_key="sk-secret")
    assert "sk-secret" not in str(raised.value)


def test_a_server_does_not_choose_the_tokenizer(completion_server: CompletionServer, tmp_path: Path) -> None:
    """Neither by the name of its model nor by the folder behind it: that tokenizer's code would run."""
    serve(completion_server, {"id": str(tmp_path), "root": str(tmp_path)})
    server = find_server(completion_server.url, None)
    config, run = settings_of(None, ["--model.trust_remote_code", "true"], [])
    with pytest.raises(ConfigError, match=r"MODEL is missing.* Give MODEL.* or --tokenizer"):
        open_model(None, config, run, samples=None, server=server)
    open_model(None, config, run, samples=None, server=server, tokenizer="none").policy.close()
    with pytest.raises(ModelError, match=r"the tokenizer 'named' cannot be loaded"):
        open_model("named", config, run, samples=None, server=server)


# ---- patience


def test_retry_after_is_waited_for(completion_server: CompletionServer, words: Any) -> None:
    completion_server.saying = lambda body: choice("Mira")
    completion_server.replies, completion_server.retry_after = [(429, b"slow down")] * 2, "0.4"
    policy = policy_of(completion_server, words, retries=0, patience=30)
    started = time.monotonic()
    (completion,) = generate(policy, [request(words)])
    policy.close()
    assert completion.text == "Mira" and time.monotonic() - started >= 0.8


@pytest.mark.parametrize(
    ("retry_after", "body", "sentence"),
    [
        ("3600", b"daily limit", "It asks to wait 3600 seconds; repeat the command then"),
        (None, b'{"error": {"code": "insufficient_quota"}}', "insufficient_quota"),
    ],
)
def test_what_waiting_does_not_help(
    retry_after: str | None, body: bytes, sentence: str, completion_server: CompletionServer, words: Any
) -> None:
    completion_server.replies, completion_server.retry_after = [(429, body)] * 9, retry_after
    policy = policy_of(completion_server, words, patience=60)
    (completion,) = generate(policy, [request(words)])
    policy.close()
    assert completion.error is not None and sentence in completion.error
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
    assert any("it is tried for another 30 seconds" in record.message for record in caplog.records)


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
    completion_server.saying = lambda body: said("Mira" if method == "rag" else "So <answer> Mira")
    policy = chat_policy(completion_server)
    model = evaluated_model(policy, local=False)
    question = example(0, "Who?", "Mira")
    results = Evaluation(model, METHODS[method], [question], Shelf({question.question: [ORSA]})).run(tmp_path, Told())
    policy.close()
    assert results["micro"]["em"] == 1.0 and len(completion_server.bodies) == 1


def test_a_model_that_spends_its_tokens_on_reasoning(completion_server: CompletionServer, tmp_path: Path) -> None:
    completion_server.saying = lambda body: said(None, "length")
    policy = chat_policy(completion_server)
    results = Evaluation(
        evaluated_model(policy, local=False), METHODS["direct"], [example(0, "Who?", "Mira")], None
    ).run(tmp_path, Told())
    policy.close()
    assert (results["micro"]["truncated"], results["micro"]["failed"]) == (1.0, 0)


@pytest.mark.parametrize("method", ["search-r1", "ircot", "search-o1"])
def test_methods_that_continue_an_answer_are_refused(
    method: str, completion_server: CompletionServer, tmp_path: Path
) -> None:
    policy = chat_policy(completion_server)
    evaluation = Evaluation(evaluated_model(policy, local=False), METHODS[method], [example(0, "Q?", "a")], Shelf({}))
    with pytest.raises(ConfigError, match=f"{method} continues .*Give --server {completion_server.url}/v1/completions"):
        evaluation.run(tmp_path, Told())
    policy.close()
    assert not completion_server.bodies and not list(tmp_path.iterdir())


def test_a_completions_address_of_a_chat_server(completion_server: CompletionServer, words: Any) -> None:
    completion_server.replies = [(404, b"This is a chat model and not supported in the v1/completions endpoint.")]
    policy = policy_of(completion_server, words)
    (completion,) = generate(policy, [request(words)])
    policy.close()
    assert completion.error is not None
    assert completion.error.endswith(f"give --server {completion_server.url}/v1/chat/completions")
