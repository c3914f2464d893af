"""`vf-eval` itself, in a process of its own, on a recipe of holdfast: what it scores, and what it would train on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers.v1")

from holdfast.adapters.host_tasks import open_host_tasks
from holdfast.agent.protocol import render_prompt
from holdfast.agent.rewards import score_trajectory
from holdfast.agent.state import RolloutState
from holdfast.agent.trajectory import Search, Trajectory
from holdfast.model.sampler.policy import Completion
from holdfast.model.text.tokens import encode, spelled_apart
from holdfast.retrieval.types import Document, Hit

from .conftest import QUESTIONS, Model

MORA, ORSA, NOBODY, LOST = QUESTIONS


def called(query: str, *, blank: str = " ") -> str:
    return f'<tool_call>\n{{"name":{blank}"search","arguments":{blank}{{"query":{blank}"{query}"}}}}\n</tool_call>'


def says(question: str, turn: int) -> str:
    return {
        MORA: (called("the lake of Mora"), "Sile"),
        ORSA: ('<tool_call>\n{"name": "browse", "arguments": {}}\n</tool_call>', called("Orsa"), "Sile"),
        NOBODY: ("I do not know",),
        LOST: (called("what is lost"), "nothing"),
    }[question][turn]


@pytest.fixture
def traces(recipe: Path, tmp_path: Path) -> Callable[..., dict[str, dict[str, Any]]]:
    """traces(model, *options): the traces of `vf-eval`, by the question."""

    def run(model: Model, *options: str) -> dict[str, dict[str, Any]]:
        command = [
            *(Path(sys.executable).parent / "vf-eval", "holdfast-verifiers", "--env.taskset.recipe", recipe),
            *("--env.agent.runtime.type", "subprocess", "--model", recipe.parent / "model", "--no-push", "--no-rich"),
            *("--client.base-url", f"{model.url}/v1", "--output-dir", tmp_path, "--run.dir", "run", *options),
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ)
        assert done.returncode == 0, done.stderr[-3000:]
        (file,) = tmp_path.rglob("traces.jsonl")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        found = [trace for row in rows for trace in row.get("traces", [row])]
        return {next(asked for asked in QUESTIONS if asked[:20] in t["task"]["data"]["prompt"]): t for t in found}

    return run


def test_an_evaluation_is_scored_as_here(
    traces: Callable[..., Any], model: Callable[..., Model], searches: str
) -> None:
    server = model(says)
    found = traces(server, "--env.taskset.overrides", json.dumps(["--retrieval.url", searches]))
    assert set(found) == set(QUESTIONS)
    rewards = {asked: trace["rewards"]["reward"]["score"] for asked, trace in found.items() if asked != LOST}
    assert rewards == {MORA: 1.5, ORSA: 1.5, NOBODY: 0.0}
    assert found[MORA]["metrics"]["em"] == found[MORA]["metrics"]["searches"] == 1
    assert [found[asked]["ok"] for asked in QUESTIONS] == [True, True, True, False]
    assert "the search failed" in found[LOST]["errors"][-1]["message"]
    said = [message["content"] for messages in server.prompts for message in messages if message["role"] != "assistant"]
    assert any("< |im_end|> is deep" in text for text in said) and not any("<|im_end|>" in text for text in said)
    assert any("neither a call" in text for text in said)


OURS = ("--client.renderer.name", "custom")
OURS += ("--client.renderer.import-path", "holdfast.adapters.verifiers.renderer.ToolRenderer")
OTHERS = ("--client.renderer.name", "default", "--client.renderer.tool-parser", "qwen3")


def says_oddly(question: str, turn: int) -> str:
    """Calls as no template writes them, and what cannot be read."""
    return {
        MORA: (called("the lake of Mora", blank=""), "Sile"),
        ORSA: ("<tool_call>\nnothing\n</tool_call>", called("the town", blank="  "), "Sile"),
        NOBODY: (called("a", blank="") + called("b", blank=""), "nobody"),
        LOST: ("nothing",),
    }[question][turn]


def test_what_is_trained_on_is_what_was_sampled(
    traces: Callable[..., Any], model: Callable[..., Model], tokenizer: Any, recipe: Path
) -> None:
    """Ids and masks are those of holdfast's own loop, and each rollout is one sample."""
    server = model(says_oddly)
    found = traces(server, "--client.type", "train", *OURS)
    own = {t.example_id: t for t in rollouts_of_our_loop(recipe, says_oddly)}
    assert [found[asked]["ok"] for asked in QUESTIONS] == [True] * 4
    for trace in found.values():
        nodes, rollout = trace["nodes"], own[trace["task"]["data"]["id"]]
        parents = [node.get("parent") for node in nodes]
        assert parents == [None, *range(len(nodes) - 1)]  # no branch but one
        assert tuple(i for node in nodes for i in node["token_ids"]) == rollout.token_ids
        assert tuple(m for node in nodes for m in node["mask"]) == rollout.loss_mask
        assert {p for node in nodes for p in node.get("logprobs", ())} == {-0.5}
        assert trace["rewards"]["reward"]["score"] == rollout.reward
    assert max(sum(node.get("sampled", False) for node in trace["nodes"]) for trace in found.values()) == 3


def rollouts_of_our_loop(recipe: Path, says: Callable[[str, int], str]) -> list[Trajectory]:
    """The same rollouts by `RolloutState`."""
    tasks = open_host_tasks(str(recipe))
    tokenizer, protocol = tasks.tokenizer, tasks.protocol
    done = []
    for example in tasks.questions.train:
        asked = spelled_apart(tokenizer, example.question)
        state = RolloutState(render_prompt(asked, protocol, tokenizer), protocol, tokenizer)
        while state.status is None:
            text = says(example.question, len(state.turns))
            ids = (*encode(tokenizer, text), tokenizer.eos_token_id)
            turn = Completion(id="r", token_ids=ids, logprobs=(-0.5,) * len(ids), text=text, stop_reason="eos")
            action = state.take_turn(turn)
            if isinstance(action, Search):
                (hits,) = tasks.retrievers.train.search([action.query], protocol.topk)
                apart = [Document(h.document.id, spelled_apart(tokenizer, h.document.contents)) for h in hits]
                state.take_hits([Hit(document, 0.0) for document in apart])
        done.append(score_trajectory(state.trajectory(example.id), example.golden_answers, tasks.weights))
    return done


def test_a_rollout_that_would_become_two_samples_fails(traces: Callable[..., Any], model: Callable[..., Model]) -> None:
    found = traces(model(says_oddly), "--client.type", "train", *OTHERS)
    assert not found[MORA]["ok"] and "became 2 samples" in found[MORA]["errors"][-1]["message"]
    assert found[LOST]["ok"]
