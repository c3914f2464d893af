"""TRL's AsyncGRPOTrainer: the methods that `with_penalties` adds to it.

    from trl import AsyncGRPOTrainer  # from TRL 1.18 on; before, trl.experimental.async_grpo has it

    Trainer = with_penalties(AsyncGRPOTrainer, LLDS(coef=0.2, threshold=0.01))

The old policy of a penalty is the sampler: each token's log-prob is vLLM's, under the weights that drew it, which are
up to `max_staleness` synchronisations and one fetched batch behind. So a penalty acts on every step but the first.
vLLM's numbers also differ a little from the trainer's before any update, and without a threshold such noise counts.

The loss gets the sampled tokens of packed rollouts in one row, without rewards. `model` is wrapped for the time of a
loss, to keep the log-probs that TRL computes, and the tokens are put back into rollouts. A place between two tokens
that was not sampled is an observation, and separates actions.

By what TRL divides its loss is read off the loss itself (`token_weight`). So `coef` means the same in versions that
divide by the tokens of a micro-batch (1.16) and in those that divide by the tokens of the accumulation window (#7249).

The trainer is known by the name of its class, wherever TRL keeps it, and nothing of its modules is imported. What is
read of its batches and its log is checked at the first step, because another version may have other names.

Source: trl 1.16, `experimental/async_grpo`.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from holdfast.adapters.host_losses import measure
from holdfast.adapters.trl.mask import Trainer
from holdfast.adapters.trl.notices import dropout_noise, warn
from holdfast.adapters.trl.penalty_mixin import Settings, no_logprobs
from holdfast.base.errors import ConfigError
from holdfast.base.tested import TESTED
from holdfast.hosts.trl import ASYNC_LOGGED
from holdfast.methods.penalties import LLDS

_MAX_RATIO = "ratio/max"
_ROUNDING = 1e-4
"""A smaller advantage is that of equal rewards. TRL divides the rounding of their mean, in float64, by 1e-8, which for
rewards of 100 gives 1.4e-6. Where rewards differ, only one beside their mean has as small an advantage."""
NAME, OLDEST = "AsyncGRPOTrainer", (1, 16)
BATCH = ("advantages", "attention_mask", "old_log_probs", "position_ids", "segment_id", "token_index")
"""What is read of a batch."""


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


def token_weight(slope: Tensor, change: Tensor, mask: Tensor) -> Tensor:
    """0-d: what the host's loss multiplies a token's term by, such as 1 / (tokens of the window / processes).

    The slope of the loss by the advantage of a token is -weight × its ratio, where the clip changes nothing. So it is
    read at the token whose ratio is nearest to 1.

    Args:
        slope: float [S, W].
        change: float [S, W], log-probs minus the old ones.
        mask: bool [S, W].
    """
    nearest = torch.where(mask, change.abs(), torch.inf).argmin()
    return -slope.flatten()[nearest] / change.flatten()[nearest].exp()


def _lacks(names: Iterable[str], what: str) -> str:
    """A sentence on names that this TRL does not have."""
    tested = TESTED["trl"]
    return (
        f"{NAME} of trl {version('trl')} has no {', '.join(names)} in its {what}. The newest that holdfast was tested "
        f"with is {tested.newest}: pip install 'trl<{tested.untested}'"
    )


class AsyncMixin(Trainer):
    """The methods that `with_penalties` adds; each calls `super()`."""

    holdfast_settings: Settings
    _log_was_checked = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.accelerator.is_main_process and (noise := dropout_noise(self.model, self.holdfast_settings.penalty)):
            warn(noise)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """TRL's loss plus the penalty; in evaluation TRL's alone."""
        if not self.model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)
        missing = [name for name in BATCH if name not in inputs]
        missing += ["_metrics['train']"] * ("train" not in getattr(self, "_metrics", ()))
        if missing:
            raise ConfigError(_lacks(missing, "batches or metrics, so a penalty cannot be computed or logged"))
        outputs: list[Any] = []
        penalty, term = self.holdfast_settings.penalty, None
        watched = inputs["advantages"].detach().requires_grad_(penalty is not None)

        def forward(**model_inputs: Any) -> Any:
            outputs.append(model(**model_inputs))
            return outputs[-1]

        loss: Tensor = super().compute_loss(forward, inputs | {"advantages": watched}, *args, **kwargs)
        logprobs = getattr(outputs[0], "log_probs", None) if outputs else None
        if logprobs is None or logprobs.numel() != inputs["attention_mask"].sum():
            raise no_logprobs(NAME)
        new, old, advantages, mask = unpacked(inputs, logprobs)
        advantages = torch.where(advantages.abs() < _ROUNDING, 0.0, advantages)
        arguments = (new, old, advantages, mask)
        preserved = (penalty or LLDS()).preserved(advantages, mask)
        sums: dict[str, tuple[Tensor, Tensor]] = {}
        if penalty is not None:
            term = penalty.per_token(*arguments, preserved=preserved)
            tokens, kept = mask.sum().float(), (preserved & mask).sum().float()
            total, count = penalty.coef * term.sum(), tokens
            (slope,) = torch.autograd.grad(loss, watched, retain_graph=True, allow_unused=True)  # not by the model
            if slope is None:
                raise no_logprobs(NAME)
            weight = token_weight(unpacked(inputs | {"advantages": slope}, logprobs)[2], (new - old).detach(), mask)
            if penalty.normalizer == "preserved":
                kept_of_all, of_all = self.accelerator.reduce(torch.stack([kept, tokens]), reduction="sum")
                weight, count = weight * of_all / kept_of_all.clamp(min=1), kept
            loss = loss + weight * total
            sums["loss/penalty"] = total.detach(), count
        measured = measure(preserved, None if term is None else term.detach(), *arguments)
        largest = measured.pop(_MAX_RATIO).value
        sums |= {name: (mean.value * mean.count, mean.count) for name, mean in measured.items()}
        self._log_sums(sums, largest)
        return loss

    def log(self, *args: Any, **kwargs: Any) -> None:
        """TRL's. Warns, once, of names that are not in the log of a step."""
        if self.model.training and self.accelerator.is_main_process and not self._log_was_checked:
            self._log_was_checked = True
            logged = getattr(self, "_metrics", {}).get("train", ())
            if missing := [name for name in ASYNC_LOGGED if name not in logged]:
                warn(_lacks(missing, "log, so rules of `holdfast diagnose` that read them say nothing"))
        super().log(*args, **kwargs)

    @torch.no_grad()
    def _log_sums(self, sums: dict[str, tuple[Tensor, Tensor]], largest: Tensor) -> None:
        """TRL divides the sums of pairs over its logging window, and takes the largest of a name that ends in max."""
        log = self._metrics["train"]
        table = torch.stack([torch.stack([part.double() for part in pair]) for pair in sums.values()])
        totals = self.accelerator.reduce(table, reduction="sum").tolist()
        for name, (value, count) in zip(sums, totals, strict=True):
            if count:
                log[f"holdfast/{name}"].append((value, count))
        log[f"holdfast/{_MAX_RATIO}"].append(float(self.accelerator.gather(largest).max()))
