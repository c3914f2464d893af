"""Real TRL trainers on a tiny model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

import trl
from datasets import Dataset

from holdfast.adapters.trl import with_penalties
from holdfast.adapters.trl_search import SearchRollouts, question_dataset, reward_functions
from holdfast.agent.protocol import CLEAN
from holdfast.base.errors import RetrievalError
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Document, Hit
from holdfast.tasks.questions import Example
from holdfast.tasks.world.model import build_model, build_tokenizer

from ...told import Script, says, sharp

TEXTS = [
    "<search> lake </search>\n\n",
    "<answer> town </answer>\n",
    "<think> What is the lake of Mora? </think>\n",
] * 20
QUESTIONS = [
    Example(source="t", split="train", index=i, question=f"What is the lake of Mora {i}?", golden_answers=("town",))
    for i in range(6)
]
PASSAGES = [Document(f"d{i}", f'"Mora {i}"\nThe lake of Mora {i} is near the town.') for i in range(6)]
SMALL = replace(
    CLEAN,
    prompt="Question: {question}\n",
    max_turns=3,
    max_turn_tokens=12,
    max_observation_tokens=40,
    max_total_tokens=140,
)
MakeTrainer = Callable[..., Any]
CHECKPOINTING = "gradient_checkpointing"
"""The setting's name in this version of transformers."""
if "activation_checkpointing" in trl.GRPOConfig.__dataclass_fields__:
    CHECKPOINTING = "activation_checkpointing"


class Down:
    """A retriever that always fails."""

    in_process = True

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        raise RetrievalError("down")


