"""Recorded runs of TRL without a search agent: `GRPOTrainer` with its own sampler on a toy task.

The model of a task is made and warm-started in seconds, to about half of the reward.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
import torch
from datasets import Dataset
from trl import GRPOConfig

from holdfast.data.world.model import build_model, build_tokenizer
from holdfast_research.recordings.plan import Planned
from holdfast_research.recordings.trl import SHORT, finish, giant_steps, trainer_class


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A toy, and how it is trained."""

    symbols: str
    count: int
    """Symbols of a prompt."""
    answer: Callable[[list[str]], list[str]]
    score: Callable[[list[str], list[str]], float]
    """The reward of a response, given the answer; both are lists of symbols."""
    enough: float
    """Loss in nats per token at which the warm start ends."""
    hidden: int
    questions: int
    """In a rollout batch."""
    group: int
    """Rollouts per question."""
    k: int
    """Optimizer steps per rollout batch."""
    rate: float
    length: int
    """Tokens of a response, at most."""
    every: int = 1
    """Rollout batches in a line of the log."""


def _in_place(response: list[str], answer: list[str]) -> float:
    """The fraction of symbols that are where the answer has them."""
    return sum(a == b for a, b in zip(response, answer, strict=False)) / max(len(response), len(answer))


TASKS = {
    # Repeat six letters: 1 for all of them, else 0.
    "echo": Task(
        symbols="abcdefghijklmnop",
        count=6,
        answer=lambda shown: shown,
        score=lambda response, answer: float(response == answer),
        enough=0.12,
        hidden=32,
        questions=8,
        group=4,
        k=4,
        rate=5e-4,
        length=16,
    ),
    # Five digits in order: the fraction of digits in their place.
    "order": Task(
        symbols="0123456789",
        count=5,
        answer=sorted,
        score=_in_place,
        enough=0.2,
        hidden=32,
        questions=6,
        group=6,
        k=3,
        rate=4e-4,
        length=18,
    ),
    # Five letters from the last to the first: 0.3 for the right number of letters, 0.7 for all of them.
    "mirror": Task(
        symbols="rstuvwxyz",
        count=5,
        answer=lambda shown: shown[::-1],
        score=lambda response, answer: 0.3 * (len(response) == len(answer)) + 0.7 * (response == answer),
        enough=0.15,
        hidden=48,
        questions=4,
        group=8,
        k=8,
        rate=3e-4,
        length=14,
        every=2,
    ),
    # Four digits, each times three without carries: the fraction of digits in their place, squared.
    "shift": Task(
        symbols="0123456789",
        count=4,
        answer=lambda shown: [str(int(digit) * 3 % 10) for digit in shown],
        score=lambda response, answer: _in_place(response, answer) ** 2,
        enough=0.25,
        hidden=40,
        questions=5,
        group=8,
        k=5,
        rate=6e-4,
        length=15,
    ),
    # Five letters, the first of them last: half for the first letter, half for all.
    "rotate": Task(
        symbols="efghijklmn",
        count=5,
        answer=lambda shown: [*shown[1:], shown[0]],
        score=lambda response, answer: 0.5 * (response[:1] == answer[:1]) + 0.5 * (response == answer),
        enough=0.2,
        hidden=40,
        questions=6,
        group=6,
        k=4,
        rate=5e-4,
        length=16,
    ),
}


