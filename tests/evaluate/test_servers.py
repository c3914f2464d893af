"""What a server says of itself: its models, the length of their contexts, and the key that it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.base.errors import ConfigError, ModelError
from holdfast.cli.main import app
from holdfast.evaluate.methods import METHODS
from holdfast.evaluate.model import open_model, settings_of
from holdfast.evaluate.run import Evaluation
from holdfast.evaluate.servers import Server, completions_url, find_server, key_in

from .conftest import TINY, CompletionServer, Shelf, Told, example, serve

LOADED = {"loaded_context_length": 7}


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
        ({}, {"/api/v0/models": {"data": [{"id": "x", "loaded_context_length": 9}, TINY | LOADED]}}, 7),
        ({}, {"/info": {"max_input_tokens": 1024, "max_total_tokens": 2048}}, 2048),
        ({}, {"/props": {"default_generation_settings": {"n_ctx": 4096}}}, 4096),
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
    completion_server.saying = lambda body: {"text": "word " * body["max_tokens"], "finish_reason": "length"}
    model = open_model("tiny", config, run, samples=None, server=server, tokenizer="none")
    told = Told()
    results = Evaluation(model, METHODS["search-r1"], [example(0, "Who?", "Mira")], Shelf({})).run(tmp_path, told)
    model.policy.close()
    (body,) = completion_server.bodies
    assert body["max_tokens"] + len(model.tokenizer(body["prompt"])["input_ids"]) == 150
    assert (results["micro"]["truncated"], results["micro"]["failed"]) == (1.0, 0)
    note, cut = told.notes
    assert cut.startswith("1 of 1 answers were cut")
    assert "has 150 tokens, fewer than protocol.max_total_tokens = 4096" in note
    assert "--protocol.max_total_tokens 150" in note
    assert json.loads((tmp_path / "settings.json").read_text())["protocol"]["max_total_tokens"] == 150


# ---- keys


def test_the_variable_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert key_in(None) is None
    monkeypatch.setenv("OPENAI_API_KEY", "a")
    monkeypatch.setenv("GROQ_KEY", "b ")
    assert (key_in(None), key_in("GROQ_KEY")) == ("a", "b")
    with pytest.raises(ConfigError, match="--api-key-env NO_SUCH: this environment variable is not set"):
        key_in("NO_SUCH")


def test_an_address_with_a_password_is_refused() -> None:
    with pytest.raises(ConfigError, match="the address of a server"):
        completions_url("http://me:hidden@h:8000")


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
    with pytest.raises(ConfigError, match=r"MODEL is required.* Give MODEL.* Or give --tokenizer"):
        open_model(None, config, run, samples=None, server=server)
    open_model(None, config, run, samples=None, server=server, tokenizer="none").policy.close()
    with pytest.raises(ModelError, match=r"the tokenizer 'named' cannot be loaded"):
        open_model("named", config, run, samples=None, server=server)