def train_and_keep_batches(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[dict[str, Any]], Any]]:
    """The rows that TRL made each rollout batch from, and the batch."""
    batches: list[Any] = []
    original = type(trainer)._generate_and_score_completions

    def keep(self: Any, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = original(self, inputs)
        batches.append((inputs, batch))
        return batch

    monkeypatch.setattr(type(trainer), "_generate_and_score_completions", keep)
    trainer.train()
    return batches


def series_of(trainer: Any) -> dict[str, list[float]]:
    """What a trainer logs while it trains, by name."""
    trainer.train()
    series: dict[str, list[float]] = {}
    for row in trainer.state.log_history:
        for name, value in row.items():
            series.setdefault(name, []).append(value)
    return series


@pytest.fixture(autouse=True)
def quiet_and_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")  # `rollout_func` is experimental, we know
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return build_tokenizer(TEXTS, ("lake", "town", "Mora"))


@pytest.fixture(scope="session")
def tiny_model(tokenizer: Any) -> Any:
    return build_model(tokenizer, seed=1, hidden=32, layers=2, heads=2)


@pytest.fixture(scope="session")
def sharp_model(tiny_model: Any) -> Any:
    """For tests that sample: the tiny model has no preferences to speak of."""
    return sharp(tiny_model)


SAID = (
    ("<search> lake </search>", "<answer> town </answer>"),
    ("<answer> lake </answer>",),
    ("Mora lake town Mora lake",) * 3,
    ("<search> lake </search>", "<search> Mora </search>", "<answer> town </answer>"),
    ("<answer> town </answer>",),
)
"""Five rollouts, turn by turn. Of four in a row some are right, some wrong."""


def say(id: str, turn: int) -> str:
    return SAID[int(id) % len(SAID)][turn]


def scripted_rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Two actions and a masked observation each; some completions are longer, and the two actions of some touch."""
    tokenizer = trainer.processing_class
    prompt_ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    generator = torch.Generator().manual_seed(len(prompts) + trainer.state.global_step)
    completions, masks, actions, answers = [], [], [], []
    for row in range(len(prompts)):
        first, heard, last = 3 + row % 3, 0 if row % 4 == 0 else 4, 2 + row % 2
        completions.append(torch.randint(2, 250, (first + heard + last,), generator=generator).tolist())
        masks.append([1] * first + [0] * heard + [1] * last)
        actions.append([1] * first + [0] * heard + [2] * last)
        answers.append([0] * (first + heard) + [1] * last)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completions,
        "logprobs": [[-1.0] * len(ids) for ids in completions],
        "env_mask": masks,
        "action_ids": actions,
        "answer_mask": answers,
        "searches": [1] * len(prompts),
        "number": list(range(len(prompts))),
    }


def some_are_right(completions: list[str], number: list[int], **_: Any) -> list[float]:
    return [float(n % 3 == 0) for n in number]


def every_other(completions: list[str], **_: Any) -> list[float]:
    return [float(i % 2) for i in range(len(completions))]


@pytest.fixture
def make_trainer(tokenizer: Any, tiny_model: Any, tmp_path: Path) -> MakeTrainer:
    """make_trainer(Class, loss_type="dapo", ...): a trainer with two optimizer steps per rollout batch of 8."""

    def make(trainer_class: Any, *, rollout_func: Any = scripted_rollouts, **settings: Any) -> Any:
        arguments = {
            "output_dir": str(tmp_path / f"run{len(list(tmp_path.iterdir()))}"),
            "use_cpu": True,
            "bf16": False,
            CHECKPOINTING: False,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 4,
            "num_generations": 4,
            "max_completion_length": 16,
            "max_steps": 4,
            "logging_steps": 1,
            "learning_rate": 1e-2,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            "seed": 5,
        }
        return trainer_class(
            model=copy.deepcopy(settings.pop("model", tiny_model)),
            processing_class=settings.pop("processing_class", tokenizer),
            reward_funcs=settings.pop("reward_funcs", some_are_right),
            rollout_func=rollout_func,
            environment_factory=settings.pop("environment_factory", None),
            tools=settings.pop("tools", None),
            train_dataset=settings.pop("train_dataset", None)
            or Dataset.from_list([{"prompt": f"What is the lake of Mora {i}?"} for i in range(6)]),
            peft_config=settings.pop("peft_config", None),
            args=trl.GRPOConfig(**(arguments | settings)),
        )

    return make


@pytest.fixture
def searching(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> MakeTrainer:
    """searching(LLDS(), retriever=Down(), ...): a trainer whose policy says what `script` tells it, or draws."""

    def make(
        penalty: Any = None,
        *,
        trainer_class: Any = None,
        retriever: Any = None,
        protocol: Any = SMALL,
        parts: dict[str, float] | None = None,
        max_failed: float = 0.5,
        search_failure_rate: float = 0.0,
        script: Script | None = say,
        **more: Any,
    ) -> Any:
        if script is not None:
            monkeypatch.setattr("holdfast.adapters.trl.search.HFPolicy", says(script))
        functions, weights = reward_functions(parts or {"em": 1.0, "format": 0.5})
        retriever = retriever or BM25Retriever.build(PASSAGES)
        settings = {"learning_rate": 1e-3, "max_completion_length": None}
        return make_trainer(
            trainer_class or with_penalties(trl.GRPOTrainer, penalty, displacement_every=1),
            rollout_func=SearchRollouts(
                retriever, protocol, max_failed=max_failed, search_failure_rate=search_failure_rate
            ),
            reward_funcs=functions,
            reward_weights=weights,
            train_dataset=question_dataset(QUESTIONS),
            **(settings | more),
        )

    return make


def sampled_rows(batches: list[tuple[list[dict[str, Any]], Any]]) -> list[tuple[Any, list[bool]]]:
    """(trajectory, mask of its completion in TRL's loss) of every rollout. Old log-probs of TRL's own forward pass must
    equal the sampler's, token by token, and ids and answers must be the trajectory's."""
    found = []
    for inputs, batch in batches:
        mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
        gap = (batch["sampling_per_token_logps"] - batch["old_per_token_logps"])[mask]
        assert float(gap.abs().max()) < 1e-4
        for i, row in enumerate(inputs):
            t = row["trajectory"]
            n, length = len(t.prompt), len(t.token_ids) - len(t.prompt)
            assert batch["completion_ids"][i, :length].tolist() == list(t.token_ids[n:])
            assert batch["holdfast_answer_mask"][i, :length].tolist() == list(t.answer_mask[n:])
            trained = mask[i, :length].tolist()
            actions = [a * m for a, m in zip(t.action_ids[n:], trained, strict=True)]
            assert batch["holdfast_action_ids"][i, :length].tolist() == actions and not mask[i, length:].any()
            found.append((t, trained))
    return found
