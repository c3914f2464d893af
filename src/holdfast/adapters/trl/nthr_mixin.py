"""TRL: NTHR, the weights of tokens in negative rollouts that hurt positive ones of the same question.

`with_penalties(..., nthr=True)`. TRL's output layer is never called: TRL multiplies hidden states by its weight, a tile
at a time. So a hook on the layers below it reads the states, in a forward pass of its own before the update, over the
rollouts of groups that have both signs. The factors multiply the advantages that TRL's loss sees, and nothing else
does: a penalty and the log have the advantages as they were. Every `loss_type` is proportional to the advantage of a
token, given its sign, so these are factors on the policy loss, as in the local trainer.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from holdfast.adapters.trl.mask import Trainer, loss_mask
from holdfast.adapters.trl.observe import has_images, per_token_advantages
from holdfast.agent.batch import TokenBatch
from holdfast.base.errors import ConfigError
from holdfast.methods.nthr import nthr_factors, output_layer, rows_for_nthr

FACTORS = "holdfast_nthr"
"""In the batch: float [B, T]."""
_ASKED = "with_penalties(nthr=True)"


class NthrMixin(Trainer):
    """The methods that `nthr` adds to the trainer; each calls `super()`. Evaluation stays as it is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        output_layer(self._plain_model(), _ASKED)
        rows = self.args.per_device_train_batch_size * self.args.steps_per_generation
        if rows % self.num_generations:
            raise ConfigError(
                f"{_ASKED}: a process has {rows} rollouts (per_device_train_batch_size × steps_per_generation), which "
                f"are not whole groups of num_generations={self.num_generations}, and NTHR compares the rollouts of a "
                "group. Make the first a multiple of the second"
            )

    def _plain_model(self) -> Any:
        """The model without wrappers, as a `LanguageModel` has it."""
        return SimpleNamespace(model=self.accelerator.unwrap_model(self.model))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.model.training:
            batch[FACTORS] = self._nthr_factors(batch)
        return batch

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if FACTORS in inputs and self.model.training:
            inputs = inputs | {"advantages": per_token_advantages(inputs) * inputs[FACTORS]}
        loss: Tensor = super()._compute_loss(model, inputs)
        return loss

    @torch.no_grad()
    def _nthr_factors(self, batch: dict[str, Any]) -> Tensor:
        if has_images(batch):
            raise ConfigError(f"{_ASKED}: the prompts have images, but this pass takes only tokens. Leave nthr out")
        tokens = _token_batch(batch, self.num_generations)
        rows = rows_for_nthr(tokens).nonzero().flatten()
        if not len(rows):
            return torch.ones_like(tokens.advantages)
        ids, attention = (
            torch.cat([batch[f"prompt_{name}"], batch[f"completion_{name}"]], 1)[rows] for name in ("ids", "mask")
        )
        width, masks, hidden = tokens.token_ids.size(1), iter(tokens.loss_mask[rows]), list[Tensor]()

        def collect(_: Any, __: Any, output: Any) -> None:
            hidden.extend(row[next(masks)] for row in output.last_hidden_state[:, -width - 1 : -1])

        plain = self._plain_model()
        hook = plain.model.base_model.register_forward_hook(collect)
        self.model.eval()  # without dropout
        try:
            logprobs, *_ = self._get_per_token_logps_and_entropies(
                self.model, ids, attention, width, batch_size=self.args.per_device_train_batch_size
            )
        finally:
            hook.remove()
            self.model.train()
        old = logprobs.new_zeros(tokens.loss_mask.shape).index_copy(0, rows, logprobs)
        states = dict(zip(rows.tolist(), hidden, strict=True))
        return nthr_factors(replace(tokens, old_logprobs=old), states, plain, self.temperature, _ASKED)


def _token_batch(batch: dict[str, Any], group_size: int) -> TokenBatch:
    """The completions of a process: what NTHR reads, and zeros."""
    mask = loss_mask(batch)
    zeros = torch.zeros(mask.shape, device=mask.device)
    flags = torch.ones(len(mask), dtype=torch.bool, device=mask.device)
    return TokenBatch(
        token_ids=batch["completion_ids"],
        lengths=batch["completion_mask"].sum(-1),
        loss_mask=mask,
        action_ids=mask.long(),
        answer_mask=torch.zeros_like(mask),
        rollout_logprobs=zeros,
        advantages=per_token_advantages(batch),
        rewards=zeros[:, 0],
        correct=flags,
        group_ids=torch.arange(len(mask), device=mask.device) // group_size,
        valid=flags,
    )