def record(planned: Planned, folder: Path) -> None:
    """Make the run, from the start, into `folder`: trainer_state.json, and a config.toml of two settings."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(planned.seed)
    name = planned.testbed.recipe
    start = _warm_started(name, folder.parent / f"start-{planned.testbed.name}")
    k = _steps(planned)
    options = _options(planned, k)
    settings = {"train": {"optimizer_steps_per_rollout": k, "lr": options["learning_rate"]}}
    (folder / "config.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
    trainer = trainer_class(planned, k)(
        model=str(start),
        reward_funcs=_reward(name, planned),
        args=GRPOConfig(output_dir=str(folder / "checkpoints"), **options),
        train_dataset=_questions(name, planned),
        callbacks=giant_steps(planned, k),
    )
    if planned.arm.fault == "hot_sampler":
        trainer.generation_config.temperature = 1.6
    if planned.arm.fault == "truncated_sampler":
        trainer.generation_config.top_k = 2
    if planned.arm.fault == "resumed":
        _resume(planned, trainer, folder, options)
    else:
        finish(planned, trainer, folder)


def _steps(planned: Planned) -> int:
    """Optimizer steps per rollout batch."""
    return 1 if planned.arm.fault == "one_step" else TASKS[planned.testbed.recipe].k


def _options(planned: Planned, k: int) -> dict[str, Any]:
    """Arguments of GRPOConfig."""
    task, settings = TASKS[planned.testbed.recipe], planned.arm.settings
    rows = settings.get("questions", task.questions) * task.group
    return {
        **SHORT,
        "seed": planned.seed,
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "num_generations": task.group,
        "per_device_train_batch_size": rows // max(k, task.k),
        "gradient_accumulation_steps": max(k, task.k) // k,
        "steps_per_generation": max(k, task.k),
        "max_steps": planned.length * k,
        "logging_steps": k * task.every,
        "learning_rate": settings.get("lr", task.rate),
        "lr_scheduler_type": "cosine" if planned.arm.fault == "cosine" else "constant_with_warmup",
        "warmup_steps": 2 * k,
        "max_completion_length": task.length,
        "entropy_coef": settings.get("entropy_coef", 0.0),
        "temperature": 1.0,
        "top_p": 1.0,
    }


def _resume(planned: Planned, trainer: Any, folder: Path, options: dict[str, Any]) -> None:
    """Stop after a checkpoint, and resume from it with a new trainer."""
    trainer.args.max_steps = planned.arm.start * _steps(planned)
    trainer.train()
    trainer._save_checkpoint(trainer.model, None)
    again = type(trainer)(
        model=trainer.args.output_dir + f"/checkpoint-{planned.arm.start * _steps(planned)}",
        reward_funcs=_reward(planned.testbed.recipe, planned),
        args=GRPOConfig(output_dir=trainer.args.output_dir, **options),
        train_dataset=_questions(planned.testbed.recipe, planned),
    )
    again.train(resume_from_checkpoint=True)
    again.state.save_to_json(str(folder / "trainer_state.json"))


# ---- the task


def _pair(name: str, rng: random.Random, count: int) -> tuple[str, str]:
    """A prompt and its answer."""
    shown = [rng.choice(TASKS[name].symbols) for _ in range(count)]
    return f"{name}: {' '.join(shown)} =", "".join(f" {symbol}" for symbol in TASKS[name].answer(shown))


def _questions(name: str, planned: Planned) -> Dataset:
    """Two thousand prompts."""
    rng = random.Random(planned.seed)
    rows = [_pair(name, rng, TASKS[name].count) for _ in range(2000)]
    return Dataset.from_list([{"prompt": prompt, "answer": answer} for prompt, answer in rows])


def _reward(name: str, planned: Planned) -> Callable[..., list[float]]:
    """The task's reward function, with the fault."""

    def reward(completions: list[str], answer: list[str], **more: Any) -> list[float]:
        if planned.arm.fault == "no_answers":
            return [0.0] * len(answer)
        pairs = [(response.split(), expected.split()) for response, expected in zip(completions, answer, strict=True)]
        scores = [TASKS[name].score(*pair) for pair in pairs]
        if planned.arm.fault == "punished":  # 1 for a correct response, -1 for an incorrect one, 0 for an empty one
            return [s if s == 1 else -1.0 if response else 0.0 for s, (response, _) in zip(scores, pairs, strict=True)]
        return scores

    return reward


def _warm_started(name: str, folder: Path) -> Path:
    """A model that does the task about half of the time."""
    if (folder / "config.json").is_file():
        return folder
    rng = random.Random(f"school-{name}")
    symbols = list(TASKS[name].symbols)
    tokenizer = build_tokenizer([f"{name}: {' '.join(symbols)} ="] * 3, tuple(symbols))
    model = build_model(tokenizer, seed=1, hidden=TASKS[name].hidden, layers=2, heads=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    for step in range(1000):
        pairs = [_pair(name, rng, TASKS[name].count - rng.randint(0, 1)) for _ in range(64)]
        rows = [(tokenizer(p)["input_ids"], tokenizer(a)["input_ids"] + [tokenizer.eos_token_id]) for p, a in pairs]
        width = max(len(p) + len(a) for p, a in rows)
        ids = torch.tensor([p + a + [tokenizer.pad_token_id] * (width - len(p) - len(a)) for p, a in rows])
        labels = torch.tensor([[-100] * len(p) + a + [-100] * (width - len(p) - len(a)) for p, a in rows])
        optimizer.param_groups[0]["lr"] = 6e-3 * min(1.0, (step + 1) / 20)
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if loss.item() < TASKS[name].enough:
            break
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
