"""TRL's AsyncGRPOTrainer: the methods that `with_penalties` adds to it.

    from trl.experimental.async_grpo import AsyncGRPOTrainer

    Trainer = with_penalties(AsyncGRPOTrainer, LLDS(coef=1.0, threshold=0.01))

Its old log-probs are vLLM's, from a policy that is up to `max_staleness` updates behind. So a penalty acts on every
step. They also differ a little from the trainer's before any update, and without a threshold such noise counts.

The loss gets the sampled tokens of packed rollouts in one row, without rewards. `model` is wrapped for the time of a
loss, to keep the log-probs that TRL computes, and the tokens are put back into rollouts. A place between two tokens
that was not sampled is an observation, and separates actions.

Source: trl 1.16, `experimental/async_grpo`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.adapters.host_losses import measure
from holdfast.adapters.trl_mask import Trainer
from holdfast.adapters.trl_penalty import Settings
from holdfast.methods.penalties import LLDS

_LARGEST = "ratio/max"
NAME, OLDEST = "AsyncGRPOTrainer", (1, 16)


def unpacked(inputs: dict[str, Any], logprobs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probs with gradient, those of the sampler, advantages and mask of the sampled tokens of a packed row.

    Each is [S, W]: a row for each of the process's S rollouts, W columns from its first sampled token. The mask is
    False on observations and padding.

    Args:
        inputs: of `compute_loss`.
        logprobs: float [1, N], of the N tokens that it passed on.
    """
    selected = inputs["token_index"] >= 0
    places, row = inputs["token_index"][selected], inputs["segment_id"][selected]
    at = inputs["position_ids"][inputs["attention_mask"].bool()][places]  # where it stands in its rollout
    first = at.new_full((int(row.max()) + 1,), int(at.max())).scatter_reduce(0, row, at, "amin")
    column = at - first[row]
    empty = logprobs.new_zeros(len(first), int(column.max()) + 1)

    def spread(values: Tensor) -> Tensor:
        return empty.to(values.dtype).index_put((row, column), values)

    return (
        spread(logprobs.flatten()[places]),
        spread(inputs["old_log_probs"][selected]),
        spread(inputs["advantages"][selected]),
        spread(torch.ones_like(row, dtype=torch.bool)),
    )


class AsyncMixin(Trainer):
    """The methods that `with_penalties` adds; each calls `super()`."""

    holdfast_settings: Settings

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """TRL's loss plus the penalty; in evaluation TRL's alone."""
        if not self.model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)
        outputs = []

        def forward(**model_inputs: Any) -> Any:
            outputs.append(model(**model_inputs))
            return outputs[-1]

        loss: Tensor = super().compute_loss(forward, inputs, *args, **kwargs)
        arguments = unpacked(inputs, outputs[0].log_probs)
        _, _, advantages, mask = arguments
        penalty, term = self.holdfast_settings.penalty, None
        preserved = (penalty or LLDS()).preserved(advantages, mask)
        sums: dict[str, tuple[Tensor, Tensor]] = {}
        if penalty is not None:
            term = penalty.per_token(*arguments, preserved=preserved)
            count = (preserved & mask if penalty.normalizer == "preserved" else mask).sum().float()
            share = self.accelerator.reduce(count, reduction="sum").clamp(min=1) / self.accelerator.num_processes
            total = penalty.coef * term.sum()
            loss = loss + total / share / self.current_gradient_accumulation_steps
            sums["loss/penalty"] = total.detach(), count
        measured = measure(preserved, None if term is None else term.detach(), *arguments)
        largest = measured.pop(_LARGEST).value
        sums |= {name: (mean.value * mean.count, mean.count) for name, mean in measured.items()}
        self._log_sums(sums, largest)
        return loss

    @torch.no_grad()
    def _log_sums(self, sums: dict[str, tuple[Tensor, Tensor]], largest: Tensor) -> None:
        """TRL divides the sums of pairs over its logging window, and takes the largest of a name that ends in max."""
        log = self._metrics["train"]
        table = torch.stack([torch.stack([part.double() for part in pair]) for pair in sums.values()])
        totals = self.accelerator.reduce(table, reduction="sum").tolist()
        for name, (value, count) in zip(sums, totals, strict=True):
            if count:
                log[f"holdfast/{name}"].append((value, count))
        log[f"holdfast/{_LARGEST}"].append(float(self.accelerator.gather(largest).max()))
