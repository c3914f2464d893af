"""Runs of TRL on single-turn tasks: a stock `GRPOTrainer` with its own sampler, and faults that a user's script has.

A `Run` is a plan: what it is, what is wrong with it, and the arguments of GRPOConfig. `record` makes it. The model of a
task is made and taught in seconds, until it samples the right answer with the probability `skill`.
"""

from __future__ import annotations

import copy
import json
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from holdfast.adapters.trl import with_penalties
from holdfast.data.world.model import EOS, build_model, build_tokenizer
from holdfast_research.recordings.single_turn_tasks import REWARDS, TASKS, Score, Words
from holdfast_research.recordings.trl import SHORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run to make."""

    name: str
    task: str
    cause: str
    """`healthy-…`, or what the fault leads to."""
    how: str
    """A sentence: what makes the run what it is."""
    seed: int = 1
    batches: int = 100
    """Rollout batches."""
    questions: int = 8
    """In a rollout batch."""
    group: int = 4
    """Completions per question."""
    k: int = 1
    """Optimizer steps per rollout batch."""
    rate: float = 3e-4
    length: int = 10
    """Tokens of a completion, at most."""
    every: int = 1
    """`logging_steps`."""
    skill: float = 0.4
    """Probability of the right answer at the start; 0: random weights."""
    reward: str = "exact"
    """A name in `REWARDS`."""
    fault: str = ""
    """A name in `FAULTS`, or nothing."""
    start: int = 0
    """The rollout batches before the fault begins."""
    also: tuple[str, ...] = ()
    """Other causes the run has."""
    amount: float = 0.0
    """How strong the fault is; what it means depends on the fault."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of GRPOConfig."""

    @property
    def healthy(self) -> bool:
        """Whether no fault is put in."""
        return self.cause.startswith("healthy")


# ---- rewards


def reward_functions(run: Run) -> tuple[list[Callable[..., list[float]]], list[float]]:
    """TRL's reward functions and their weights, with the run's fault."""

    def function(name: str, score: Score) -> Callable[..., list[float]]:
        def reward(completions: list[str], answer: list[str], **more: Any) -> list[float]:
            responses = more.get("final", completions)
            if run.fault == "broken_reward" and more["trainer_state"].global_step >= run.start * run.k:
                return [run.amount] * len(answer)
            scores = [score(r.split(), a.split()) for r, a in zip(responses, answer, strict=True)]
            if run.fault == "infinite_reward" and more["trainer_state"].global_step >= run.start * run.k:
                scores[0] = float("inf")
            return scores

        reward.__name__ = name
        return reward

    parts = REWARDS[run.reward]
    return [function(name, score) for name, _, score in parts], [weight for _, weight, _ in parts]


# ---- the policy at the start


def _pair(run: Run, rng: random.Random) -> tuple[str, str]:
    """A prompt and its answer."""
    shown = TASKS[run.task].question(rng)
    return f"{run.task}: {' '.join(shown)} =", "".join(f" {word}" for word in TASKS[run.task].answer(shown))


def questions(run: Run, count: int = 4000) -> Dataset:
    """The training set."""
    rng = random.Random(run.seed)
    rows = [_pair(run, rng) for _ in range(count)]
    return Dataset.from_list([{"prompt": prompt, "answer": answer} for prompt, answer in rows])


