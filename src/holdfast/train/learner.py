"""The learner: a model, its optimizer and its loss. Reinforcement learning changes weights only here.

For each rollout batch: one pass under the old weights, then one optimizer step per mini-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.methods.nthr import nthr_factors, output_layer, rows_for_nthr
from holdfast.model.language_model import LanguageModel
from holdfast.model.passes.logprobs import TokenLogprobs, hidden_states, log_distributions, masked_logprobs
from holdfast.model.passes.packed import packable
from holdfast.model.sampler.sampling import SamplerRatios, SamplingMask
from holdfast.model.support import decoder_layers, give_back_memory, worth_sharing
from holdfast.recipe import Config, Sampling, Train
from holdfast.train.objective import Measured, Objective, may_skip, update_metrics
from holdfast.train.optimizer import adamw, clipped_step, set_learning_rate, training_mode, weights_in_place
from holdfast.train.plan import Plan, apart, gathered, in_order, plan_alike, plan_update, shuffled

AsSampler = Callable[[], AbstractContextManager[None]]
"""A context in which the model has the weights that the rollouts were sampled with."""


class OldPass(NamedTuple):
    """A rollout batch with the log-probs under the weights that its update begins with."""

    minibatches: list[list[TokenBatch]]
    """For each optimizer step, its micro-batches, with all log-probs that the loss compares with."""
    batch: TokenBatch
    """All rows, with `old_logprobs` over the whole vocabulary, also if the loss is over the sampling mask, and
    `old_entropy`, and `misplaced` if that was asked for."""
    entropy: float
    """Mean over sampled tokens, in nats."""


class Reference:
    """A frozen policy: a copy of the trained weights as they are now, or `weights` instead, put into the model for its
    passes.

    The one a run started from is the reference of the KL. Fresh LoRA adapters add nothing, so the reference is then the
    model without them. After a warm start of adapters it is the warm-started policy.
    """

    def __init__(self, language_model: LanguageModel, weights: Sequence[Tensor] = ()) -> None:
        self._trained = [p for p in language_model.model.parameters() if p.requires_grad]
        source = weights or self._trained
        self.weights = [w.detach().to(p, copy=True) for p, w in zip(self._trained, source, strict=True)]
        """Copies of the trained parameters, in the model's order."""

    def in_place(self) -> AbstractContextManager[None]:
        """Within this context the model has the weights of the reference. Do not differentiate passes in it."""
        return weights_in_place(self._trained, self.weights)


