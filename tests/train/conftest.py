"""A byte-level tokenizer, tiny random models, a recipe that takes seconds, and an observer that remembers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedTokenizerFast

from holdfast.config import Config, validate
from holdfast.diagnostics.finding import Finding
from holdfast.train.model import LanguageModel
from holdfast.train.run import train
from holdfast.world.model import build_tokenizer

from .whole_runs import EVERYTHING

TEXTS = [
    "<search> lake </search>\n\n",
    "<answer> town </answer>\n",
    "<think> What is the lake of Mora? </think>\n",
] * 20
RECIPE: dict[str, dict[str, Any]] = {
    "run": {"device": "cpu", "threads": 1},
    "world": {"people": 60, "train_questions": 40, "dev_questions": 6, "test_questions": 5},
    "model": {"hidden": 32, "layers": 2, "heads": 2},
    "protocol": {
        "prompt": "Question: {question}\n",
        "max_turns": 3,
        "max_turn_tokens": 24,
        "max_observation_tokens": 60,
        "max_total_tokens": 220,
    },
    "warm_start": {"steps": 60, "batch": 16, "episodes": 100, "lr": 1e-2, "malformed": 0.0},
    # Nothing is right after so short a warm start; whether it looks right tells rollouts of a question apart.
    "reward": {"em": 1.0, "f1": 1.0, "format": 0.5},
    "train": {"steps": 2, "questions": 4, "group_size": 4, "optimizer_steps_per_rollout": 3, "lr": 3e-3},
    "eval": {"every": 0, "questions": 4},
    "loss": {"kl_coef": 0.0},
}


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Warm starts are made once a test session, and nobody's cache is touched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def recipe() -> Callable[..., Config]:
    """recipe({"train.steps": 5}): the small recipe with some settings changed."""

    def make(changes: Mapping[str, Any] | None = None) -> Config:
        data = {section: dict(values) for section, values in RECIPE.items()}
        for name, value in (changes or {}).items():
            *sections, key = name.split(".")
            place: dict[str, Any] = data
            for section in sections:
                place = place.setdefault(section, {})
            place[key] = value
        return validate(data)

    return make


@pytest.fixture(scope="session")
def whole(recipe: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with everything switched on that was never stopped."""
    torch.set_num_threads(1)
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train(recipe(EVERYTHING), run_dir)
    return run_dir


class Told:
    """An observer that remembers everything."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int | None]] = []
        self.advanced: list[tuple[int, dict[str, float]]] = []
        self.steps: list[tuple[int, dict[str, float]]] = []
        self.notes: list[str] = []
        self.alarms: list[Finding] = []

    def stage(self, name: str, total: int | None = None) -> None:
        self.stages.append((name, total))

    def advance(self, done: int, detail: Mapping[str, float] | None = None) -> None:
        self.advanced.append((done, dict(detail or {})))

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        self.steps.append((step, dict(metrics)))

    def note(self, message: str) -> None:
        self.notes.append(message)

    def alarm(self, finding: Finding) -> None:
        self.alarms.append(finding)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(TEXTS)


@pytest.fixture(scope="session")
def make_model(tokenizer: PreTrainedTokenizerFast) -> Callable[..., Any]:
    """make_model("Qwen2", seed=0, **config): random weights, spread out so that log-probs differ by nats."""

    def make(family: str = "Qwen2", *, seed: int = 0, attention: str = "sdpa", **settings: Any) -> Any:
        options: dict[str, Any] = {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 512,
            "initializer_range": 0.2,
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": None,
        }
        config = getattr(transformers, f"{family}Config")(**(options | settings))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()

    return make


@pytest.fixture
def language_model(make_model: Callable[..., Any], tokenizer: PreTrainedTokenizerFast) -> LanguageModel:
    return LanguageModel(model=make_model(), tokenizer=tokenizer, autocast_dtype=None)


@pytest.fixture(scope="session")
def write_rows() -> Callable[..., str]:
    """write_rows(path, rows): a JSONL file; returns its path as a recipe has it."""

    def write(path: Path, rows: list[Any]) -> str:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return write
