"""`holdfast eval`: refusals in sentences, and one evaluation of a model in a folder."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.tasks.world.model import build_tokenizer

from .conftest import printed as holdfast


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def questions(tmp_path: Path) -> Callable[[str, int], str]:
    def write(name: str, count: int) -> str:
        rows = [{"question": f"What is {i}?", "golden_answers": [str(i)]} for i in range(count)]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return name

    return write


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, random_model: Callable[..., Any]) -> str:
    """A tiny model of random weights, saved."""
    folder = tmp_path_factory.mktemp("model") / "tiny-qwen"
    tokenizer = build_tokenizer(["Question: What is 1?\nAnswer: 2\n"] * 20)
    small = {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 4096}
    random_model("Qwen2", tokenizer, **small).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["eval", "run", "m", "--method", "rags"], "--method rags: there is no such method; did you mean rag?"),
        (["eval", "run", "m", "--data", "q.jsonl"], "no passages are given for --data q.jsonl"),
        (["eval", "run", "m", "--method", "cot", "--data", "gone.jsonl"], "gone.jsonl does not exist"),
        (["eval", "run", "m", "--method", "cot", "--data", "hotpot"], "did you mean 'hotpotqa'?"),
        (["eval", "run", "my.toml"], "with --recipe my.toml"),
        (["eval", "run", "m", "--method", "cot", "--bare"], "--bare has no effect with --method cot"),
        (["eval", "run", "m", "--checkpoint", "best"], "--checkpoint best chooses among the checkpoints of a run"),
        (["eval", "run", "m", "--protocol.max_turn", "3"], "did you mean protocol.max_turns?"),
        (["eval", "run", "m", "--server", "nowhere", "--tokenizer", "none"], "'nowhere'"),
        (
            ["eval", "run", "m", "--data", "q.jsonl", "--retrieval.url", "http://h:1", "--retrieval.corpus", "c"],
            "Leave out",
        ),
        (["eval", "compare", "a", "b"], "a does not exist: give a folder of eval"),
    ],
)
def test_refusals(arguments: list[str], said: str, questions: Callable[[str, int], str], tmp_path: Path) -> None:
    questions("q.jsonl", 2)
    text = holdfast(*arguments, code=2)
    assert said in text
    assert not list(tmp_path.rglob("results.json"))


def test_a_model_is_evaluated_resumed_and_compared(model: str, questions: Callable[[str, int], str]) -> None:
    data = questions("mine.jsonl", 5)
    text = holdfast("eval", "run", model, "--method", "direct", "--data", data, "--limit", "4")
    folder = Path("runs/evals/tiny-qwen-direct-mine")
    assert str(folder / "results.json") in text and "mean of sets" in text
    assert "the fastest in a short trial (1: " in text
    results = json.loads((folder / "results.json").read_text())
    assert results["sets"]["mine"]["questions"] == 4 and results["row"] == "tiny-qwen direct"
    assert "4 of 4 answers exist already" in holdfast(
        "eval", "run", model, "--method", "direct", "--data", data, "--limit", "4"
    )
    refused = holdfast("eval", "run", model, "--method", "direct", "--data", data, code=2)
    assert "contains an evaluation with questions = 4, and this one has 5" in refused
    sampled = ["--limit", "4", "--samples", "2", "--name", "own", "--out", "b", "--sampling.temperature", "0.5"]
    holdfast("eval", "run", model, "--method", "direct", "--data", data, *sampled)
    told = json.loads(Path("b/results.json").read_text())
    assert (told["decoding"], told["samples"], told["row"]) == ("sampled at temperature 0.5", 2, "own")
    text = holdfast("eval", "compare", str(folder), "b")
    assert "mine 4 0.000 0.000" in text and "decoding differs: greedy and sampled at temperature 0.5" in text


def test_a_model_from_elsewhere_is_evaluated_as_a_recipe_says(
    model: str, questions: Callable[[str, int], str], tmp_path: Path
) -> None:
    questions("dev.jsonl", 3)
    (tmp_path / "corpus.jsonl").write_text('{"id": "1", "title": "One", "text": "One is 1."}\n')
    (tmp_path / "recipe.toml").write_text(
        '[data]\ntrain = "dev.jsonl"\ndev = "dev.jsonl"\n[retrieval]\ncorpus = "corpus.jsonl"\n'
        "[protocol]\nmax_turns = 2\nmax_turn_tokens = 8\n"
    )
    holdfast("eval", "run", model, "--recipe", "recipe.toml", "--data", "dev", "--out", "e")
    rows = [json.loads(line) for line in Path("e/questions.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and all(row["calls"] <= 2 for row in rows)
    asked = holdfast("ask", model, "What is 1?", "--recipe", "recipe.toml", "--unset", "protocol.max_turns", "--sample")
    begun = tuple(f"question What is 1? {turn}" for turn in ("says", "thinks", "searches", "answers"))  # it is sampled
    assert asked.startswith(begun) and "all 4 turns were used up" in asked
    assert "my.toml is a recipe" in holdfast("ask", "my.toml", "What is 1?", code=2)
    assert "exists only after training" in holdfast("ask", "What is 1?", "--recipe", "quickstart", code=2)
    assert "no recipe 'quickstat'; did you mean quickstart?" in holdfast(
        "eval", "run", model, "--recipe", "quickstat", code=2
    )


def test_only_one_checkpoint_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Model:
        policy = None

    class Evaluation:
        def __init__(self, model: Model, *_: Any, **__: Any) -> None:
            self.model = model

        def run(self, *_: Any, **__: Any) -> dict[str, Any]:
            return {"sets": {}, "macro": {}}

    opened: list[weakref.ref[Model]] = []

    def open_one(*_: Any, **__: Any) -> Model:
        assert all(former() is None for former in opened)
        model = Model()
        opened.append(weakref.ref(model))
        return model

    monkeypatch.setattr("holdfast.cli.evaluate._checkpoints", lambda *_: ["1", "2", "3"])
    monkeypatch.setattr("holdfast.evaluate.model.open_model", open_one)
    monkeypatch.setattr("holdfast.evaluate.run.Evaluation", Evaluation)
    holdfast("eval", "run", "m", "--checkpoint", "all", "--method", "direct", "--world.people", "60", "--limit", "1")
    assert len(opened) == 3