def start(run: Run, folder: Path) -> Path:
    """The folder of the starting policy, made if it is missing."""
    if (folder / "config.json").is_file():
        return folder
    task = TASKS[run.task]
    words = list(task.symbols) if run.skill else [*task.symbols, *_nonsense(run.amount)]
    tokenizer = build_tokenizer([f"{run.task}: {' '.join(words)} = again :"] * 3, tuple(words))
    model = build_model(tokenizer, seed=zlib.crc32(run.task.encode()), hidden=task.hidden, layers=task.layers, heads=4)
    if run.skill:
        teach(run, model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _nonsense(count: float) -> Words:
    """Words that no task has: a vocabulary."""
    rng = random.Random(0)
    return sorted({"".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(int(count))})


def teach(run: Run, model: Any, tokenizer: Any) -> None:
    """Train on right answers until a sample is right with the probability `run.skill`."""
    rng = random.Random(f"school-{run.task}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    reached = 0.0
    for step in range(3000):
        pairs = [_lesson(run, rng) for _ in range(64)]
        rows = [(tokenizer(p)["input_ids"], tokenizer(a)["input_ids"] + [tokenizer.eos_token_id]) for p, a in pairs]
        width = max(len(p) + len(a) for p, a in rows)
        ids = torch.tensor([p + a + [tokenizer.pad_token_id] * (width - len(p) - len(a)) for p, a in rows])
        labels = torch.tensor([[-100] * len(p) + a + [-100] * (width - len(p) - len(a)) for p, a in rows])
        optimizer.param_groups[0]["lr"] = 4e-3 * min(1.0, (step + 1) / 20)
        optimizer.zero_grad()
        logits = model(input_ids=ids).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="none")
        (losses.sum() / (labels != -100).sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        reached = 0.9 * reached + 0.1 * float((-losses.detach().sum(-1)).exp().mean())
        if reached >= run.skill:
            return
    raise RuntimeError(f"{run.name}: the policy reached {reached:.2f} of {run.skill} on {run.task}")


def _lesson(run: Run, rng: random.Random) -> tuple[str, str]:
    """A prompt and its answer; where the run gives feedback, half of the time after an attempt and feedback."""
    prompt, answer = _pair(run, rng)
    if not run.fault.startswith("feedback") or rng.random() < 0.5:
        return prompt, answer
    attempt = rng.choice([answer, _pair(run, rng)[1]])
    return f"{prompt}{attempt}{EOS}{feedback(run, rng)}", answer


def feedback(run: Run, rng: random.Random) -> str:
    """What the environment says between two attempts: symbols that nobody can predict."""
    return f" again : {' '.join(rng.choices(TASKS[run.task].symbols, k=int(run.amount) or 4))} ="


# ---- rollouts that a user makes


def sampled(trainer: Any, prompt_ids: list[list[int]], *, temperature: float = 1.0) -> tuple[list[list[int]], Any]:
    """Completions and the log-prob of each token under the distribution it was drawn from."""
    pad, eos, model = trainer._tokenizer.pad_token_id, trainer._tokenizer.eos_token_id, trainer.model
    width = max(map(len, prompt_ids))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in prompt_ids])
    with torch.no_grad():
        output = model.generate(
            ids,
            attention_mask=(ids != pad).long(),
            max_new_tokens=trainer.max_completion_length,
            do_sample=True,
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            output_scores=True,
            return_dict_in_generate=True,
        )
    tokens = output.sequences[:, width:]
    scores = torch.stack(output.scores, 1).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    lengths = [(row.tolist().index(eos) + 1) if eos in row else len(row) for row in tokens]
    return (
        [row[:n].tolist() for row, n in zip(tokens, lengths, strict=True)],
        [row[:n].tolist() for row, n in zip(scores, lengths, strict=True)],
    )