class Learner:
    """A model that learns from rollout batches.

    Args:
        language_model: its weights that require a gradient are trained, in place.
        objective: the loss.
        train: the settings of the optimizer steps.
        sampling: settings of the sampler. Log-probs are at its temperature; with `mask_logprobs` those of the loss are
            over the tokens that the truncated sampler can draw.
        reference: gives `ref_logprobs`; None for a loss without KL.
    """

    def __init__(
        self,
        language_model: LanguageModel,
        objective: Objective,
        train: Train,
        sampling: Sampling,
        reference: Reference | None = None,
    ) -> None:
        self.language_model, self.objective = language_model, objective
        self.sampling, self.reference = sampling, reference
        self.anchor: Reference | None = None
        self.parameters: list[Tensor] = [p for p in language_model.model.parameters() if p.requires_grad]
        self.optimizer = adamw(self.parameters, lr=train.lr, weight_decay=train.weight_decay)
        self._train = train
        self._nthr = objective.loss.methods.nthr.on
        self._reads_sampler = objective.loss.methods.score_centering.on
        # In a tiny model another pass costs more than it saves, and recorded runs could not be replayed.
        large = bool(decoder_layers(language_model.model)) and worth_sharing(language_model.model)
        self._skips = large and may_skip(objective.loss)
        if self._nthr:
            output_layer(language_model)

    def plan(self, batch: TokenBatch, generator: torch.Generator) -> Plan:
        """How to update on `batch`, in `train.optimizer_steps_per_rollout` optimizer steps. Rows that the update skips
        get passes of their own, where that pays."""
        steps, rows = self._train.optimizer_steps_per_rollout, len(batch)
        minibatches = (
            shuffled(rows, steps, generator) if self._train.minibatches == "shuffled" else in_order(rows, steps)
        )
        if not self._skips:
            return self._passes(batch, minibatches)
        learns, lengths = self.objective.learns(batch).tolist(), batch.lengths.tolist()
        parts = apart(minibatches, learns, lengths, self.language_model.device)
        passes = iter(self._passes(batch, list(itertools.chain(*parts))))
        return [[micro for _ in of_mini for micro in next(passes)] for of_mini in parts]

    def plan_whole(self, batch: TokenBatch) -> Plan:
        """How to pass over every row of `batch`, as one optimizer step."""
        return self._passes(batch, [range(len(batch))])

    def _passes(self, batch: TokenBatch, minibatches: Sequence[Sequence[int]]) -> Plan:
        ids = [row[:length] for row, length in zip(batch.token_ids.tolist(), batch.lengths.tolist(), strict=True)]
        if packable(self.language_model.model):
            return plan_alike(ids, minibatches, self._train.micro_batch_tokens)
        device = self.language_model.device
        return plan_update([len(row) for row in ids], minibatches, self._train.micro_batch_tokens, device)

    def logprobs(self, token_ids: Tensor, loss_mask: Tensor, **options: Any) -> TokenLogprobs:
        """`token_logprobs` under the present weights, at the temperature of the sampler, with other `options`."""
        return self.language_model.logprobs(token_ids, loss_mask, temperature=self.sampling.temperature, **options)

    @torch.no_grad()
    def old_pass(
        self,
        batch: TokenBatch,
        plan: Plan,
        misplaced: SamplingMask | None = None,
        sampler: AsSampler | None = None,
    ) -> OldPass:
        """Old log-probs, computed on the same shapes as the update. `misplaced`: tokens whose probability to log.
        `sampler`: None if the rollouts were sampled with the weights that the model has now.

        Equal shapes make the log-probs of the first optimizer step equal to the old ones bit for bit, so that no gate
        opens on numerical noise.
        """
        of_rows = list(itertools.chain.from_iterable(plan))
        scored = rows_for_nthr(batch).tolist() if self._nthr else [False] * len(batch)
        passes = [self._policy_pass(batch.select(rows).trim(), rows, misplaced, scored) for rows in of_rows]
        micros = [micro for micro, _ in passes]
        hidden = {row: state for _, states in passes for row, state in states.items()}
        entropy = sum(float(micro.old_entropy.sum()) for micro in micros if micro.old_entropy is not None)

        def of_all(field: str) -> Tensor:
            return gathered([getattr(micro, field) for micro in micros], plan, batch.rollout_logprobs)

        whole = replace(batch, old_logprobs=of_all("old_logprobs"), old_entropy=of_all("old_entropy"))
        whole = whole if misplaced is None else replace(whole, misplaced=of_all("misplaced"))
        if self.objective.loss.old_policy == "sampler":
            micros = [replace(micro, old_logprobs=micro.rollout_logprobs) for micro in micros]
        if self._reads_sampler or self.sampling.mask_logprobs:
            micros = [self._sampler_pass(micro, sampler) for micro in micros]
        micros = [self._frozen_passes(micro) for micro in micros]
        for operation in self.objective.operations:
            micros = [operation.on_old_policy(micro) for micro in micros]
        if hidden:
            factors = nthr_factors(whole, hidden, self.language_model, self.sampling.temperature)
            parts = zip(micros, of_rows, strict=True)
            micros = [micro.weighted(factors[rows, : micro.loss_mask.shape[1]]) for micro, rows in parts]
        tokens, rest = sum(int(micro.loss_mask.sum()) for micro in micros), iter(micros)
        return OldPass([[next(rest) for _ in mini] for mini in plan], whole, entropy / max(tokens, 1))

    def _policy_pass(
        self,
        micro: TokenBatch,
        rows: Sequence[int],
        misplaced: SamplingMask | None,
        scored: Sequence[bool],
    ) -> tuple[TokenBatch, dict[int, Tensor]]:
        """With log-probs and entropies under the weights as they are, over the whole vocabulary; and, for each row of
        the batch that is `scored`, float [n, d], the states that predict its n sampled tokens."""
        nothing: AbstractContextManager[list[Tensor]] = nullcontext([])
        with hidden_states(self.language_model.model) if any(scored) else nothing as states:
            wanted = None if misplaced is None else misplaced.select(rows).to(micro.token_ids.device)
            old, entropy, mass = self.logprobs(micro.token_ids, micro.loss_mask, entropy=True, mass_of=wanted)
        hidden: dict[int, Tensor] = {}
        for of_micro in states:
            by_row = of_micro.split(micro.loss_mask[:, 1:].sum(-1).tolist())
            hidden |= {row: state.clone() for row, state in zip(rows, by_row, strict=True) if scored[row]}
        return replace(micro, old_logprobs=old, old_entropy=entropy, misplaced=mass), hidden

    def _sampler_pass(self, micro: TokenBatch, sampler: AsSampler | None) -> TokenBatch:
        """With what the sampler could draw: the loss is over it, or methods read its log-mass."""
        assert micro.old_logprobs is not None
        sampling, dtype = self.sampling, self.language_model.autocast_dtype
        tensors = (self.language_model.model, micro.token_ids, micro.loss_mask)
        if self._reads_sampler and sampler is not None:
            with sampler():
                log_q = log_distributions(*tensors, temperature=sampling.temperature, autocast_dtype=dtype)
            log_p_old = log_distributions(*tensors, temperature=sampling.temperature, autocast_dtype=dtype)
            of_rows = SamplerRatios(log_q.sub_(log_p_old).split(micro.loss_mask[:, 1:].sum(-1).tolist()))
            return replace(micro, sampling_mask=of_rows, old_log_mass=torch.zeros_like(micro.old_logprobs))
        masked, drawable = masked_logprobs(
            *tensors,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            autocast_dtype=dtype,
        )
        if sampling.mask_logprobs:
            return replace(micro, sampling_mask=drawable, old_logprobs=masked)
        return replace(micro, sampling_mask=drawable, old_log_mass=micro.old_logprobs - masked)

    def _frozen_passes(self, micro: TokenBatch) -> TokenBatch:
        """With log-probs under the reference and the anchor, where there are any."""
        mask = micro.sampling_mask if self.sampling.mask_logprobs else None

        def under(policy: Reference | None) -> Tensor | None:
            if policy is None:
                return None
            with policy.in_place():
                return self.logprobs(micro.token_ids, micro.loss_mask, sampling_mask=mask)[0]

        return replace(micro, ref_logprobs=under(self.reference), anchor_logprobs=under(self.anchor))

    def renew_anchor(self, weights: Sequence[Tensor] = ()) -> None:
        """From the next old pass on, the penalty compares with the policy as it is now, or with that of `weights`."""
        self.anchor = Reference(self.language_model, weights)

    def step(self, minibatches: Sequence[Sequence[TokenBatch]], *, mean_searches: float) -> dict[str, float]:
        """One optimizer step per mini-batch. Returns the metrics that only an update can measure.

        Each step is exact whatever its micro-batches are: terms are summed over them and divided by the mini-batch's
        own count. A micro-batch that changes nothing but counts gets no pass, where `may_skip`. A step whose gradient
        norm is not finite is skipped and counted. `mean_searches`, valid searches per rollout of the whole batch, sets
        an adaptive answer weight.
        """
        objective, steps, norms = self.objective, list[list[Measured]](), list[float]()
        answer_weight = objective.answer_weight(mean_searches)
        with training_mode(self.language_model):
            for mini in minibatches:
                self.optimizer.zero_grad(set_to_none=True)
                mini = self._judged(mini)
                counts = objective.count(mini)
                steps.append([])
                for micro in mini:
                    learns = bool(objective.learns(micro).any())
                    if self._skips and not learns:
                        steps[-1].append(objective.skipped(micro, counts))
                        continue
                    with torch.set_grad_enabled(learns):
                        loss, measured = objective(*self._current(micro), counts, answer_weight)
                        if loss.requires_grad:
                            loss.backward()
                    steps[-1].append(measured)
                if all(parameter.grad is None for parameter in self.parameters):  # the moments move on all the same
                    for parameter in self.parameters:
                        parameter.grad = torch.zeros_like(parameter)
                norms.append(clipped_step(self.optimizer, self.parameters, self._train.grad_clip))
        self.optimizer.zero_grad(set_to_none=True)  # rollouts need the memory
        give_back_memory()
        weight = {} if answer_weight is None else {"penalty/answer_weight": answer_weight}
        return update_metrics(steps, norms) | weight

    @torch.no_grad()
    def _judged(self, mini: Sequence[TokenBatch]) -> Sequence[TokenBatch]:
        """The micro-batches of an optimizer step, after the operations that judge them together."""
        operations = [operation for operation in self.objective.operations if operation.judges_steps]
        logprobs = [self._current(micro)[1] for micro in mini] if operations else []
        for operation in operations:
            mini = operation.on_step(mini, logprobs)
        return mini

    def supervise(self, batch: TokenBatch) -> float:
        """One optimizer step on the mean negative log-prob of the sampled tokens. Returns that mean, in nats."""
        tokens, total = max(int(batch.loss_mask.sum()), 1), 0.0
        (parts,) = self.plan_whole(batch)
        with training_mode(self.language_model):
            self.optimizer.zero_grad(set_to_none=True)
            for rows in parts:
                micro = batch.select(rows).trim()
                loss = -self.logprobs(micro.token_ids, micro.loss_mask).logprobs.sum() / tokens
                loss.backward()
                total += float(loss.detach())
            clipped_step(self.optimizer, self.parameters, self._train.grad_clip)
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def _current(self, micro: TokenBatch) -> tuple[TokenBatch, Tensor, Tensor | None]:
        """The batch, with `log_mass` if a method needs it; log-probs `[B, T]` of the loss under the present weights;
        entropies, if the loss has them."""
        entropy, mask = self.objective.loss.entropy_coef != 0, micro.sampling_mask
        masks = {"sampling_mask": mask} if micro.old_log_mass is None else {"mass_of": mask}
        logprobs, entropies, mass = self.logprobs(micro.token_ids, micro.loss_mask, entropy=entropy, **masks)
        return replace(micro, log_mass=mass), logprobs, entropies

    @torch.no_grad()
    def batch_logprobs(self, batch: TokenBatch, plan: Plan) -> Tensor:
        """`[B, T]`: every row of `batch` under the present weights, over the whole vocabulary, on the plan's shapes."""
        micros = (batch.select(rows).trim() for rows in itertools.chain.from_iterable(plan))
        parts = (self.logprobs(micro.token_ids, micro.loss_mask)[0] for micro in micros)
        return gathered(parts, plan, batch.rollout_logprobs)

    def token_change(self, batch: TokenBatch, plan: Plan) -> Tensor:
        """`[B, T]`, nats: log-probs under the present weights minus the old ones, 0 on tokens that were not sampled.

        With the plan of the old pass, no update is exactly 0.
        """
        assert batch.old_logprobs is not None
        return torch.where(batch.loss_mask, self.batch_logprobs(batch, plan) - batch.old_logprobs, 0.0)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next optimizer step."""
        return float(self.optimizer.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, lr: float) -> None:
        set_learning_rate(self.optimizer, lr)

    def free_training_state(self) -> None:
        """Free the memory of reference, anchor, gradients and moments, after the last step."""
        self.reference = self.anchor = None
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()
        give_back_memory()


def make_learner(config: Config, language_model: LanguageModel, reference: Reference | None = None) -> Learner:
    """The learner of a recipe, with a fresh optimizer."""
    objective = Objective(config.loss, max_tokens=config.protocol.max_sampled_tokens)
    return Learner(language_model, objective, config.train, config.sampling, reference)
