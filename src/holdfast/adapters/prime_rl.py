"""prime-rl: its RL loss with a likelihood-preserving penalty, as a custom loss by import path.

    [trainer.loss]
    type = "custom"
    import_path = "holdfast.adapters.prime_rl.loss"

    [trainer.loss.kwargs.penalty]     # [loss.penalty] of a recipe; leave it out to observe
    name = "llds"
    coef = 0.2
    threshold = 0.01

    [trainer.loss.kwargs.base]        # the [trainer.loss] of before; leave it out for prime-rl's default
    type = "ipo"
    eps = 0.2                         # in 0.8: ipo_threshold

prime-rl computes its loss rollout by rollout, as sums, and divides by the number of tokens of the whole step. The
penalty is such a sum, divided by the share of preserved tokens in recent rollouts, or with `normalizer = "policy"` the
sum alone. The old policy is the sampler: each token's log-prob under the weights that drew it, up to
`max_off_policy_steps` steps behind. The sampler's numbers differ a little from the trainer's even where it is not
behind; `threshold` keeps that noise from counting.

Source: `prime_rl.trainer.rl.loss` of prime-rl 0.8, whose losses are functions, and of its main branch since September
2026, whose losses are objects with `.loss()`. IPO is the default since pull request #3418 (27 August 2026), with an
`eps` of 0.3 and no KL since #3586 (18 September).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from holdfast.adapters.host_losses import PreservedShare, measure, penalty_of, preserved_counts
from holdfast.base.errors import ConfigError
from holdfast.methods.penalties import LLDS, Penalty

__all__ = ["loss"]


def loss(inputs: Any, *, penalty: Mapping[str, Any] | None = None, base: Mapping[str, Any] | None = None) -> Any:
    """prime-rl's loss of one rollout plus coef × penalty; `LossOutputs` with the series `holdfast/…`.

    Without a penalty, or with a `coef` of 0, loss and gradient stay as they are, bit for bit.

    Args:
        inputs: prime-rl's `LossInputs`, all [T]. `loss_weights` multiply the penalty as they do prime-rl's own terms.
        penalty: the settings of a recipe's `[loss.penalty]`.
        base: the settings of prime-rl's `[trainer.loss]`, of any type.

    Raises:
        ConfigError: settings that cannot work.
    """
    term, share, base_loss = _plan(json.dumps([penalty, base], sort_keys=True))
    outputs = base_loss(inputs)
    new, old, advantages = (x[None] for x in (inputs.trainer_logprobs, inputs.inference_logprobs, inputs.advantages))
    mask = inputs.loss_mask[None]
    preserved = (term or LLDS()).preserved(advantages, mask)
    values = None if term is None else term.per_token(new, old, advantages, mask, preserved=preserved)
    measured = measure(preserved, values, new, old, advantages, mask)
    series = {name: (mean.value, mean.count) for name, mean in measured.items()}
    total = outputs.loss
    if term is not None and values is not None:
        weighted = values if inputs.loss_weights is None else values * inputs.loss_weights
        coef = share.coefficient(term, preserved_counts(preserved, mask))
        if term.coef:
            total = total + coef * weighted.sum()
        count = mask.sum()
        series["loss/penalty"] = (coef * weighted.detach().sum() / count.clamp(min=1), count)
    logged = {  # [1], or [0] for a mean over nothing: prime-rl joins those of all rollouts and logs their mean
        f"holdfast/{name}": value.detach().float().reshape(1)[count.reshape(1) > 0]
        for name, (value, count) in series.items()
    }
    return replace(outputs, loss=total, metrics={**outputs.metrics, **logged})


@cache
def _plan(settings: str) -> tuple[Penalty | None, PreservedShare, Callable[[Any], Any]]:
    """The penalty, the share of tokens it preserves, and prime-rl's own loss, of [penalty, base] as JSON."""
    from prime_rl.trainer.rl.loss import setup_rl_loss_fn

    penalty, base = json.loads(settings)
    base_loss = setup_rl_loss_fn(base_config(base))
    return penalty_of(penalty, "prime-rl"), PreservedShare(), getattr(base_loss, "loss", base_loss)


def base_config(base: Mapping[str, Any] | None) -> Any:
    """prime-rl's configuration of the loss that the penalty is added to. Raises `ConfigError`."""
    from prime_rl.configs.trainer import LossConfig, TrainerConfig

    default = TrainerConfig.model_fields["loss"].get_default(call_default_factory=True)
    if not base:
        return default
    where = "trainer.loss.kwargs.base"
    if base.get("import_path") == f"{__name__}.{loss.__name__}":
        raise ConfigError(
            f"{where}.import_path = {base['import_path']!r} adds this loss to itself; name the loss you had before, or "
            "leave base out for prime-rl's default"
        )
    try:
        config = TypeAdapter(LossConfig).validate_python({"type": default.type, **base})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        setting = ".".join(str(part) for part in (where, *first["loc"][1:]))
        raise ConfigError(f"{setting}: {first['msg']}; write base as prime-rl's [trainer.loss]") from None
    if getattr(config, "score_centering", False):
        raise ConfigError(
            f"{where}.score_centering = true: prime-rl collects what this needs only if [trainer.loss] itself has it, "
            "so it would have no effect here; leave it out"
        )
    return config


def interface() -> str:
    """Which API the losses of the installed prime-rl have, in words. Raises what importing them raises."""
    from prime_rl.trainer.rl.loss import setup_rl_loss_fn

    default = base_config(None)
    newer = hasattr(setup_rl_loss_fn(default), "loss")
    api = "newer API: losses are objects with .loss()" if newer else "older API: losses are functions"
    return f"its loss module has the {api}, and {default.type!r} is the default"
