"""The methods that `with_penalties` adds to a trainer of TRL, and what they read of its batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.adapters.trl.mask import Trainer, corrects_itself, loss_mask, warning, weights_vllm
from holdfast.adapters.trl.notices import RewardWatch, dropout_noise, replaced_loss, say, warn
from holdfast.adapters.trl.observe import Observer, action_ids_of, rewarded, signed_advantages
from holdfast.adapters.trl.schedule import Schedule, checked_schedule
from holdfast.agent.trajectory import Trajectory
from holdfast.base.errors import ConfigError
from holdfast.hosts.trl import TWICE
from holdfast.losses import reduce_loss
from holdfast.methods.penalties import Penalty

# TRL's `loss_type` -> `mode` of `reduce_loss`; `reduction` has the denominators.
_MODES = {
    "grpo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",  # TRL's: Soft Adaptive Policy Optimization
    "luspo": "seq-mean-token-sum",
    "dr_grpo": "seq-mean-token-sum-norm",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "cispo": "token-mean",
    "vespo": "token-mean",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of `with_penalties`."""

    penalty: Penalty | None
    correct_above: float
    displacement_every: int
    displacement_rows: int
    mask_logprobs: bool


class PenaltyMixin(Trainer):
    """The methods that `with_penalties` adds to the trainer; each calls `super()`."""

    holdfast_settings: Settings
    _observer_class = Observer

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        penalty = self.holdfast_settings.penalty
        if kwargs.get("args") is not None:
            check_config(kwargs["args"], kwargs.get("train_dataset"), penalty)  # before a model is loaded
        super().__init__(*args, **kwargs)
        schedule = check_config(self.args, self.train_dataset, penalty)
        if self.accelerator.is_main_process:
            say(schedule.sentences(penalty))
            # TRL takes old log-probs in a pass of their own, with other dropout, only if it needs them.
            recomputes_old = schedule.period > 1 or weights_vllm(self.args)
            if recomputes_old and (noise := dropout_noise(self.model, penalty)):
                warn(noise)
        if leak := self._truncation():
            warn(leak)
        self._observer = self._observer_class(self, every=self.holdfast_settings.displacement_every)
        self._loss_was_computed = False
        self._reward_watch = RewardWatch(self.holdfast_settings.correct_above)
        self._rewards: Tensor | None = None
        self._loss_mask: Tensor | None = None
        """Of the micro-batch whose loss TRL is computing; None at other times."""
        self._host_logprobs: Tensor | None = None
        """Of the host's forward pass for that loss."""

    def _truncation(self) -> str | None:
        """A warning of a sampler that is truncated while the loss is not, or that may be corrected for twice."""
        corrected = corrects_itself(self.args)
        if self.holdfast_settings.mask_logprobs:
            return TWICE if corrected else None
        remedy = "Pass with_penalties(..., mask_logprobs=True), with top_k=512 or less"
        return warning(self.args, f"{TWICE}, and top_k=512 or less" if corrected else remedy)

    # ---- a rollout batch

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        self._rewards = super()._calculate_rewards(*args, **kwargs)
        return self._rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        self._observer.finish_displacement()  # the weights now hold the whole update of the batch before
        batch = super()._generate_and_score_completions(inputs)
        settings = self.holdfast_settings
        batch |= self._judged(len(inputs))
        mask = loss_mask(batch)
        batch |= row_tensors(inputs, mask)
        if settings.penalty is not None and settings.penalty.uses_answer_mask:
            batch["holdfast_answer_weight"] = answer_weight(self, inputs, settings.penalty)
        if settings.penalty is not None and settings.penalty.normalizer == "preserved":
            count = (preserved_tokens(settings.penalty, batch, mask) & mask).sum()
            batch["holdfast_preserved_count"] = self.accelerator.gather(count).sum()
        is_search_agent = isinstance(inputs[0].get("trajectory"), Trajectory)
        trajectories = [row["trajectory"] for row in inputs] if is_search_agent else None
        self._observer.rollout_batch(batch, mask, trajectories)
        self._observer.start_displacement(batch, rewarded(batch, mask), rows=settings.displacement_rows)
        return batch

    def _judged(self, rows: int) -> dict[str, Tensor]:
        """bool [B] each, for this process's rollouts: which are correct, which have a reward, and which are of a group
        with equal rewards.

        A rollout to which every reward function gave None has none: nobody knows whether it is correct. TRL sets its
        advantage to 0, by which a penalty would take it for one of a group with equal rewards.
        """
        assert self._rewards is not None
        names: list[str] = self.reward_func_names
        known = ~self._rewards.isnan().all(-1)
        totals = (self._rewards * self.reward_weights.to(self._rewards.device)).nansum(-1)
        totals = torch.where(known, totals, torch.nan)
        by_em = "em" in names
        correct = self._rewards[:, names.index("em")] == 1 if by_em else totals > self.holdfast_settings.correct_above
        warning = self._reward_watch.warning(totals, correct, by_em=by_em)  # of all processes
        if warning is not None and self.accelerator.is_main_process:
            warn(warning)
        groups = totals.view(-1, self.num_generations)
        low, high = groups.nan_to_num(torch.inf).amin(1), groups.nan_to_num(-torch.inf).amax(1)
        equal = torch.isclose(low, high).repeat_interleave(self.num_generations)
        if self.multi_objective_aggregation != "sum_then_normalize":
            equal = torch.zeros_like(equal)  # parts that differ may have equal sums, and advantages
        mine = slice(self.accelerator.process_index * rows, (self.accelerator.process_index + 1) * rows)
        return {
            "holdfast_correct": correct[mine],
            "holdfast_rewarded": known[mine],
            "holdfast_equal": equal[mine],
        }

    # ---- a micro-batch

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """TRL's. Refuses a first accumulation window that did not pass through `_compute_loss`."""
        loss = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients and not self._loss_was_computed:
            raise replaced_loss(self, self.holdfast_settings.penalty)
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        logprobs, entropies, *more = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._loss_mask is not None:
            logprobs = self._host_logprobs = torch.where(self._loss_mask, logprobs, 0.0)
            entropies = None if entropies is None else torch.where(self._loss_mask, entropies, 0.0)
        return logprobs, entropies, *more

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        self._loss_was_computed = True
        mask = loss_mask(inputs)
        inputs = inputs | {
            name: torch.where(mask, inputs[name], 0.0)
            for name in ("old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps")
            if inputs.get(name) is not None
        }
        self._loss_mask = mask
        try:
            loss = super()._compute_loss(model, inputs)
        finally:
            self._loss_mask = None
        logprobs, self._host_logprobs = self._host_logprobs, None
        if logprobs is None:
            raise no_logprobs("GRPOTrainer")
        return self._extended(loss, inputs, logprobs, mask)

    def _extended(self, loss: Tensor, inputs: dict[str, Any], logprobs: Tensor, mask: Tensor) -> Tensor:
        """The host's loss plus the penalty. `logprobs` float [B, T] with gradient, `mask` bool [B, T]."""
        penalty = self.holdfast_settings.penalty
        old = inputs.get("old_per_token_logps")
        old = logprobs.detach() if old is None else old
        arguments = (logprobs, old, signed_advantages(inputs), mask)
        self._observer.micro_batch(inputs, *arguments, host=loss)
        if penalty is not None:
            preserved = preserved_tokens(penalty, inputs, mask)
            per_token = penalty.per_token(
                *arguments,
                preserved=preserved,
                action_ids=action_ids_of(inputs, mask),
                answer_mask=inputs.get("holdfast_answer_mask"),
                answer_weight=inputs.get("holdfast_answer_weight", 1.0),
            )
            by_preserved = penalty.normalizer == "preserved"
            how = over_preserved(self, inputs) if by_preserved else reduction(self, inputs, mask)
            term = penalty.coef * reduce_loss(per_token, mask, **how)
            loss = loss + term
            self._observer.penalised(term, per_token, logprobs, old, mask, preserved=preserved)
        self._observer.micro_batch_done()
        return loss


