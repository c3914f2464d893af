"""A byte-level tokenizer, tiny random models, a recipe that takes seconds, a listener that remembers, and a model of
one's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from holdfast.model.language_model import LanguageModel
from holdfast.model.sampler.hf import HFPolicy
from holdfast.recipe import Config, validate
from holdfast.tasks.world.model import build_tokenizer
from holdfast.train.run import train
from holdfast.train.start import warm_start_only

from ..listening import Told
from ..told import by_number, says
from .whole_runs import EVERYTHING

TEXTS = [
    "<search> lake </search>\n\n",
    "<answer> town </answer>\n",
    "<think> What is the lake of Mora? </think>\n",
] * 20
TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|agent|>{% endif %}"
)
RECIPE: dict[str, dict[str, Any]] = {
    "run": {"device": "cpu", "threads": 1},
    "world": {
        "people": 60,
        "train_questions": 40,
        "dev_questions": 6,
        "test_questions": 5,
        "model": {"hidden": 32, "layers": 2, "heads": 2},
        "scripts": {"count": 100, "malformed": 0.0},
    },
    "protocol": {
        "prompt": "Question: {question}\n",
        "max_turns": 3,
        "max_turn_tokens": 24,
        "max_observation_tokens": 60,
        "max_total_tokens": 220,
    },
    "warm_start": {"steps": 60, "batch_size": 16, "lr": 1e-2, "batches": "by-length"},
    # Nothing is right after so short a warm start; whether it looks right tells rollouts of a question apart.
    "reward": {"em": 1.0, "f1": 1.0, "format": 0.5},
    "train": {"steps": 2, "questions": 4, "group_size": 4, "optimizer_steps_per_rollout": 3, "lr": 3e-3},
    "eval": {"every": 0, "questions": 4, "start": True},
    "loss": {"kl_coef": 0.0},
}


@pytest.fixture(scope="session", autouse=True)
def own_cache(shared_folder: Path) -> Any:
    """Each warm start is made once a test session, and the user's cache is left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_CACHE", str(shared_folder / "cache"))
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
        data = deepcopy(RECIPE)
        if changes and changes.get("data.train", "world") != "world":
            del data["world"]
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


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(TEXTS)


@pytest.fixture(scope="session")
def make_model(tokenizer: PreTrainedTokenizerFast, random_model: Callable[..., Any]) -> Callable[..., Any]:
    """make_model("Qwen2", seed=0, **config): random weights, spread out so that log-probs differ by nats."""

    options = {"max_position_embeddings": 512, "initializer_range": 0.2}
    return lambda family="Qwen2", **settings: random_model(family, tokenizer, **(options | settings))


SAID = (
    ("<search> place teacher </search>", "<answer> town </answer>"),
    ("lake", "<answer> lake </answer>"),
    ("<search> lake </search>", "<answer> lake </answer>"),
    ("<answer> town </answer>",),
)
"""Four rollouts in a row, turn by turn: half of them search, half say `town`, and one has a turn of another form."""


@pytest.fixture
def told_what_to_say(monkeypatch: pytest.MonkeyPatch) -> type[HFPolicy]:
    """Rollouts say what `SAID` has, and draw nothing. Returns the class of their policies."""
    policy = says(by_number(SAID))
    monkeypatch.setattr("holdfast.model.sampler.hf.HFPolicy", policy)
    return policy


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


# ---- a model of one's own, on questions and passages of one's own
#
# The model is a tiny random one in a directory, with a tokenizer of its own. Two dozen steps on episodes from a file
# teach it to answer `town` or `lake`, with or without a search, so that some rollouts are right.


@pytest.fixture(scope="session")
def home(
    tmp_path_factory: pytest.TempPathFactory,
    make_model: Callable[..., Any],
    tokenizer: PreTrainedTokenizerFast,
    write_rows: Callable[..., str],
) -> Path:
    """Folders `raw` and `raw-chat` of untrained models, and the files of questions, passages and episodes."""
    home = tmp_path_factory.mktemp("own")
    for name in ("raw", "raw-chat"):
        make_model().save_pretrained(home / name)
        tokenizer.save_pretrained(home / name)
    config = json.loads((home / "raw-chat" / "tokenizer_config.json").read_text())
    (home / "raw-chat" / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    questions = [
        {"question": f"What is place {i}?", "golden_answers": ["town" if i % 2 else "lake"]} for i in range(20)
    ]
    write_rows(home / "train.jsonl", questions)
    write_rows(home / "test.jsonl", [q | {"question": q["question"].replace("place", "spot")} for q in questions[:4]])
    write_rows(home / "corpus.jsonl", [{"id": str(i), "contents": f"place {i}\nIt is a lake."} for i in range(20)])
    found = "\n\n<information>Doc 1(Title: place 3) It is a lake.</information>\n\n"
    episodes = []
    for i in range(20):
        answer = {"text": f"<answer> {'town' if i % 4 < 2 else 'lake'} </answer>", "observation": ""}
        search = {"text": "<search> place </search>", "observation": found}
        episodes.append({"question": f"What is place {i}?", "turns": [search, answer] if i % 3 == 0 else [answer]})
    write_rows(home / "episodes.jsonl", episodes)
    return home


@pytest.fixture(scope="session")
def own(recipe: Callable[..., Config], home: Path) -> Callable[..., Config]:
    """own("raw", {"train.steps": 1}): the recipe for a model of one's own."""

    def make(model: str | Path, changes: dict[str, Any] | None = None) -> Config:
        settings: dict[str, Any] = {
            "model": {"path": str(home / model)},
            "data.train": str(home / "train.jsonl"),
            "data.test": str(home / "test.jsonl"),
            "retrieval.corpus": str(home / "corpus.jsonl"),
            "warm_start": {},
            "reward": {"em": 1.0},
            "loss.kl_coef": 0.05,
            "train.steps": 2,
            "checkpoint.every": 1,
            "protocol.max_total_tokens": 200,
            "protocol.max_observation_tokens": 70,
        }
        return recipe(settings | (changes or {}))

    return make


@pytest.fixture(scope="session")
def lesson(home: Path) -> dict[str, Any]:
    """Settings of a warm start from the file of episodes."""
    return {"warm_start": {"steps": 25, "batch_size": 10, "lr": 1e-2, "data": str(home / "episodes.jsonl")}}


@pytest.fixture(scope="session")
def base(own: Callable[..., Config], lesson: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_start_only(own("raw", lesson), tmp_path_factory.mktemp("base") / "run")
