"""The local engine: one process, CPU or one GPU. `Trainer.step` is the whole method on one screen.

Example → prompt ids → turns → trajectory → group → rewards → advantages → TokenBatch → micro-batch plan → old pass →
K optimizer steps → metrics. Each arrow is one function, in this order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from holdfast.batch import TokenBatch
from holdfast.config import Config
from holdfast.data import Example, Sampler
from holdfast.errors import RolloutError
from holdfast.metrics import (
    advantage_metrics,
    cut_metrics,
    likelihood_metrics,
    likelihood_rows,
    retrieval_metrics,
    rollout_metrics,
    sampler_metrics,
)
from holdfast.rollout.searching import RolloutStats
from holdfast.train.checkpoint import load_optimizer, read_state, save_checkpoint, step_folder
from holdfast.train.displacement import Displacement, measure
from holdfast.train.episodes import learnable, training_rollouts
from holdfast.train.model import LanguageModel, Reference
from holdfast.train.session import Workspace
from holdfast.train.update import (
    make_optimizer,
    old_pass,
    plan_update,
    update_by_recipe,
)
from holdfast.trajectory import Group


class Trainer:
    """Weights, optimizer, data position and generators of a run: exactly what a checkpoint holds."""

    def __init__(self, workspace: Workspace, language_model: LanguageModel) -> None:
        config = workspace.config
        self.workspace, self.config, self.language_model = workspace, config, language_model
        self.model = language_model.model
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(self.parameters, config.train)
        temperature = config.sampling.temperature
        self.forward = language_model.forward(temperature)
        self.keeper = language_model.keeper(config.sampling)
        self.reference = Reference(language_model).forward(temperature) if config.loss.kl_coef > 0 else None
        self.sampler = Sampler(workspace.train, seed=config.run.seed)
        self.generator = torch.Generator().manual_seed(config.run.seed)
        self.completed = 0
        self.displacement: Displacement | None = None
        """What the last step did to its rollouts; None when that was not measured."""

    def step(self) -> tuple[dict[str, float], list[Group], list[Example]]:
        """One rollout batch and its K optimizer steps: (metrics, scored groups, their questions)."""
        clock = _Clock()
        self.displacement = None
        self._set_learning_rate()
        position = self.sampler.state()
        examples = self.sampler.next(self.config.train.questions)
        try:
            with clock("rollout"):
                groups, stats = self._rollout(examples)
        except RolloutError:
            self.sampler.restore(position)  # the step was not made: a checkpoint now is that of the last one
            raise
        metrics = rollout_metrics(groups) | retrieval_metrics(stats)
        batch = self._batch(groups)
        if len(batch):
            with clock("update"):
                minis, batch, entropy = old_pass(batch, self._plan(batch), self.forward, self.reference, self.keeper)
                metrics |= entropy | self._update(minis, mean_searches=metrics["rollout/searches"])
            with clock("displacement"):
                metrics |= self._displacement(batch, groups)
            assert batch.old_logprobs is not None
            mask = batch.loss_mask
            metrics |= advantage_metrics(batch.advantages, mask) | cut_metrics(batch.advantages, groups)
            metrics |= sampler_metrics([micro for mini in minis for micro in mini], groups)
            metrics["loss/tokens"] = float(mask.sum()) / len(batch)
            metrics |= likelihood_metrics(likelihood_rows(batch.old_logprobs, mask, batch.action_ids), batch.correct)
        metrics |= clock.metrics() | {"lr": self.optimizer.param_groups[0]["lr"]}
        metrics["tokens_per_s"] = sum(len(t.token_ids) for g in groups for t in g.trajectories) / clock.total()
        self.completed += 1
        return metrics, groups, examples

    # ---- the arrows

    def _rollout(self, examples: list[Example]) -> tuple[list[Group], RolloutStats]:
        stats = RolloutStats()
        seed = (self.config.run.seed, self.completed)
        return training_rollouts(self.language_model, examples, self.workspace, seed=seed, stats=stats), stats

    def _batch(self, groups: list[Group]) -> TokenBatch:
        pad_token_id, device = self.language_model.pad_token_id, self.workspace.device
        return learnable(groups, self.config.loss, pad_token_id=pad_token_id, device=device)

    def _plan(self, batch: TokenBatch) -> list[list[list[int]]]:
        own = self.config.train
        lengths = batch.lengths.tolist()
        return plan_update(lengths, own.optimizer_steps_per_rollout, own.micro_batch_tokens, self.generator)

    def _update(self, minis: list[list[TokenBatch]], *, mean_searches: float) -> dict[str, float]:
        metrics = update_by_recipe(
            minis, self.model, self.forward, self.optimizer, self.parameters, self.config, mean_searches=mean_searches
        )
        self.optimizer.zero_grad(set_to_none=True)  # rollouts want the memory
        return metrics

    def _displacement(self, batch: TokenBatch, groups: list[Group]) -> dict[str, float]:
        own = self.config.train
        if not own.displacement_every or self.completed % own.displacement_every:
            return {}
        metrics, self.displacement = measure(
            batch,
            groups,
            self.forward,
            self.language_model.tokenizer,
            rows=own.displacement_rows,
            shown=self.config.track.trajectories,
            micro_batch_tokens=own.micro_batch_tokens,
            generator=self.generator,
        )
        return metrics

    def _set_learning_rate(self) -> None:
        lr, warmup = self.config.train.lr, self.config.train.warmup
        for group in self.optimizer.param_groups:
            group["lr"] = lr * min(1.0, (self.completed + 1) / (warmup + 1))

    # ---- checkpoints

    def save(self, run_dir: Path, **more: Any) -> None:
        """An exact checkpoint of the current step; `more` is kept in its state."""
        state = {
            "step": self.completed,
            "sampler": self.sampler.state(),
            "generator": self.generator.get_state().tolist(),
            **more,
        }
        folder = step_folder(run_dir, self.completed)
        save_checkpoint(folder, self.language_model, optimizer=self.optimizer, state=state)

    def restore(self, folder: Path) -> dict[str, Any]:
        """Go on from a checkpoint whose weights the model already has; returns its state, `more` included."""
        state = read_state(folder)
        load_optimizer(folder, self.optimizer)
        self.sampler.restore(state["sampler"])
        self.generator.set_state(torch.tensor(state["generator"], dtype=torch.uint8))
        self.completed = int(state["step"])
        return state

    def forget_optimizer(self) -> None:
        """Give back the memory of gradients and moments, once nothing will be trained any more."""
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()


class _Clock:
    """Seconds of the parts of a step."""

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


def set_up_torch(config: Config) -> None:
    """Threads of a run, and the seed of what draws from PyTorch's own generator: fresh LoRA weights."""
    if threads := config.run.threads or int(config.model.path == "tiny"):
        torch.set_num_threads(threads)
    torch.manual_seed(config.run.seed)
