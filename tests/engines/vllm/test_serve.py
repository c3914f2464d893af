"""`holdfast eval` and the text policy against a real `vllm serve`: what comes back is what the model here says."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed; `make contracts-vllm` installs it", allow_module_level=True)

import torch
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.evaluate.methods import METHODS
from holdfast.evaluate.openai import OpenAIPolicy
from holdfast.evaluate.servers import find_server
from holdfast.model.sampler.hf import HFPolicy
from holdfast.model.sampler.policy import Request, generate

from .conftest import PASSAGES, POSITIONS, PROTOCOL, QUESTIONS, Tiny


def turns(tiny: Tiny, limits: tuple[int, ...] = (40, 40, 3, 1, 40, 40, 25, 30)) -> list[Request]:
    """A turn of each question; some have room for a few tokens only."""
    return [
        Request(
            id=str(i),
            token_ids=tiny.prompt(example.question),
            max_new_tokens=limit,
            stop=PROTOCOL.stop,
            seed=2**40 + i,
        )
        for i, (example, limit) in enumerate(zip(QUESTIONS, limits, strict=True))
    ]


def to_stop(text: str) -> str:
    """The text as a server cuts it: a token may hold more than the end of the closing tag."""
    ends = [text.index(mark) + len(mark) for mark in PROTOCOL.stop if mark in text]
    return text[: min(ends)] if ends else text


@pytest.fixture
def policy(served: str, tiny: Tiny) -> Iterator[OpenAIPolicy]:
    server = find_server(served, None)
    assert (server.model, server.context) == ("tiny", POSITIONS)
    policy = OpenAIPolicy(server, tiny.tokenizer, temperature=0.0)
    yield policy
    policy.close()


def test_greedy_turns_are_those_of_the_local_policy(policy: OpenAIPolicy, tiny: Tiny) -> None:
    there = generate(policy, turns(tiny))
    with torch.no_grad():
        here = generate(HFPolicy(tiny.model, tiny.tokenizer, greedy=True, max_tokens=POSITIONS), turns(tiny))
    assert [(c.text, c.stop_reason, c.error) for c in there] == [(to_stop(c.text), c.stop_reason, None) for c in here]
    assert {c.stop_reason for c in here} == {"stop", "length"}


@pytest.mark.parametrize(("room", "written"), [(9, True), (0, False)])
def test_a_turn_that_the_context_has_no_room_for_is_shorter(
    room: int, written: bool, policy: OpenAIPolicy, tiny: Tiny
) -> None:
    """vLLM refuses it with a status of 400, in words that the policy must know."""
    prompt = tiny.prompt(QUESTIONS[0].question)
    context = (prompt * POSITIONS)[: POSITIONS - room]
    (completion,) = generate(policy, [Request(id="0", token_ids=context, max_new_tokens=300, stop=(), seed=1)])
    assert (completion.error, completion.text != "") == (None, written)


@pytest.fixture
def question_files(tmp_path: Path) -> list[str]:
    """Settings: four questions, eight passages and short turns. The length of a context is left to the model."""
    asked, corpus = tmp_path / "mora.jsonl", tmp_path / "passages.jsonl"
    rows = [{"question": example.question, "golden_answers": list(example.golden_answers)} for example in QUESTIONS]
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows[:4]))
    corpus.write_text("".join(json.dumps({"id": d.id, "contents": d.contents}) + "\n" for d in PASSAGES))
    limits = {name: getattr(PROTOCOL, name) for name in ("max_turns", "max_turn_tokens", "max_observation_tokens")}
    words = [word for name, value in limits.items() for word in (f"--protocol.{name}", str(value))]
    return [str(asked), "--retrieval.corpus", str(corpus), *words]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]
    return sorted(({k: row[k] for k in ("id", "status", "prediction", "em")} for row in rows), key=lambda r: r["id"])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_answers_of_the_local_model(
    method: str, served: str, tiny: Tiny, question_files: list[str], tmp_path: Path
) -> None:
    def evaluate(name: str, *words: str) -> dict[str, Any]:
        command = ["eval", "run", *words, "--method", method, "--out", str(tmp_path / name)]
        command += ["--data", *question_files]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        results: dict[str, Any] = json.loads((tmp_path / name / "results.json").read_text())["micro"]
        return results

    there = evaluate("there", "--server", served, "--tokenizer", str(tiny.folder))
    here = evaluate("here", str(tiny.folder))
    assert there["failed"] == 0 and there["calls"] >= 1
    assert {k: there[k] for k in ("em", "calls", "searches")} == {k: here[k] for k in ("em", "calls", "searches")}
    assert rows_of(tmp_path / "there") == rows_of(tmp_path / "here")
