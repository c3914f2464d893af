"""The arm of step_vs_trl.py that runs TRL's GRPOTrainer, with a `rollout_func` as its users write one without a server.

Turn by turn, all rollouts that still run go through `model.generate` together, padded on the left. The tokens of
observations are masked with `env_mask`. Searches, observations and answers are made by the same functions as in the
other arm, and cost the same.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from holdfast.agent.protocol import parse_action
from holdfast.agent.trajectory import Search
from step_own_arm import Stopwatch, action_text, protocol_for, seconds_when_idle
from step_task import Script, Task


class StopAfter:
    """Ends row i of a batch after `limits[i]` new tokens, whatever they are."""

    def __init__(self, width: int, limits: torch.Tensor) -> None:
        self.width, self.limits = width, limits

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids.shape[1] - self.width >= self.limits


class Rollouts:
    """`rollout_func(prompts, trainer)`, and what it counted."""

    def __init__(self, task: Task, tokenizer: Any) -> None:
        self.task, self.tokenizer, self.protocol = task, tokenizer, protocol_for(task)
        self.retriever = task.retriever()
        self.question_of = {self._prompt(text): i for i, text in enumerate(task.texts())}
        self.watch = Stopwatch()
        self.counts: dict[str, int] = {}

    def dataset(self) -> list[dict[str, str]]:
        return [{"prompt": prompt} for prompt in self.question_of]

    def _prompt(self, question: str) -> str:
        return self.protocol.prompt.replace("{question}", question)

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        with self.watch("rollout"), torch.no_grad():
            return self._run(prompts, trainer.accelerator.unwrap_model(trainer.model))

    def _run(self, prompts: list[str], model: Any) -> dict[str, Any]:
        seen: Counter[str] = Counter()
        scripts: list[Script] = []
        for prompt in prompts:
            scripts.append(self.task.script(self.question_of[prompt], seen[prompt]))
            seen[prompt] += 1
        prompt_ids = [self.tokenizer(prompt)["input_ids"] for prompt in prompts]
        contexts, masks = [list(ids) for ids in prompt_ids], [[] for _ in prompts]
        running, turn = list(range(len(prompts))), 0
        while running:
            sampled = self._sample(model, [contexts[i] for i in running], [scripts[i].lengths[turn] for i in running])
            self.tokenizer.batch_decode(sampled)  # the text of the turn, which users parse
            going_on = []
            for i, ids in zip(running, sampled, strict=True):
                contexts[i] += ids
                masks[i] += [1] * len(ids)
                action = parse_action(action_text(scripts[i], turn), self.protocol)
                if isinstance(action, Search):
                    hits = self.retriever.search([action.query], self.protocol.topk)[0]
                    feedback = self.protocol.observe(hits, self.tokenizer).token_ids
                    contexts[i] += feedback
                    masks[i] += [0] * len(feedback)
                    going_on.append(i)
            running, turn = going_on, turn + 1
        self.counts = {
            "rollouts": len(prompts),
            "tokens": sum(map(len, contexts)),
            "sampled": sum(map(sum, masks)),
            "mixed groups": len({p for p, s in zip(prompts, scripts, strict=True) if s.right}),
        }
        completions = [context[len(ids) :] for context, ids in zip(contexts, prompt_ids, strict=True)]
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completions,
            "logprobs": [[0.0] * len(ids) for ids in completions],  # read only when a server samples
            "env_mask": masks,
            "score": [float(script.right) for script in scripts],
        }

    def _sample(self, model: Any, contexts: list[list[int]], limits: list[int]) -> list[list[int]]:
        from transformers import GenerationConfig, StoppingCriteriaList

        batch = self.tokenizer.pad({"input_ids": contexts}, padding_side="left", return_tensors="pt").to(model.device)
        width = batch["input_ids"].shape[1]
        model.generation_config.eos_token_id = None  # the trainer sets it; here no text may end by itself
        output = model.generate(
            **batch,
            generation_config=GenerationConfig(
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=max(limits),
                pad_token_id=self.tokenizer.pad_token_id,
            ),
            stopping_criteria=StoppingCriteriaList([StopAfter(width, torch.tensor(limits, device=model.device))]),
        )
        return [row[:limit] for row, limit in zip(output[:, width:].tolist(), limits, strict=True)]


def serve(task: Task, answer: Callable[[dict[str, Any] | None], bool]) -> None:
    """Train for as long as `answer` says so. It is called with None when all is built, then with each step's report."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = task.tokenizer(end_token=True)
    rollouts = Rollouts(task, tokenizer)

    class Steps(TrainerCallback):
        """Holds the trainer at the start of each rollout batch until told to go on."""

        report: dict[str, Any] | None = None

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % task.updates == 0:
                if not answer(self.report):
                    raise StopIteration
                rollouts.watch.seconds.clear()
                self.started = seconds_when_idle()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % task.updates == 0:
                seconds = {"step": seconds_when_idle() - self.started} | rollouts.watch.seconds
                seconds["old log-probs"] = seconds.pop("batch") - seconds["rollout"]
                seconds["optimizer steps"] = seconds["step"] - seconds["rollout"] - seconds["old log-probs"]
                self.report = {"seconds": seconds, "counts": rollouts.counts | {"updates": task.updates}}

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=task.model(tokenizer),
            processing_class=tokenizer,
            reward_funcs=lambda score, **kwargs: score,
            rollout_func=rollouts,
            train_dataset=Dataset.from_list(rollouts.dataset()),
            callbacks=[Steps()],
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=task.device == "cpu",
                bf16=task.device != "cpu" or task.trl_autocast == "bf16",
                gradient_checkpointing=False,
                per_device_train_batch_size=task.rows // task.updates,
                gradient_accumulation_steps=1,
                steps_per_generation=task.updates,
                num_generations=task.group,
                max_completion_length=100_000,
                max_steps=1_000_000,
                learning_rate=1e-6,
                lr_scheduler_type="constant",
                weight_decay=0.01,
                beta=0.0,
                seed=task.seed,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
            ),
        )
        trainer._generate_and_score_completions = rollouts.watch.around(
            "batch", trainer._generate_and_score_completions
        )
        with contextlib.suppress(StopIteration):
            trainer.train()
