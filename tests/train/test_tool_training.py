"""A model of one's own that calls tools: it learns from demonstrations, trains, is evaluated, asked and saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.trajectory import Search
from holdfast.base.errors import ConfigError
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Config
from holdfast.train.checks import prepare, validate_model_and_prompts
from holdfast.train.loading import load_agent, load_protocol, load_questions
from holdfast.train.run import train


@pytest.fixture(scope="module")
def recipe_of_tools(
    own: Callable[..., Config],
    make_model: Callable[..., Any],
    speaker: Callable[[str], Any],
    write_rows: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Config]:
    """recipe_of_tools({…}): a tiny model whose template has tools, taught by demonstrations in tags."""
    folder, tokenizer = tmp_path_factory.mktemp("tools") / "model", speaker("hermes")
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    make_model(vocab_size=len(tokenizer), max_position_embeddings=1024, **ends).save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    search = {"text": "<search> place </search>", "observation": ["place 3\nIt is a lake."]}
    rows = [
        {"question": f"What is place {i}?", "turns": [search, {"text": f"<answer> {answer} </answer>"}]}
        for i, answer in enumerate(["town", "lake"] * 10)
    ]
    lesson = {"steps": 80, "batch_size": 10, "lr": 1e-2, "data": write_rows(folder.parent / "episodes.jsonl", rows)}

    def make(changes: dict[str, Any] | None = None) -> Config:
        limits = {"max_turn_tokens": 60, "max_observation_tokens": 90, "max_total_tokens": 1000, "max_turns": 3}
        protocol = {f"protocol.{name}": value for name, value in {"preset": "tools", **limits}.items()}
        return own(folder, {"warm_start": lesson, **protocol, **(changes or {})})

    return make


def test_it_is_taught_trained_saved_evaluated_and_asked(recipe_of_tools: Callable[..., Config], tmp_path: Path) -> None:
    config = recipe_of_tools({"train.steps": 1})
    prepare(config)
    train(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 1 and rows[-1]["rollout/answered_fraction"] > 0 and rows[-1]["rollout/searches"] > 0
    said = (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()
    turns = [turn for line in said for turn in json.loads(line)["turns"]]
    searches = [turn for turn in turns if "query" in turn]
    assert searches, turns
    assert all("<tool_call>" in turn["text"] for turn in searches)
    asked = load_agent(tmp_path / "run").ask("What is place 3?")
    assert isinstance(asked.turns[0].action, Search) and asked.turns[0].observation_text.startswith(
        "Doc 1(Title: place"
    )


def test_a_model_whose_turns_would_never_end_is_refused(
    recipe_of_tools: Callable[..., Config], make_model: Callable[..., Any], speaker: Callable[[str], Any]
) -> None:
    config, tokenizer = recipe_of_tools(), speaker("hermes")
    tokenizer.eos_token = "<|eot_id|>"
    model = make_model(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, max_position_embeddings=1024)
    language_model = LanguageModel(model=model, tokenizer=tokenizer)
    with pytest.raises(ConfigError, match=r"ends a message with '<\|im_end\|>', which does not end the model's text"):
        validate_model_and_prompts(language_model, load_questions(config), load_protocol(config))
