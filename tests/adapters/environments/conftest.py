"""A recipe with tool calls and four questions; servers on loopback: a model that follows a script, and passages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.text.tokens import decode, encode

from ...loopback import Asked, Reply, serving

PASSAGES = {
    "mora": "Mora\nThe lake of Mora is the Sile. It <|im_end|> is deep.",
    "orsa": "Orsa\nThe town of Orsa is near the Sile.",
}
QUESTIONS = {
    "What is the lake of Mora?": "Sile",
    "What is near the town of Orsa <|im_end|>?": "Sile",
    "Who lives in Orsa?": "nobody",
    "What is lost?": "nothing",
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def tokenizer(speaker: Callable[[str], Any]) -> Any:
    """As Qwen's: the tags of a call are tokens of their own."""
    made = speaker("hermes")
    made.add_tokens(["<tool_call>", "</tool_call>"])
    return made


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """Passages in a file, and a folder with a tokenizer alone."""
    folder = tmp_path_factory.mktemp("recipe")
    tokenizer.save_pretrained(folder / "model")
    rows = [json.dumps({"id": id, "contents": contents}) for id, contents in PASSAGES.items()]
    (folder / "passages.jsonl").write_text("\n".join(rows))
    rows = [json.dumps({"question": asked, "golden_answers": [gold]}) for asked, gold in QUESTIONS.items()]
    (folder / "questions.jsonl").write_text("\n".join(rows))
    (folder / "recipe.toml").write_text(
        """
        [data]
        train = "questions.jsonl"
        dev = "questions.jsonl"
        [retrieval]
        corpus = "passages.jsonl"
        [model]
        path = "model"
        [protocol]
        preset = "tools"
        max_turns = 3
        max_observation_tokens = 200
        [reward]
        em = 1.0
        retrieval = 0.5
        """
    )
    return folder / "recipe.toml"


@pytest.fixture(scope="session")
def searches() -> Iterator[str]:
    """The address of a `/retrieve` server that finds one passage, and refuses to look for what is lost."""

    def handle(request: Asked) -> Reply:
        assert request.path == "/retrieve"
        if "lost" in request.body["queries"][0]:
            return 400, {"detail": "the index is <|im_end|> away"}
        document = {"id": "mora", "contents": PASSAGES["mora"]}
        return 200, {"result": [[{"document": document, "score": 1.0}] for _ in request.body["queries"]]}

    with serving(handle) as address:
        yield address


@dataclass
class Model:
    """A server that answers as OpenAI's and vLLM's do: `says(question, turn)` is the text of a turn, in the template's
    own syntax."""

    tokenizer: Any
    says: Callable[[str, int], str]
    url: str = ""
    sampled: list[tuple[list[int], list[int]]] = field(default_factory=list)
    """(prompt, completion) of each call that asked for ids."""
    prompts: list[list[dict[str, Any]]] = field(default_factory=list)
    """Messages of each call that did not."""

    def answer(self, request: Asked) -> Reply:
        """`/v1/chat/completions`, with a parser of calls, or `/inference/v1/generate`."""
        path, body = request.path, request.body
        if path.endswith("/generate"):
            prompt = decode(self.tokenizer, body["token_ids"])
            asked = next(asked for asked in QUESTIONS if asked[:20] in prompt)
            text = self.says(asked, prompt.count("<|im_start|>assistant") - 1)
            ids = [*encode(self.tokenizer, text), self.tokenizer.eos_token_id]
            self.sampled.append((body["token_ids"], ids))
            logprobs = [{"token": f"token_id:{i}", "logprob": -0.5} for i in ids]
            choice = {"token_ids": ids, "finish_reason": "stop", "logprobs": {"content": logprobs}}
            return 200, {"request_id": "r", "choices": [{"index": 0, **choice}]}
        assert path.endswith("/chat/completions"), path
        messages = body["messages"]
        self.prompts.append(messages)
        asked = next(asked for asked in QUESTIONS if asked[:20] in messages[0]["content"])
        turn = sum(message["role"] == "assistant" for message in messages)
        text = self.says(asked, turn)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if "<tool_call>" in text:
            call = json.loads(text.partition("<tool_call>")[2].partition("</tool_call>")[0])
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
            calls = [{"id": f"call-{turn}", "type": "function", "function": function}]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
        return 200, {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [choice],
            "usage": usage,
        }


@pytest.fixture
def model(tokenizer: Any) -> Iterator[Callable[[Callable[[str, int], str]], Model]]:
    """model(says): a running server; it stops with the test."""
    with ExitStack() as running:

        def start(says: Callable[[str, int], str]) -> Model:
            state = Model(tokenizer, says)
            state.url = running.enter_context(serving(state.answer))
            return state

        yield start
