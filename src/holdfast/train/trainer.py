"""The local engine: one process, CPU or one GPU. `Trainer.step` is the whole method on one screen.

Example → prompt ids → turns → trajectory → group → rewards → advantages → TokenBatch → micro-batch plan → old pass →
K optimizer steps → metrics. Each arrow is one function, in this order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.batch import TokenBatch
from holdfast.config import Config
from holdfast.data import Example, Sampler
from holdfast.errors import RolloutError
from holdfast.losses import group_advantages, reinforce_advantages
from holdfast.rewards import score_trajectory
from holdfast.rollout.hf import HFPolicy
from holdfast.rollout.loop import Task, run_rollouts
from holdfast.rollout.searching import RolloutStats
from holdfast.train.checkpoint import load_optimizer, read_state, save_checkpoint, step_folder
from holdfast.train.evaluate import rollout_seed
from holdfast.train.metrics import (
    displacement_metrics,
    likelihood_metrics,
    per_token_mean,
    rollout_metrics,
    sampler_gap,
)
from holdfast.train.model import LanguageModel, Reference
from holdfast.train.session import Workspace
from holdfast.train.update import answer_weight_of, old_pass, plan_update, update_policy
from holdfast.trajectory import Group


class Trainer:
    """Weights, optimizer, data position and generators of a run: exactly what a checkpoint holds."""

    def __init__(self, workspace: Workspace, language_model: LanguageModel) -> None:
        config = workspace.config
        self.workspace, self.config, self.policy_model = workspace, config, language_model
        self.model = language_model.model
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.train.lr, weight_decay=config.train.weight_decay, betas=(0.9, 0.999)
        )
        temperature = config.sampling.temperature
        self.forward = language_model.forward(temperature)
        self.reference = Reference(language_model).forward(temperature) if config.loss.kl_coef > 0 else None
        self.sampler = Sampler(workspace.train, seed=config.run.seed)
        self.generator = torch.Generator().manual_seed(config.run.seed)
        self.completed = 0

    def step(self) -> tuple[dict[str, float], list[Group], list[Example]]:
        """One rollout batch and its K optimizer steps: (metrics, scored groups, their questions)."""
        config, clock = self.config, _Clock()
        self._set_learning_rate()

        examples = self.sampler.next(config.train.questions)
        with clock("rollout"):
            groups, stats = self._rollout(examples)
        batch = TokenBatch.from_trajectories(groups, pad_token_id=self.policy_model.pad_token_id)
        batch = replace(batch, advantages=self._advantages(batch)).to(self.workspace.device)

        metrics = rollout_metrics(groups) | _retrieval_metrics(stats)
        trainable = [row for row, used in enumerate(batch.loss_mask.any(-1).tolist()) if used]
        if trainable:
            with clock("update"):
                batch = batch.select(trainable)
                plan = plan_update(
                    batch.lengths.tolist(),
                    config.train.optimizer_steps_per_rollout,
                    config.train.micro_batch_tokens,
                    self.generator,
                )
                minis, batch, entropy = old_pass(batch, plan, self.forward, self.reference)
                limit = config.protocol.max_turns * config.protocol.max_turn_tokens
                max_tokens = limit if config.loss.reduction == "seq-mean-token-sum-norm" else None
                answer_weight = answer_weight_of(config.loss.penalty, metrics["rollout/searches"])
                with self._training_mode():
                    metrics |= update_policy(
                        minis,
                        self.forward,
                        self.optimizer,
                        self.parameters,
                        config.loss,
                        grad_clip=config.train.grad_clip,
                        answer_weight=answer_weight,
                        max_tokens=max_tokens,
                    )
            with clock("displacement"):
                metrics |= self._displacement(batch)
            metrics |= entropy | likelihood_metrics(batch) | sampler_gap(batch, groups)
            metrics["penalty/answer_weight"] = answer_weight
        metrics |= clock.metrics() | {"lr": self.optimizer.param_groups[0]["lr"]}
        metrics["tokens_per_s"] = sum(len(t.token_ids) for g in groups for t in g.trajectories) / clock.total()
        self.completed += 1
        return metrics, groups, examples

    # ---- checkpoints

    def save(self, run_dir: Path, best: dict[str, float] | None) -> None:
        """An exact checkpoint of the current step."""
        state = {
            "step": self.completed,
            "sampler": self.sampler.state(),
            "generator": self.generator.get_state().tolist(),
            "best": best,
        }
        save_checkpoint(
            step_folder(run_dir, self.completed),
            model=self.model,
            tokenizer=self.policy_model.tokenizer,
            optimizer=self.optimizer,
            state=state,
        )

    def restore(self, folder: Path) -> dict[str, float] | None:
        """Continue from a checkpoint; returns the best dev score so far. The model must be the checkpoint's own."""
        state = read_state(folder)
        load_optimizer(folder, self.optimizer)
        self.sampler.restore(state["sampler"])
        self.generator.set_state(torch.tensor(state["generator"], dtype=torch.uint8))
        self.completed = int(state["step"])
        return state["best"]

    # ---- the arrows

    def _rollout(self, examples: Sequence[Example]) -> tuple[list[Group], RolloutStats]:
        config, workspace = self.config, self.workspace
        policy = HFPolicy(
            self.model,
            self.policy_model.tokenizer,
            temperature=config.sampling.temperature,
            top_p=config.sampling.top_p,
            top_k=config.sampling.top_k,
            autocast_dtype=self.policy_model.autocast_dtype,
        )
        tasks = [
            Task(
                id=f"{example.id}#{k}",
                example_id=example.id,
                prompt=workspace.prompt(example, self.policy_model.tokenizer),
                seed=rollout_seed(config.run.seed, self.completed, example.id, k),
            )
            for example in examples
            for k in range(config.train.group_size)
        ]
        stats = RolloutStats()
        trajectories = run_rollouts(
            tasks,
            policy=policy,
            retriever=workspace.train_retriever,
            protocol=workspace.protocol,
            tokenizer=self.policy_model.tokenizer,
            stats=stats,
        )
        failed = sum(t.status.is_failure for t in trajectories)
        if failed > config.retrieval.max_failed * len(trajectories):
            raise RolloutError(
                f"{failed} of {len(trajectories)} rollouts of step {self.completed + 1} failed, more than "
                f"retrieval.max_failed = {config.retrieval.max_failed}. Check the retriever; the run can be resumed from its "
                "last checkpoint"
            )
        weights = config.reward.model_dump()
        size = config.train.group_size
        groups = [
            Group(
                example.id,
                tuple(
                    score_trajectory(t, example.golden_answers, weights)
                    for t in trajectories[i * size : (i + 1) * size]
                ),
            )
            for i, example in enumerate(examples)
        ]
        return groups, stats

    def _advantages(self, batch: TokenBatch) -> Tensor:
        kind = self.config.loss.advantage
        if kind == "reinforce":
            advantages = reinforce_advantages(batch.rewards, valid=batch.valid)
        else:
            advantages = group_advantages(batch.rewards, batch.group_ids, scale=kind == "grpo", valid=batch.valid)
        return advantages if advantages.dim() == 2 else advantages[:, None]

    @torch.no_grad()
    def _displacement(self, batch: TokenBatch) -> dict[str, float]:
        """The same rollouts under the new weights minus under the old: at most `displacement_rows`, right ones first."""
        every, rows = self.config.train.displacement_every, self.config.train.displacement_rows
        if not every or self.completed % every:
            return {}
        right, wrong = (
            [i for i in torch.randperm(len(batch), generator=self.generator).tolist() if bool(batch.correct[i]) is kind]
            for kind in (True, False)
        )
        chosen = right[: max(rows // 2, rows - len(wrong))]
        chosen += wrong[: rows - len(chosen)]
        chosen.sort(key=lambda i: int(batch.lengths[i]))
        part = batch.select(chosen)
        plan = plan_update(part.lengths.tolist(), 1, self.config.train.micro_batch_tokens, torch.Generator())
        change = torch.zeros(len(part), device=part.token_ids.device)
        for indices in plan[0]:
            micro = part.select(indices).trim()
            assert micro.old_logprobs is not None
            new, _ = self.forward(micro.token_ids, micro.loss_mask)
            change[indices] = per_token_mean(new - micro.old_logprobs, micro.loss_mask)
        return displacement_metrics(change, part.correct)

    @contextmanager
    def _training_mode(self) -> Iterator[None]:
        """transformers recomputes activations in training mode only; dropout is 0 in either."""
        self.model.train(self.config.model.gradient_checkpointing)
        try:
            yield
        finally:
            self.model.eval()

    def _set_learning_rate(self) -> None:
        lr, warmup = self.config.train.lr, self.config.train.warmup
        for group in self.optimizer.param_groups:
            group["lr"] = lr * min(1.0, (self.completed + 1) / (warmup + 1))


def _retrieval_metrics(stats: RolloutStats) -> dict[str, float]:
    return {
        "retrieval/latency_ms": 1000 * stats.retrieval_seconds / max(stats.calls, 1),
        "retrieval/error_fraction": stats.failed_searches / max(stats.searches, 1),
    }


class _Clock:
    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._started = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - started

    def total(self) -> float:
        return time.perf_counter() - self._started

    def metrics(self) -> dict[str, float]:
        return {f"time/{name}_s": s for name, s in self._seconds.items()} | {"time/step_s": self.total()}


def set_up_torch(config: Config) -> dict[str, Any]:
    """Threads and determinism of a run."""
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    torch.manual_seed(config.run.seed)
    return {"threads": torch.get_num_threads()}
