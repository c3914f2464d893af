"""slime and miles: their policy loss with a likelihood-preserving penalty. One function for both.

    --loss-type custom_loss
    --custom-loss-function-path holdfast.adapters.slime.loss
    --custom-config-path holdfast.yaml

with the settings of a recipe's `[loss.penalty]` in holdfast.yaml; without them the loss only observes:

    holdfast_penalty: {name: llds, coef: 0.2}

The policy loss is the host's own, with all its options. The log-probs it computes on the way are kept for the penalty,
so there is no second pass over the logits. The penalty is reduced as the policy loss is, and divided by the share of
preserved tokens.

Source: `backends/megatron_utils/loss.py` of slime 0.3.1, `backends/training_utils/loss_hub/losses.py` of miles 0.1.0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from holdfast.adapters.host_losses import PreservedShare, penalty_of, preserved_counts
from holdfast.base.errors import ConfigError
from holdfast.base.importing import import_named
from holdfast.methods.penalties import LLDS, Penalty

__all__ = ["loss"]

HOSTS = {
    "slime.backends.megatron_utils.loss": "slime.backends.megatron_utils.cp_utils",
    "miles.backends.training_utils.loss_hub.losses": "miles.backends.training_utils.cp_utils",
}
"""Module of `policy_loss_function` -> module with the host's functions for context parallelism, where each process has
two pieces of a rollout."""

_FORWARD = "get_log_probs_and_entropy"


def loss(
    args: Any, batch: Mapping[str, Any], logits: Tensor, sum_of_sample_mean: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss, metrics) of the host's policy loss plus coef × penalty; metrics include `holdfast/…`.

    Without a penalty, or with a `coef` of 0, loss and gradient stay as they are, bit for bit.

    Args:
        args: the host's arguments.
        batch: a micro-batch of it, as lists with one tensor [R] for each rollout.
        logits: float [1, T, V].
        sum_of_sample_mean: the host's reduction of a per-token value, [sum of R].

    Raises:
        ConfigError: settings that cannot work, or under which the penalty is always 0.
    """
    name = next((name for name in HOSTS if name in sys.modules), None)
    if name is None:
        raise ConfigError(
            f"{__name__}.loss: neither slime nor miles runs in this process. Pass this name to one of them as "
            "--custom-loss-function-path"
        )
    module = sys.modules[name]
    penalty, share = _penalty(json.dumps(getattr(args, "holdfast_penalty", None)), name.partition(".")[0])
    for problem in problems(args, penalty):
        raise ConfigError(problem)
    with _forward_of(module) as forward:
        base, metrics = module.policy_loss_function(args, batch, logits, sum_of_sample_mean)
    logprobs = forward[-1]["log_probs"]
    old = batch.get("rollout_log_probs" if args.use_rollout_logprobs else "log_probs")  # as the host chooses them
    pieces = import_module(HOSTS[name]) if getattr(args, "context_parallel_size", 1) > 1 else None
    rows = _rows(penalty or LLDS(), logprobs, old or logprobs, batch, pieces)
    values, preserved, ratios, counts = (torch.cat(parts) for parts in zip(*rows, strict=True))
    shown = {"penalty/preserved_fraction": preserved, "ratio/mean": ratios}
    series = {name: sum_of_sample_mean(x).detach() for name, x in shown.items()}
    if penalty is not None:
        added = share.coefficient(penalty, counts) * _policy_reducer(args, batch, sum_of_sample_mean)(values)
        base = base + added if penalty.coef else base
        series["loss/penalty"] = added.detach()
    return base, {**metrics, **{f"holdfast/{name}": value for name, value in series.items()}}


