"""The folder in which the commands of the pages run: a tiny stand-in for everything that they name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from holdfast.base.jsonl import write_jsonl
from holdfast.cli.main import app

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "tests/fixtures/logs"
MODELS = ("Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct", "model")
RUNS = ("a", "b", "collapse", "factbook", "my")
SMALL = """
[world]
people = 60
train_questions = 40
dev_questions = 6
test_questions = 5
model = { hidden = 32, layers = 2, heads = 2 }
scripts = { count = 100, malformed = 0.0 }

[protocol]
max_turns = 3
max_turn_tokens = 24
max_observation_tokens = 60
max_total_tokens = 480

[warm_start]
steps = 20
batch_size = 16

[reward]
f1 = 1.0
format = 0.5

[train]
steps = 2
questions = 4
group_size = 4

[eval]
every = 1
questions = 4

[checkpoint]
every = 1
"""
MINE = """
[data]
train = "train.jsonl"

[retrieval]
corpus = "corpus.jsonl"

[model]
path = "Qwen/Qwen2.5-3B-Instruct"

[protocol]
max_turns = 2
max_turn_tokens = 16

[train]
questions = 40
group_size = 8
"""


def holdfast(*words: str, stdin: str | None = None) -> Any:
    """What the command printed, and its exit code."""
    return CliRunner().invoke(app, list(words), input=stdin)


def build(folder: Path, speaker: Callable[[str], Any], random_model: Callable[..., Any]) -> None:
    """Fill the current folder."""
    for name in ("Makefile", "benchmarks", "constraints.txt", "examples", "pyproject.toml", "src", "tests"):
        (folder / name).symlink_to(ROOT / name)
    models(folder, speaker, random_model)
    data(folder)
    logs(folder)
    (folder / "small.toml").write_text('extends = "quickstart"\n' + SMALL)
    (folder / "my.toml").write_text(MINE)
    (folder / "recipe.toml").write_text(MINE)
    made = holdfast("train", "small.toml", "--run.name", "quickstart")
    assert made.exit_code == 0, made.output
    for name in RUNS:
        shutil.copytree(folder / "runs/quickstart", folder / "runs" / name)
    steps = folder / "runs/collapse/checkpoints"
    shutil.copytree(steps / "step-000002", steps / "step-000060")
    for name in ("a", "b", "failing", "fixed"):
        made = holdfast("eval", "run", "runs/quickstart", "--limit", "2", "--out", f"runs/evals/{name}", "--name", name)
        assert made.exit_code == 0, made.output


def models(folder: Path, speaker: Callable[[str], Any], random_model: Callable[..., Any]) -> None:
    """One model of random weights, under every name that a page has."""
    tokenizer = speaker("hermes")
    first, *others = (folder / name for name in MODELS)
    random_model("Qwen2", tokenizer, max_position_embeddings=8192).save_pretrained(first)
    tokenizer.save_pretrained(first)
    for other in others:
        other.parent.mkdir(exist_ok=True)
        shutil.copytree(first, other)


def data(folder: Path) -> None:
    """Questions, passages as a file and as a folder, and demonstrations."""
    passages = [{"id": str(i), "title": f"Place {i}", "text": f"Place {i} has {i} lakes."} for i in range(40)]
    write_jsonl(folder / "corpus.jsonl", passages)
    (folder / "docs").mkdir()
    for passage in passages:
        (folder / f"docs/{passage['id']}.md").write_text(f"# {passage['title']}\n\n{passage['text']}\n")
    questions = [{"question": f"How many lakes has Place {i}?", "golden_answers": [str(i)]} for i in range(60)]
    for name in ("train.jsonl", "questions.jsonl"):
        write_jsonl(folder / name, questions[:56])
    for name in ("dev.jsonl", "test.jsonl"):
        write_jsonl(folder / name, questions[56:])
    converted = holdfast("data", "convert", "train.jsonl", "train.parquet")
    assert converted.exit_code == 0, converted.output
    turns = [{"text": "<answer> 1 </answer>", "observation": ""}]
    write_jsonl(folder / "demonstrations.jsonl", [{"question": q["question"], "turns": turns} for q in questions[:8]])


def logs(folder: Path) -> None:
    """Logs of other trainers, under the names that pages give them."""
    shutil.copy(LOGS / "verl-console.log", folder / "train.log")
    shutil.copy(LOGS / "trl-console.log", folder / "fixed.log")
    rows = "".join(f"{step},{step / 100},{0.01}\n" for step in range(1, 30))
    (folder / "train.csv").write_text("step,mean,div\n" + rows)
    (folder / "train.py").write_text("print(open('train.log').read())\n")
    shutil.copytree(LOGS / "trl-stock", folder / "output")
