"""`holdfast init`: from documents, questions and a model to a recipe that fits them."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.recipe import load

Run = Callable[..., Any]
TEMPLATE = Path(__file__).parents[2] / "examples" / "chatml_tools.jinja"
NAMES = [
    f"{first}{second}"
    for first in ("Or", "Mo", "Li", "Te", "Vas")
    for second in ("sa", "ra", "nd", "kk", "lo", "mi", "ster", "by")
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learn_tokenizer: Any, random_model: Any) -> Path:
    """A folder with documents, forty questions, and a model whose template has tools."""
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    texts = [f"The bridge of {name} was opened by Mayor {name[::-1]}." for name in NAMES]
    for name, text in zip(NAMES, texts, strict=True):
        Path(f"docs/{name}.md").write_text(f"# {name}\n\n{text} " + "It is long. " * (name == "Orsa"))
    with open("questions.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "answer"])
        rows.writerows([f"Who opened the bridge of {name}?", f"Mayor {name[::-1]}"] for name in NAMES)
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = learn_tokenizer(texts, 600, marks, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE.read_text()
    tokenizer.save_pretrained("model")
    random_model("Qwen2", tokenizer, max_position_embeddings=2048).save_pretrained("model")
    return tmp_path


def test_a_recipe_that_can_be_trained_and_fits(project: Path, holdfast: Run) -> None:
    said = holdfast("init", "docs", "questions.csv", "--model", "model", "--out", "my").stdout
    config = load(Path("my/recipe.toml"))
    train, dev, demonstrations = (
        [json.loads(line) for line in Path(f"my/{name}.jsonl").read_text().splitlines()]
        for name in ("train", "dev", "demonstrations")
    )
    assert (len(train), len(dev)) == (32, 8)
    assert not {row["question"] for row in train} & {row["question"] for row in dev}
    assert {row["question"] for row in demonstrations} <= {row["question"] for row in train}
    assert config.reward.em == 1.0 and not config.reward.custom
    assert config.protocol.preset == "tools" and config.protocol.topk == 1 and config.warm_start.steps
    assert "8 dev questions" in said and f"{len(demonstrations)} of 32 questions became demonstrations" in said
    assert "<|im_start|>user\nWho opened the bridge of " in said
    assert "passages are too long" not in said or re.search(r"\b[12] of 40 passages are too long", said)
    assert "my." in holdfast("train", "my/recipe.toml", "--dry-run").stdout


def test_a_model_without_tools_gets_tags(project: Path, holdfast: Run) -> None:
    path = Path("model/chat_template.jinja")
    path.unlink()
    holdfast("init", "docs", "questions.csv", "--model", "model", "--out", "my")
    assert load(Path("my/recipe.toml")).protocol.preset == "clean"


@pytest.mark.parametrize(("end", "noted"), [("<think>\n", True), ("<think>\n\n</think>\n\n", False)])
def test_a_template_that_opens_a_thought_is_told_with_the_tokens_of_a_turn(
    end: str, noted: bool, project: Path, holdfast: Run
) -> None:
    with Path("model/chat_template.jinja").open("a") as file:
        file.write("{%- if add_generation_prompt %}{{ " + repr(end) + " }}{% endif %}")
    said = holdfast("init", "docs", "questions.csv", "--model", "model", "--out", "my").stdout
    protocol = load(Path("my/recipe.toml")).protocol
    assert protocol.preset == "tools" and protocol.max_turn_tokens < 256
    assert (f"opens a thought, and a turn has {protocol.max_turn_tokens} tokens" in said) is noted


def test_without_questions_it_says_how_to_write_them(project: Path, holdfast: Run) -> None:
    said = holdfast("init", "docs", "--model", "model").stdout
    assert '"golden_answers"' in said and Path("docs-agent/recipe.toml").is_file()
    error = holdfast("init", "docs", "questions.csv", "--model", "model", code=2).stderr
    assert "docs-agent is not empty" in error and "--overwrite" in error
    said = holdfast("init", "docs", "questions.csv", "--model", "model", "--overwrite").stdout
    assert "Done." in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone"], "gone does not exist"),
        (["docs", "few.csv"], "few.csv has 2 questions; a recipe needs 10"),
    ],
)
def test_what_cannot_become_a_recipe_is_refused(
    arguments: list[str], message: str, project: Path, holdfast: Run
) -> None:
    Path("few.csv").write_text("question,answer\nWho?,x\nWhere?,y\n")
    assert message in holdfast("init", *arguments, "--model", "model", code=2).stderr
    assert not Path("docs-agent/recipe.toml").exists()


def test_a_refusal_leaves_no_folder_so_the_command_can_be_repeated(project: Path, holdfast: Run) -> None:
    Path("empty").mkdir()
    error = holdfast("init", "empty", "questions.csv", "--model", "model", "--out", "my", code=2).stderr
    assert "empty contains no .md" in error and not Path("my").exists()
    assert ".." not in error
    Path("my").mkdir()
    Path("my/notes").write_text("mine")
    holdfast("init", "empty", "questions.csv", "--model", "model", "--out", "my", "--overwrite", code=2)
    assert Path("my/notes").read_text() == "mine"


def test_a_question_that_is_repeated_is_asked_once_with_all_its_answers(project: Path, holdfast: Run) -> None:
    with open("questions.csv", "a", newline="") as file:
        csv.writer(file).writerows([f"who opened  the bridge of {name}?", "Nobody"] for name in NAMES[:20])
    said = holdfast("init", "docs", "questions.csv", "--model", "model", "--out", "my").stdout
    rows = [json.loads(line) for name in ("train", "dev") for line in Path(f"my/{name}.jsonl").read_text().splitlines()]
    assert len(rows) == 40 and sum("Nobody" in row["golden_answers"] for row in rows) == 20
    assert "20 of 60 rows repeat a question" in said and "20 got another golden answer" in said


def test_rows_and_held_out_questions_that_cannot_be_used_are_told_with_their_numbers(
    project: Path, holdfast: Run
) -> None:
    with open("questions.csv", "ab") as file:
        file.write("Wer baute die Brücke?,Jörg\n".encode("cp1252") + b"Who is it?,#REF!\n")
        file.write(b"".join(f"Who is number {k}?,Nobody at all {k}\n".encode() for k in range(40)))
    said = holdfast("init", "docs", "questions.csv", "--model", "model", "--out", "my").stdout
    assert "skipped 1 row (line 42): row: is not UTF-8" in said and "skipped 1 row (line 43)" in said
    held_out = [json.loads(line)["question"] for line in Path("my/dev.jsonl").read_text().splitlines()]
    lost = [question for question in held_out if "number" in question]
    assert 0 < len(lost) < len(held_out) == 16
    assert f"the answer to {16 - len(lost)} of 16 held-out questions. It does not for: {lost[0]} ·" in said
    known = sum(
        "number" not in json.loads(line)["question"] for line in Path("my/train.jsonl").read_text().splitlines()
    )
    assert f"so many of 64 training questions: {known} with 1, " in said


def test_its_last_words_are_commands_that_teach_ask_and_train(project: Path, holdfast: Run) -> None:
    said = holdfast("init", "docs", "questions.csv", "--model", "model", "--out", "my").stdout
    *_, teach, ask, train = said.splitlines()
    short = ["--warm_start.steps", "1", "--warm_start.batch_size", "2"]
    assert "ask runs/my-start" in holdfast(*shlex.split(teach)[1:], *short).stdout
    answered = holdfast(*shlex.split(ask)[1:]).stdout
    assert json.loads(Path("my/dev.jsonl").read_text().splitlines()[0])["question"] in answered
    assert "can be trained" in holdfast(*shlex.split(train)[1:], "--dry-run").stdout


def test_questions_about_something_else_are_not_called_done(project: Path, holdfast: Run) -> None:
    rows = "".join(f"{name}의 다리를 누가 열었습니까?,시장 {at}\n" for at, name in enumerate(NAMES))
    Path("korean.csv").write_text(f"question,answer\n{rows}", encoding="utf-8")
    said = holdfast("init", "docs", "korean.csv", "--model", "model", "--out", "my").stdout
    assert "0 of 32 questions became demonstrations" in said and "is in no passage that was found" in said
    assert "Done." not in said and "index show my/index" in said
    config = load(Path("my/recipe.toml"))
    assert config.protocol.topk == 3 and "--scorer unicode" in said
    assert config.reward.em == 0.0 and config.reward.custom == {"holdfast.agent.rewards:unicode_em": 1.0}
