"""Runs of TRL that are no search agents: `GRPOTrainer` with its own sampler on a toy, for the library.

`echo`: repeat six letters; reward 1 for all of them, else 0. `order`: put five digits in order; reward is the share of
digits in their place. `mirror`: five letters from the last to the first; 0.3 for the right number, 0.7 for all of
them. `shift`: each of four digits times three, without carries; the share of digits, squared. `rotate`: five letters,
the first of them last; half of the reward for the first letter, half for all. The model is made and taught on the spot,
in seconds, and not too well.
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

from holdfast.world.model import build_model, build_tokenizer
from holdfast_research.recordings.plan import Planned
from holdfast_research.recordings.trl import SHORT, GiantSteps, finish, trainer_class


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A toy, and how it is trained."""

    symbols: str
    count: int
    """Symbols of a prompt."""
    answer: Callable[[list[str]], list[str]]
    enough: float
    """Nats per token at which school ends."""
    hidden: int
    questions: int
    group: int
    k: int
    """Optimizer steps per rollout batch."""
    rate: float
    length: int
    every: int = 1
    """Rollout batches in a line of the log."""


TASKS = {
    "echo": Task(
        symbols="abcdefghijklmnop",
        count=6,
        answer=lambda shown: shown,
        enough=0.12,
        hidden=32,
        questions=8,
        group=4,
        k=4,
        rate=5e-4,
        length=16,
    ),
    "order": Task(
        symbols="0123456789",
        count=5,
        answer=sorted,
        enough=0.2,
        hidden=32,
        questions=6,
        group=6,
        k=3,
        rate=4e-4,
        length=18,
    ),
    "mirror": Task(
        symbols="rstuvwxyz",
        count=5,
        answer=lambda shown: shown[::-1],
        enough=0.15,
        hidden=48,
        questions=4,
        group=8,
        k=8,
        rate=3e-4,
        length=14,
        every=2,
    ),
    "shift": Task(
        symbols="0123456789",
        count=4,
        answer=lambda shown: [str(int(digit) * 3 % 10) for digit in shown],
        enough=0.25,
        hidden=40,
        questions=5,
        group=8,
        k=5,
        rate=6e-4,
        length=15,
    ),
    "rotate": Task(
        symbols="efghijklmn",
        count=5,
        answer=lambda shown: [*shown[1:], shown[0]],
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
    """Make the run, from the start, into `folder`: trainer_state.json, and the little there is of settings."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(planned.seed)
    name = planned.organism.recipe
    start = _school(name, folder.parent / f"start-{planned.organism.name}")
    k = _steps(planned)
    options = _options(planned, k)
    told = {"train": {"optimizer_steps_per_rollout": k, "lr": options["learning_rate"]}}
    (folder / "config.toml").write_text(tomli_w.dumps(told), encoding="utf-8")
    trainer = trainer_class(planned, k)(
        model=str(start),
        reward_funcs=_reward(name, planned),
        args=GRPOConfig(output_dir=str(folder / "checkpoints"), **options),
        train_dataset=_questions(name, planned),
        callbacks=[GiantSteps(planned.start * k)] if planned.fault == "giant_steps" else [],
    )
    if planned.fault == "hot_sampler":
        trainer.generation_config.temperature = 1.6
    if planned.fault == "truncated_sampler":
        trainer.generation_config.top_k = 2
    if planned.fault == "resumed":
        return _resumed(planned, trainer, folder, options)
    finish(planned, trainer, folder)


def _steps(planned: Planned) -> int:
    """K of this run."""
    return 1 if planned.fault == "one_step" else int(_given(planned).get("k", TASKS[planned.organism.recipe].k))


def _given(planned: Planned) -> dict[str, str]:
    return dict(zip(planned.settings[::2], planned.settings[1::2], strict=True))


def _options(planned: Planned, k: int) -> dict[str, Any]:
    """Arguments of GRPOConfig."""
    task, given = TASKS[planned.organism.recipe], _given(planned)
    rows = int(given.get("questions", task.questions)) * task.group
    return {
        **SHORT,
        "seed": planned.seed,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "num_generations": task.group,
        "per_device_train_batch_size": rows // max(k, task.k),
        "gradient_accumulation_steps": max(k, task.k) // k,
        "steps_per_generation": max(k, task.k),
        "max_steps": planned.length * k,
        "logging_steps": k * task.every,
        "learning_rate": float(given.get("lr", task.rate)),
        "lr_scheduler_type": "cosine" if planned.fault == "cosine" else "constant_with_warmup",
        "warmup_steps": 2 * k,
        "max_completion_length": task.length,
        "entropy_coef": float(given.get("entropy_coef", 0.0)),
        "temperature": 1.0,
        "top_p": float(given.get("top_p", 1.0)),
    }


def _resumed(planned: Planned, trainer: Any, folder: Path, options: dict[str, Any]) -> None:
    """Stopped after a checkpoint, and resumed from it by a new trainer."""
    trainer.args.max_steps = planned.start * _steps(planned)
    trainer.train()
    trainer._save_checkpoint(trainer.model, None)
    again = type(trainer)(
        model=trainer.args.output_dir + f"/checkpoint-{planned.start * _steps(planned)}",
        reward_funcs=_reward(planned.organism.recipe, planned),
        args=GRPOConfig(output_dir=trainer.args.output_dir, **options),
        train_dataset=_questions(planned.organism.recipe, planned),
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
    """The reward function, with what is wrong with it."""

    def reward(completions: list[str], answer: list[str], **more: Any) -> list[float]:
        if planned.fault == "no_answers":
            return [0.0] * len(answer)
        scores = [_score(name, said, right) for said, right in zip(completions, answer, strict=True)]
        if planned.fault == "punished":  # 1 for right, -1 for wrong, 0 for saying nothing
            return [s if s == 1 else -1.0 if said.strip() else 0.0 for s, said in zip(scores, completions, strict=True)]
        return scores

    return reward


def _score(name: str, said: str, answer: str) -> float:
    own, right = said.split(), answer.split()
    if name == "order":
        return sum(a == b for a, b in zip(own, right, strict=False)) / max(len(own), len(right))
    if name == "shift":
        return (sum(a == b for a, b in zip(own, right, strict=False)) / max(len(own), len(right))) ** 2
    if name == "rotate":
        return 0.5 * (own[:1] == right[:1]) + 0.5 * (own == right)
    if name == "mirror":
        return 0.3 * (len(own) == len(right)) + 0.7 * (own == right)
    return float(own == right)


def _school(name: str, folder: Path) -> Path:
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
