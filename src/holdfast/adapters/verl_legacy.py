"""Older verl (0.7 and before) and its forks, whose policy losses return a tuple of numbers and no metrics.

verl-tool, and others with a registry:

    from verl.trainer.ppo import core_algos
    from holdfast.adapters import verl_legacy

    verl_legacy.register(core_algos, penalty_coef=0.2)          # then policy_loss.loss_mode=holdfast_llds

Search-R1 and others whose actor calls one function, in a file the actor imports before it starts:

    core_algos.compute_policy_loss = verl_legacy.with_penalty(
        core_algos.compute_policy_loss, LLDS(coef=0.2), reduce=masked_mean_of_the_fork)

This module imports nothing of verl: it is handed the host's functions. The penalty is reduced with them too; these
versions know no global denominator, so its strength depends on micro-batches as that of their own loss does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from holdfast.adapters.verl_losses import LOSSES, PENALTY_FIELDS, penalty_for
from holdfast.adapters.verl_term import Log, base_name, measure, per_token, refuse_cut_actions
from holdfast.errors import ConfigError
from holdfast.penalties import Penalty

Reduce = Callable[..., Tensor]
OnMetrics = Callable[[dict[str, float]], None]

_MASKS = ("response_mask", "eos_mask")  # the second is what forks of early 2025 call it


def with_penalty(
    loss_fn: Callable[..., Any],
    penalty: Penalty | None,
    *,
    reduce: Reduce,
    on_metrics: OnMetrics | None = None,
    name: str = "the penalty",
) -> Callable[..., Any]:
    """`loss_fn` with coef × penalty added to the first number it returns; the rest of the tuple stays.

    Args:
        loss_fn: the host's, called as `(old_log_prob, log_prob, advantages, response_mask, …)`, by position or by
            keyword (`eos_mask` is understood too). Tensors [B, T].
        penalty: None only measures.
        reduce: `(per-token values, mask) -> scalar`, or `(values, mask, loss_agg_mode)` where `loss_fn` was called with
            `loss_agg_mode`: the host's own `masked_mean` or `agg_loss`, so that the penalty shares its denominator.
        on_metrics: called with `{"holdfast/…": number}` of every micro-batch, since the tuple has no room for them.
        name: what a warning calls it.

    Raises:
        ConfigError: `loss_fn` is called without a mask, or returns no tuple.
    """
    log = Log()

    def loss(*args: Any, **kwargs: Any) -> Any:
        returned = loss_fn(*args, **kwargs)
        if not isinstance(returned, tuple) or not isinstance(returned[0], Tensor):
            raise ConfigError(
                f"{getattr(loss_fn, '__name__', loss_fn)} returned no tuple that begins with a loss, so it is none of "
                "the older contract; for verl 0.9 import holdfast.adapters.verl"
            )
        old, new, advantages, mask = _tensors(args, kwargs)
        if penalty is None and on_metrics is None:
            return returned
        term = None if penalty is None else per_token(penalty, new, old, advantages, mask)
        value = returned[0]
        if penalty is not None and term is not None and penalty.coef:
            mode = kwargs.get("loss_agg_mode", args[4] if len(args) > 4 and isinstance(args[4], str) else None)
            value = value + penalty.coef * (reduce(term, mask) if mode is None else reduce(term, mask, mode))
        numbers = log.numbers(name, measure(penalty, term, new, old, advantages, mask))
        if on_metrics is not None:
            on_metrics(numbers)
        return (value, *returned[1:])

    return loss


def register(
    core_algos: ModuleType,
    *,
    base_loss_mode: str = "vanilla",
    on_metrics: OnMetrics | None = None,
    **settings: Any,
) -> None:
    """Register `LOSSES` in a host that has a registry (`register_policy_loss`, `get_policy_loss_fn`, `agg_loss`).

    `settings` are the `penalty_…` fields of `HoldfastPolicyLossConfig`; here they are bound once, because the older
    configuration has no room for them. Those that a loss does not read are left out for it; `holdfast_custom` is
    registered where `penalty_path` names a class. Safe to call again: the last call counts.

    Raises:
        ConfigError: an unknown setting or base loss, a value that cannot work, or a host without a registry.
    """
    missing = [n for n in ("register_policy_loss", "get_policy_loss_fn", "agg_loss") if not hasattr(core_algos, n)]
    if missing:
        raise ConfigError(
            f"{core_algos.__name__} has no {missing[0]}, so there is no registry to register in; wrap the function its "
            "actor calls with holdfast.adapters.verl_legacy.with_penalty"
        )
    if unknown := set(settings) - set(PENALTY_FIELDS):
        raise ConfigError(f"{min(unknown)} is no setting of a penalty; there are {', '.join(PENALTY_FIELDS)}")
    registered = getattr(core_algos, "POLICY_LOSS_REGISTRY", None)
    base = base_name({"base_loss_mode": base_loss_mode}, [base_loss_mode] if registered is None else registered)

    def reduce(term: Tensor, mask: Tensor, mode: str = "token-mean") -> Tensor:
        return core_algos.agg_loss(term, mask, mode)

    for loss_name, row in LOSSES.items():
        if "path" in row.settings and not settings.get("penalty_path"):
            continue  # a class of the user's own, and none is named
        read = {key: value for key, value in settings.items() if key.removeprefix("penalty_") in row.settings}
        penalty = penalty_for(loss_name, read)
        base_fn = core_algos.get_policy_loss_fn(base)
        wrapped = with_penalty(base_fn, penalty, reduce=reduce, on_metrics=on_metrics, name=loss_name)
        core_algos.register_policy_loss(loss_name)(_checking(wrapped, penalty))
    print(f"holdfast: policy losses registered with {core_algos.__name__}: {', '.join(LOSSES)}", file=sys.stderr)


def _checking(loss_fn: Callable[..., Any], penalty: Penalty | None) -> Callable[..., Any]:
    def loss(*args: Any, **kwargs: Any) -> Any:
        settings = getattr(kwargs.get("config"), "policy_loss", None)
        refuse_cut_actions(penalty, settings.get("rollout_correction") if settings is not None else None)
        return loss_fn(*args, **kwargs)

    return loss


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """old, new, advantages, mask [B, T], however the host passed them."""
    names = ("old_log_prob", "log_prob", "advantages")
    found = dict(zip((*names, "response_mask"), args, strict=False)) | kwargs
    mask = next((found[key] for key in _MASKS if key in found), None)
    if mask is None or not all(key in found for key in names):
        raise ConfigError(
            f"the policy loss was called with {', '.join(found) or 'nothing'}; a penalty needs old_log_prob, log_prob, "
            f"advantages and {' or '.join(_MASKS)}"
        )
    return found["old_log_prob"], found["log_prob"], found["advantages"], mask.bool()