def preserved_tokens(penalty: Penalty, batch: dict[str, Any], mask: Tensor) -> Tensor:
    """bool [B, T]: the tokens that the penalty acts for."""
    preserved = penalty.preserved(signed_advantages(batch), mask, batch["holdfast_correct"][:, None])
    return rewarded(batch, preserved)


def row_tensors(inputs: list[dict[str, Any]], mask: Tensor) -> dict[str, Tensor]:
    """The per-token facts that a `rollout_func` returned, as tensors [B, T] that TRL shuffles and splits with the
    batch: `action_ids` (0 outside actions, k on the k-th) and `answer_mask`. Absent where it returned none."""
    result: dict[str, Tensor] = {}
    for name, dtype in (("action_ids", torch.long), ("answer_mask", torch.bool)):
        if name in inputs[0]:
            rows = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
            for row, fields in zip(rows, inputs, strict=True):
                values = torch.as_tensor(fields[name], dtype=dtype, device=mask.device)
                row[: len(values)] = values
            result[f"holdfast_{name}"] = rows * mask
    return result


def answer_weight(trainer: Any, inputs: list[dict[str, Any]], penalty: Penalty) -> Tensor:
    """0-d: the weight of answer tokens for this rollout batch, from its mean number of searches over all processes."""
    if "answer_mask" not in inputs[0]:
        raise no_answers(penalty)
    if penalty.uses_search_count and "searches" not in inputs[0]:
        raise ConfigError(
            f"{penalty!r}: an adaptive answer_weight needs the number of searches, and these rollouts have no "
            "`searches`. Let your rollout_func return it (a number for each completion), or set answer_weight to a "
            "number"
        )
    device = trainer.accelerator.device
    searches = torch.tensor([float(row.get("searches", 0.0)) for row in inputs], device=device)
    weight = penalty.weight_at(float(trainer.accelerator.gather(searches).mean()))
    return torch.tensor(1.0 if weight is None else weight, device=device)


