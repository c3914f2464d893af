"""What `with_penalties` adds to TRL's log. It only reads: no random number is drawn from the run's generators.

All series go into the trainer's metrics, under `holdfast/`, and so to every tracker the user has set up. Their names
are in docs/reference/metrics.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.adapters.trl.mask import WHOLE_LOGPS, Truncation
from holdfast.agent.metrics.rollouts import (
    advantage_metrics,
    displacement_metrics,
    likelihood_metrics,
    likelihood_rows,
    rows_to_probe,
    tail_sums,
)
from holdfast.agent.trajectory import Trajectory
from holdfast.losses import (
    action_ids_from_mask,
    drift_stats,
    effective_sample_size,
    logged_stats,
    merge_stats,
    penalty_stats,
    ratio_stats,
)
from holdfast.model.support import accepts_logits_to_keep

_CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")  # loss types whose clip `clip/fraction` describes
_IMAGES = ("pixel_values", "pixel_values_videos", "num_images")
_MASS_ROWS, _MASS_TOKENS = 8, 64  # per process; 300 MB of logits at a vocabulary of 150,000


@dataclass(frozen=True, slots=True)
class _Probe:
    """Some rollouts, and their likelihood before the update."""

    forward: tuple[Any, ...]
    mask: Tensor
    correct: Tensor
    action_ids: Tensor
    before: Tensor
    step: int
    seconds: float
    """What it cost so far."""


class Observer:
    """Collects over micro-batches; logs once per optimizer step or rollout batch."""

    def __init__(self, trainer: Any, *, every: int) -> None:
        self.trainer, self.every = trainer, every
        self._stats: list[dict[str, Tensor]] = []
        self._parts: dict[str, Tensor] = {}
        self._rows: list[tuple[Tensor, Tensor]] = []
        self._batches = 0
        self._probe: _Probe | None = None
        self._generator = torch.Generator().manual_seed(0)

    # ---- once per rollout batch

    def rollout_batch(self, batch: dict[str, Any], mask: Tensor, trajectories: Sequence[Trajectory] | None) -> None:
        """Logs what is known before the first optimizer step.

        `trajectories` come from a search agent, whose rewards log the sampled length; None otherwise. `loss/tokens` is
        logged with trajectories only: otherwise both lengths would come from the loss mask, and agree without meaning
        anything.
        """
        args = self.trainer.args
        steps = args.steps_per_generation * self.trainer.num_iterations / args.gradient_accumulation_steps
        trained = float(mask.sum(-1).float().mean())
        metrics = {"optimizer_steps_per_rollout": steps}
        metrics["rollout/length" if trajectories is None else "loss/tokens"] = trained
        advantages = batch["advantages"]
        metrics |= advantage_metrics(per_token_advantages(batch), mask)
        old, sampled = batch.get("old_per_token_logps"), batch.get("sampling_per_token_logps")
        whole = batch.get(WHOLE_LOGPS)
        if old is not None and sampled is not None:
            gap = torch.where(mask, sampled - old, 0.0).nansum() / mask.sum().clamp(min=1)
            metrics["sampler/logprob_gap"] = float(gap)
            drawn = mask & ~sampled.isnan()  # vLLM may have no log-prob of a token
            metrics["sampler/ess"] = float(effective_sample_size(old if whole is None else whole, sampled, drawn))
        if whole is not None:
            masses = torch.where(mask, (whole - old).exp(), 0.0)
            metrics["sampler/mask_mass"] = float(masses.sum() / mask.sum().clamp(min=1))
        if self.trainer.holdfast_settings.mask_logprobs:
            metrics["sampler/mask_in_loss"] = 1.0
        self._log(self._mean_over_processes(metrics))
        if whole is None and (self.trainer.rollout_func is None or self._lack_mass(trajectories)):
            self._log_mass(batch, mask)
        if trajectories is not None and advantages.numel() == len(trajectories):
            self._log_tail(advantages.flatten(), mask, trajectories)
        if old is not None:
            rows = self._likelihood_rows(batch, old if whole is None else whole, mask)
            self._log_likelihood([(rows, batch["holdfast_correct"])])

    def start_displacement(self, batch: dict[str, Any], mask: Tensor, *, rows: int) -> None:
        """Remember some rollouts' likelihood under the weights that made them."""
        self._batches += 1
        unreadable = has_images(batch)  # whose forward pass needs more than tokens
        if self._probe is not None or not self.every or (self._batches - 1) % self.every or unreadable:
            return
        started = time.perf_counter()
        share = max(rows // self.trainer.accelerator.num_processes, 1)
        chosen = rows_to_probe(batch["holdfast_correct"].cpu(), share, self._generator)
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)[chosen]
        attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)[chosen]
        forward = (ids, attention, batch["completion_ids"].size(1))
        action_ids = action_ids_of(batch, mask)[chosen]
        self._probe = _Probe(
            forward,
            mask[chosen],
            batch["holdfast_correct"][chosen],
            action_ids,
            before=self._likelihood(forward, mask[chosen], action_ids),
            step=self.trainer.state.global_step,
            seconds=time.perf_counter() - started,
        )

    def finish_displacement(self) -> None:
        """The same rollouts under the new weights: the change is the displacement."""
        probe = self._probe
        if probe is None or self.trainer.state.global_step == probe.step:
            return
        started = time.perf_counter()
        self._probe = None
        change = self._likelihood(probe.forward, probe.mask, probe.action_ids) - probe.before
        gathered = self._gather(torch.cat([probe.correct[:, None].to(change.dtype), change], -1))
        gathered = gathered[~gathered[:, 1].isnan()]
        if len(gathered):
            self._log(displacement_metrics(gathered[:, 1:], gathered[:, 0] > 0))
        self._log({"time/displacement_s": probe.seconds + time.perf_counter() - started})

    @torch.no_grad()
    def _likelihood(self, forward: tuple[Any, ...], mask: Tensor, action_ids: Tensor) -> Tensor:
        """`likelihood_rows` without dropout, on the same shapes before and after."""
        trainer = self.trainer
        ids, attention, keep = forward
        with self._evaluating():
            logprobs, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, attention, keep, batch_size=trainer.args.per_device_train_batch_size
            )
        return likelihood_rows(logprobs.float(), mask, action_ids)

    # ---- once per micro-batch

    @torch.no_grad()
    def micro_batch(
        self,
        inputs: dict[str, Any],
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        *,
        host: Tensor,
    ) -> None:
        """At the start of a micro-batch: the ratio, and the likelihood where the host has no old log-probs."""
        trainer = self.trainer
        stats = ratio_stats(
            logprobs,
            old_logprobs,
            advantages,
            mask,
            clip_low=trainer.epsilon_low,
            clip_high=trainer.epsilon_high,
            ratio=trainer.importance_sampling_level,
        )
        if trainer.loss_type not in _CLIPPED:
            del stats["clip/fraction"]
        stats |= drift_stats(logprobs, old_logprobs, advantages, mask)
        self._stats.append(stats)
        self._add("loss/host", host)
        if inputs.get("old_per_token_logps") is None:
            whole = inputs.get(WHOLE_LOGPS)
            rows = self._likelihood_rows(inputs, old_logprobs if whole is None else whole, mask)
            self._rows.append((rows, inputs["holdfast_correct"]))

    @torch.no_grad()
    def penalised(
        self, term: Tensor, per_token: Tensor, logprobs: Tensor, old: Tensor, mask: Tensor, *, preserved: Tensor
    ) -> None:
        """What the penalty did in this micro-batch."""
        self._add("loss/penalty", term)
        self._stats[-1] |= penalty_stats(per_token, logprobs, old, mask, preserved=preserved)

    def micro_batch_done(self) -> None:
        """At the end of an accumulation window, log its statistics."""
        if not self.trainer.accelerator.sync_gradients:
            return
        merged = merge_stats(self._stats)
        names = sorted(merged)
        table = self.trainer.accelerator.gather(torch.stack([merged[name].float() for name in names])[None])
        merged = merge_stats([dict(zip(names, row.unbind(), strict=True)) for row in table])
        self._log(logged_stats(merged))
        self._log(self._mean_over_processes({name: float(value) for name, value in self._parts.items()}))
        if self._rows:
            self._log_likelihood(self._rows)
        self._stats, self._parts, self._rows = [], {}, []

    # ---- combining and logging

    def _likelihood_rows(self, batch: dict[str, Any], logprobs: Tensor, mask: Tensor) -> Tensor:
        """`likelihood_rows` of the rollouts that have a reward; NaN for the others."""
        return likelihood_rows(logprobs, rewarded(batch, mask), action_ids_of(batch, mask))

    def _add(self, name: str, value: Tensor) -> None:
        self._parts[name] = self._parts.get(name, 0) + value.detach()

    def _log_tail(self, advantages: Tensor, mask: Tensor, trajectories: Sequence[Trajectory]) -> None:
        """`advantages` [B]: one per trajectory. Logs nothing where the sampler truncated nothing or is silent."""
        trained = mask.any(-1).tolist()
        rows = [(a, t) for a, t, counts in zip(advantages.tolist(), trajectories, trained, strict=True) if counts]
        sums = torch.tensor([tail_sums([a for a, _ in rows], [t for _, t in rows])], device=mask.device)
        weighted, tail_mass = self.trainer.accelerator.gather(sums).sum(0).tolist()
        if tail_mass > 0:
            self._log({"advantage/tail_mean": weighted / tail_mass})

    def _lack_mass(self, trajectories: Sequence[Trajectory] | None) -> bool:
        """Whether the trajectories do not say what their sampler kept, on any process: vLLM does not say it, and a
        sampler without truncation has nothing to say. False without trajectories, whose sampler is not known."""
        if trajectories is None:
            return False
        accelerator = self.trainer.accelerator
        known = any(turn.mask_mass for t in trajectories for turn in t.turns)
        return not bool(accelerator.gather(torch.tensor([known], device=accelerator.device)).any())

    def _log_mass(self, batch: dict[str, Any], mask: Tensor) -> None:
        """The policy's probability inside the sampling mask of TRL's sampler. A truncated sampler's is measured on a
        few tokens of a few rollouts: the whole vocabulary at every token would not fit into memory."""
        sampler = Truncation.of(self.trainer.args)
        if not sampler.active:
            self._log({"sampler/mask_mass": 1.0})
            return
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        if has_images(batch) or not accepts_logits_to_keep(model):
            return
        rows = slice(0, _MASS_ROWS)
        columns = mask[rows].any(0).nonzero().flatten()
        columns = columns[:: max(-(-len(columns) // _MASS_TOKENS), 1)]
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)[rows]
        attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)[rows]
        with torch.no_grad(), self._evaluating(), self.trainer.accelerator.autocast():
            before = batch["prompt_ids"].size(1) + columns - 1  # the position that predicts a token
            logits = self.trainer.model(input_ids=ids, attention_mask=attention, logits_to_keep=before).logits
        masses = sampler.mask_mass(logits.float()[mask[rows][:, columns]])
        sums = torch.stack([masses.sum(), torch.tensor(float(len(masses)), device=masses.device)])[None]
        total, count = self.trainer.accelerator.gather(sums).sum(0).tolist()
        if count:
            self._log({"sampler/mask_mass": total / count})

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Without dropout."""
        self.trainer.model.eval()
        try:
            yield
        finally:
            self.trainer.model.train()

    def _log_likelihood(self, parts: list[tuple[Tensor, Tensor]]) -> None:
        width = max(rows.size(1) for rows, _ in parts)
        padded = [
            torch.nn.functional.pad(rows, (0, width - rows.size(1)), value=torch.nan).float() for rows, _ in parts
        ]
        correct = torch.cat([correct for _, correct in parts])
        rows = torch.cat([correct[:, None].float(), torch.cat(padded)], -1)
        rows = self._gather(rows)
        self._log(likelihood_metrics(rows[:, 1:], rows[:, 0] > 0))

    def _gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, which may have different widths."""
        accelerator = self.trainer.accelerator
        return accelerator.gather(accelerator.pad_across_processes(rows, dim=1, pad_index=torch.nan))

    def _mean_over_processes(self, metrics: dict[str, float]) -> dict[str, float]:
        accelerator = self.trainer.accelerator
        values = torch.tensor([list(metrics.values())], device=accelerator.device)
        return dict(zip(metrics, accelerator.gather(values).mean(0).tolist(), strict=True))

    def _log(self, metrics: dict[str, float]) -> None:
        log = self.trainer._metrics["train"]
        for name, value in metrics.items():
            log[f"holdfast/{name}"].append(value)


def per_token_advantages(batch: dict[str, Any]) -> Tensor:
    """float [B, 1] or [B, T]: TRL has one a rollout, or one a token."""
    advantages: Tensor = batch["advantages"]
    return advantages[:, None] if advantages.dim() == 1 else advantages


def signed_advantages(batch: dict[str, Any]) -> Tensor:
    """`per_token_advantages`, and exactly 0 in groups with equal rewards.

    There TRL's advantage is the rounding of a mean: −7e-5 for eight rewards of 0.1, +3e-4 for eight of 0.3. A penalty
    that goes by its sign would act by chance.
    """
    advantages = per_token_advantages(batch)
    if batch["advantages"].dim() > 1:
        return advantages  # of a subclass, which has its own
    return torch.where(batch["holdfast_equal"][:, None], 0.0, advantages)


def rewarded(batch: dict[str, Any], mask: Tensor) -> Tensor:
    """bool [B, T]: `mask` without the rollouts that have no reward."""
    known: Tensor = batch["holdfast_rewarded"]
    return mask & known[:, None]


def has_images(batch: dict[str, Any]) -> bool:
    """Whether the prompts have images or videos, so that tokens alone are not what the model reads."""
    return any(batch.get(name) is not None for name in _IMAGES)


def action_ids_of(batch: dict[str, Any], mask: Tensor) -> Tensor:
    """int [B, T]: the action ids of the rollouts, or else the numbered runs of the mask."""
    ids = batch.get("holdfast_action_ids")
    return action_ids_from_mask(mask) if ids is None else ids