def problems(args: Any, penalty: Penalty | None) -> Iterator[str]:
    """A sentence for each of the host's arguments with which this loss cannot work."""
    if getattr(args, "context_parallel_size", 1) > 1 and getattr(args, "qkv_format", "thd") != "thd":
        yield (
            f"--qkv-format {args.qkv_format} with --context-parallel-size {args.context_parallel_size}: holdfast's "
            "loss then cannot locate the pieces of a rollout. Set --qkv-format thd, the default"
        )
    if penalty is None or penalty.acts_without_drift:
        return
    drifts = getattr(args, "use_rollout_logprobs", False) or getattr(args, "keep_old_actor", False)
    if not drifts and steps_per_rollout(args) == 1:
        yield (
            "there is one optimizer step per rollout batch. On that step the policy equals the old policy, so the "
            "penalty is always 0. Set --num-steps-per-rollout to 2 or more (published runs took 10), without "
            "--global-batch-size"
        )


def steps_per_rollout(args: Any) -> int:
    """Optimizer steps on one rollout batch, as the host derives them from its arguments."""
    if given := getattr(args, "num_steps_per_rollout", None):
        return int(given)
    rollouts = args.rollout_batch_size * args.n_samples_per_prompt
    return max(1, rollouts // (args.global_batch_size or rollouts))


@cache
def _penalty(section: str, host: str) -> tuple[Penalty | None, PreservedShare]:
    """The penalty of `holdfast_penalty` as JSON, and the share of tokens it preserves."""
    return penalty_of(json.loads(section), host), PreservedShare()


@contextmanager
def _forward_of(module: ModuleType) -> Iterator[list[dict[str, list[Tensor]]]]:
    """Within this context, what the host's forward pass returns is added to a list."""
    original: Callable[..., Any] = getattr(module, _FORWARD)
    seen: list[dict[str, list[Tensor]]] = []

    def forward(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        seen.append(result[-1] if isinstance(result, tuple) else result)  # slime: (empty tensor, dict)
        return result

    setattr(module, _FORWARD, forward)
    try:
        yield seen
    finally:
        setattr(module, _FORWARD, original)


def _rows(
    penalty: Penalty, logprobs: list[Tensor], old: list[Tensor], batch: Mapping[str, Any], pieces: Any
) -> Iterator[tuple[Tensor, ...]]:
    """For each rollout: the penalty per token, whether a token is preserved, and its ratio, float [R] each; and its
    `preserved_counts`, int [1, 2].

    With context parallelism R is what this process has of a rollout, in the results and in all of `batch` but the
    masks. `pieces`, the host's module, puts rollouts together for the penalty and takes them apart again.
    """
    lengths = zip(batch["total_lengths"], batch["response_lengths"], strict=True)
    of_rollouts = zip(logprobs, old, batch["advantages"], strict=True)
    for mask, length, local in zip(batch["loss_masks"], lengths, of_rollouts, strict=True):
        whole = local if pieces is None else [pieces.all_gather_with_cp(x, *length) for x in local]
        new, before, advantages = whole[0][None], whole[1].detach()[None], whole[2].detach()[None]
        inside = mask.bool()[None]
        preserved = penalty.preserved(advantages, inside) & inside
        ratio = torch.where(inside, new.detach() - before, 0.0).clamp(-20, 20).exp()
        values = penalty.per_token(new, before, advantages, inside, preserved=preserved)
        row = (values[0], preserved[0].to(new.dtype), ratio[0])
        row = row if pieces is None else tuple(pieces.slice_log_prob_with_cp(x, *length) for x in row)
        yield *row, preserved_counts(preserved, inside)


def _policy_reducer(
    args: Any, batch: Mapping[str, Any], sum_of_sample_mean: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """What reduces the policy loss."""
    path = getattr(args, "custom_pg_loss_reducer_function_path", None)
    if path is None:
        return sum_of_sample_mean
    make = import_named(":".join(path.rsplit(".", 1)))
    reducer: Callable[[Tensor], Tensor] = make(
        batch["total_lengths"], batch["response_lengths"], batch["loss_masks"], args.calculate_per_token_loss
    )
    return reducer