def no_answers(penalty: Penalty) -> ConfigError:
    """The error for rollouts whose answers are not known token by token."""
    return ConfigError(
        f"{penalty!r}: answer_weight needs the tokens of the answer, and these rollouts have no `answer_mask`. Use "
        "SearchRollouts, or let your rollout_func return `answer_mask` (0 or 1 for each token of a completion), or "
        "leave answer_weight at 1"
    )


def reduction(trainer: Any, inputs: dict[str, Any], mask: Tensor) -> dict[str, Any]:
    """The arguments of `reduce_loss` that reduce a term as TRL reduces its loss in this micro-batch.

    Source: `GRPOTrainer._compute_loss`. TRL steps on the sum over the micro-batches of an accumulation window.
    """
    window = trainer.current_gradient_accumulation_steps
    mode = _MODES[trainer.loss_type]
    if trainer.loss_type == "bnpo":  # the tokens of this micro-batch
        return {"mode": mode, "denominator": mask.sum().clamp(min=1) * window}
    if mode == "token-mean":  # the tokens of the generation batch, as a share of one window
        tokens = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
        return {"mode": mode, "denominator": tokens * window / trainer.args.steps_per_generation}
    longest = {"max_tokens": trainer.max_completion_length} if mode == "seq-mean-token-sum-norm" else {}
    return {"mode": mode, "denominator": len(mask) * window, **longest}


def over_preserved(trainer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `reduce_loss` for a mean over preserved tokens.

    As with the token count of TRL's own `dapo`, each optimizer step divides by its share of the count over the whole
    rollout batch and all processes: Σ x / (preserved tokens of the rollout batch / its optimizer steps).
    """
    count = inputs["holdfast_preserved_count"].clamp(min=1) / trainer.accelerator.num_processes
    window = trainer.current_gradient_accumulation_steps
    return {"mode": "token-mean", "denominator": count * window / trainer.args.steps_per_generation}


def no_logprobs(trainer: str) -> ConfigError:
    """The error for a loss of TRL that does not show the log-probs it is computed from."""
    return ConfigError(
        f"with_penalties({trainer}): this version of TRL computes its loss without passing on the log-probs of its "
        "tokens, perhaps in one kernel, so nothing can be added to it. Switch that kernel off, or go back to an "
        "earlier version"
    )


def check_config(args: Any, dataset: Any, penalty: Penalty | None) -> Schedule:
    """The schedule of a `GRPOConfig`. Raises `ConfigError` for one under which nothing would be trained, or the penalty
    would have no effect, or another one."""
    if penalty is not None and args.loss_type not in _MODES:
        raise ConfigError(
            f"loss_type={args.loss_type!r}: holdfast does not know its denominator, so coef would mean something "
            f"else. Use one of {', '.join(_MODES)}"
        )
    return checked_schedule(args, dataset, penalty)