class ServedRollouts:
    """A `rollout_func` in the place of an inference engine: its log-probs differ a little from the trainer's.

    From batch `start` on it may be at fault: `engine_hot` has another temperature, `engine_stale` old weights.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.rng = run, torch.Generator().manual_seed(run.seed)
        self.old: dict[str, torch.Tensor] | None = None

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """What TRL asks of a `rollout_func`."""
        run, begun = self.run, trainer.state.global_step >= self.run.start * self.run.k
        prompt_ids = trainer._tokenizer(list(prompts))["input_ids"]
        new = copy.deepcopy(trainer.model.state_dict())
        if begun and run.fault == "engine_stale":
            self.old = self.old or new
            trainer.model.load_state_dict(self.old)
        hot = run.amount if begun and run.fault == "engine_hot" else 1.0
        completion_ids, logprobs = sampled(trainer, prompt_ids, temperature=hot)
        trainer.model.load_state_dict(new)
        logprobs = [[x + 0.01 * float(torch.randn(1, generator=self.rng)) for x in row] for row in logprobs]
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


class Feedback:
    """A `rollout_func` of two attempts with feedback between. Its mask is right in `feedback`, all ones in
    `feedback_ones`, and missing in `feedback_unmasked`."""

    def __init__(self, run: Run) -> None:
        self.run, self.rng = run, random.Random(run.seed)

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """What TRL asks of a `rollout_func`, and the last attempt."""
        tokenizer = trainer._tokenizer
        prompt_ids = tokenizer(list(prompts))["input_ids"]
        attempts, _ = sampled(trainer, prompt_ids)
        feedbacks = [tokenizer(feedback(self.run, self.rng))["input_ids"] for _ in prompts]
        contexts = [p + a + f for p, a, f in zip(prompt_ids, attempts, feedbacks, strict=True)]
        finals, _ = sampled(trainer, contexts)
        output: dict[str, Any] = {
            "prompt_ids": prompt_ids,
            "completion_ids": [a + f + b for a, f, b in zip(attempts, feedbacks, finals, strict=True)],
            "logprobs": None,
            "final": tokenizer.batch_decode(finals, skip_special_tokens=True),
        }
        right = self.run.fault == "feedback"
        if self.run.fault != "feedback_unmasked":
            lengths = [(len(a), len(f), len(b)) for a, f, b in zip(attempts, feedbacks, finals, strict=True)]
            output["env_mask"] = [[1] * a + [int(not right)] * f + [1] * b for a, f, b in lengths]
        return output


# ---- the trainer

FAULTS = {
    "giant_steps": "the learning rate times `amount` from batch `start` on",
    "poisoned": "a loss that is not a number from batch `start` on",
    "infinite_reward": "the first completion of a batch is paid infinity from batch `start` on",
    "broken_reward": "every completion is paid `amount` from batch `start` on",
    "shrinking_limit": "from batch `start` on the limit is a token lower every `amount` batches",
    "hot_sampler": "the sampler's temperature is `amount` from batch `start` on",
    "topk_sampler": "the sampler keeps `amount` tokens from batch `start` on",
    "stale_sampler": "the sampler has the weights of batch `start` for ever after",
    "engine_hot": "hot_sampler, of an engine that returns its log-probs",
    "engine_stale": "stale_sampler, of an engine that returns its log-probs",
    "engine": "none: an engine that returns its log-probs",
    "feedback": "none: two attempts with feedback between",
    "feedback_ones": "feedback in the loss: the env_mask is all ones",
    "feedback_unmasked": "feedback in the loss: the rollout_func returns no env_mask",
    "cut_gradient": "a hook sets the gradient to 0 from batch `start` on",
    "resumed": "none: stopped at batch `start` and resumed from the checkpoint",
}


def trainer_class(run: Run, truth: list[dict[str, Any]]) -> Any:
    """GRPOTrainer with the run's fault and the observer. Facts of every rollout batch are added to `truth`."""
    first = run.start * run.k

    class Faulty(GRPOTrainer):
        weights: dict[str, torch.Tensor] | None = None

        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            rewards: torch.Tensor = super()._calculate_rewards(*args, **kwargs)  # type: ignore[no-untyped-call]
            totals = (rewards * self.reward_weights).nansum(-1)
            spread = totals.view(-1, run.group).std(-1)
            truth.append(
                {
                    "step": self.state.global_step + 1,
                    "reward": float(totals.mean()),
                    "parts": rewards.nanmean(0).tolist(),
                    "contrast": float((spread > 0).float().mean()),
                }
            )
            return rewards

        def _generate(self, prompts: list[Any]) -> Any:
            done = self.state.global_step - first
            if done < 0:
                return super()._generate(prompts)  # type: ignore[no-untyped-call]
            if run.fault == "shrinking_limit":
                limit = max(run.length - int(done / run.k / run.amount), 2)
                self.max_completion_length = self.generation_config.max_new_tokens = limit
            if run.fault == "hot_sampler":
                self.generation_config.temperature = run.amount
            if run.fault == "topk_sampler":
                self.generation_config.top_k = int(run.amount)
            if run.fault != "stale_sampler":
                return super()._generate(prompts)  # type: ignore[no-untyped-call]
            model: Any = self.model
            new = copy.deepcopy(model.state_dict())
            self.weights = self.weights or new
            model.load_state_dict(self.weights)
            try:
                return super()._generate(prompts)  # type: ignore[no-untyped-call]
            finally:
                model.load_state_dict(new)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            ids, mask = batch["completion_ids"], batch["completion_mask"]
            last = ids.gather(1, mask.sum(-1, keepdim=True).clamp(min=1) - 1)[:, 0]
            truth[-1]["truncated"] = float((last != self._tokenizer.eos_token_id).float().mean())
            return batch

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            loss = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
            return loss * float("nan") if run.fault == "poisoned" and self.state.global_step >= first else loss

        def training_step(self, model: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            loss: torch.Tensor = super().training_step(model, *args, **kwargs)  # type: ignore[no-untyped-call]
            if run.fault == "cut_gradient" and self.state.global_step >= first:
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad.zero_()
            return loss

    return with_penalties(Faulty)


class _GiantSteps(TrainerCallback):
    """The learning rate times `run.amount` after `run.start` rollout batches."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == self.run.start * self.run.k:
            scheduler = more["lr_scheduler"]
            scheduler.base_lrs = [rate * self.run.amount for rate in scheduler.base_lrs]


class _Stop(TrainerCallback):
    """Save and stop after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        control.should_save = control.should_training_stop = state.global_step == self.step


def record(run: Run, work: Path) -> Path:
    """Make the run, from the start, into `work/NAME`: trainer_state.json and truth.json."""
    folder, truth = work / run.name, list[dict[str, Any]]()
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    fed = f"-fed{run.amount:g}" if run.fault.startswith("feedback") or not run.skill else ""
    policy = start(run, work / f"start-{run.task}-{run.skill}{fed}")
    trainer = _trainer(run, folder, policy, truth, [_GiantSteps(run)] if run.fault == "giant_steps" else [])
    if run.fault == "resumed":
        trainer.add_callback(_Stop(run.start * run.k))
        trainer.train()
        trainer = _trainer(run, folder, policy, truth, [])
        trainer.train(resume_from_checkpoint=str(folder / "checkpoints" / f"checkpoint-{run.start * run.k}"))
    else:
        try:
            trainer.train()
        except (RuntimeError, ValueError, IndexError) as error:
            print(f"{run.name}: ended after step {trainer.state.global_step}: {str(error)[:100]}", flush=True)
    trainer.state.save_to_json(str(folder / "trainer_state.json"))
    (folder / "truth.json").write_text(json.dumps(truth), encoding="utf-8")
    return folder


def _trainer(run: Run, folder: Path, policy: Path, truth: list[dict[str, Any]], callbacks: list[Any]) -> Any:
    accumulation = int(run.options.get("gradient_accumulation_steps", 1))
    options: dict[str, Any] = {
        **SHORT,
        "output_dir": str(folder / "checkpoints"),
        "seed": run.seed,
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "num_generations": run.group,
        "per_device_train_batch_size": run.questions * run.group // (run.k * accumulation),
        "steps_per_generation": run.k * accumulation,
        "max_steps": run.batches * run.k,
        "logging_steps": run.every,
        "learning_rate": run.rate,
        "lr_scheduler_type": "constant",
        "max_completion_length": run.length,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
    }
    functions, weights = reward_functions(run)
    rollouts = {"engine": ServedRollouts, "feedback": Feedback}.get(run.fault.split("_")[0])
    trainer = trainer_class(run, truth)(
        model=str(policy),
        reward_funcs=functions,
        args=GRPOConfig(**{**options, "reward_weights": weights, **run.options}),
        train_dataset=questions(run),
        rollout_func=rollouts(run) if rollouts else None,
        callbacks=callbacks,
    )
    if run.fault.startswith("engine"):  # TRL logs `sampling/…` for vLLM alone
        trainer.use_vllm, trainer.vllm_generation = True, SimpleNamespace(sync_weights=lambda: None)
        trainer._last_loaded_step = -1
    return trainer
