"""What a method needs, and the settings that take it away: one sentence for each combination that cannot work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from holdfast.base.section import Refusal, setting_values
from holdfast.methods.registry import Method, Need

if TYPE_CHECKING:
    from holdfast.recipe import Config

Missing = tuple[str, str, str]
"""(the setting that takes it away, why that matters, what to do instead)."""


def _rollout_advantages(config: Config, method: Method) -> Missing | None:
    if config.loss.advantage == "gae":
        return (
            "loss.advantage",
            f"{method.acts_on}, but a critic gives each token its own advantage",
            "Set loss.advantage = 'grpo'",
        )
    gigpo = config.loss.methods.gigpo
    if gigpo.on and method is not gigpo:
        return (
            f"{gigpo.table()}.on",
            f"{method.acts_on}, but {gigpo.name} gives each action its own advantage",
            f"Set {gigpo.table()}.on = false",
        )
    return None


def _group_advantages(config: Config, method: Method) -> Missing | None:
    if config.loss.advantage != "reinforce":
        return _rollout_advantages(config, method)
    return "loss.advantage", f"{method.acts_on}, but this advantage is the reward itself", "Set loss.advantage = 'grpo'"


def _negative_rollouts(config: Config, method: Method) -> Missing | None:
    negative = config.loss.methods.negative_weight
    if not negative.on or negative.weight:
        return None
    return f"{negative.table()}.weight", "it acts on rollouts with A < 0, whose weight is 0", "Raise the weight"


def _drift(config: Config, method: Method) -> Missing | None:
    if config.train.optimizer_steps_per_rollout > 1 or config.loss.old_policy == "sampler":
        return None
    return (
        "train.optimizer_steps_per_rollout",
        "on the only optimizer step the policy equals the old policy, so no rollout has become less likely",
        "Set train.optimizer_steps_per_rollout to 2 or more",
    )


def _all_logprobs(config: Config, method: Method) -> Missing | None:
    if not config.sampling.mask_logprobs:
        return None
    return (
        "sampling.mask_logprobs",
        "its scores are over the whole vocabulary, but this loss is not",
        "Set sampling.mask_logprobs = false",
    )


def _output_layer(config: Config, method: Method) -> Missing | None:
    if not config.model.lora_rank:
        return None
    return (
        "model.lora_rank",
        "it needs the gradient of the output layer, which LoRA freezes",
        "Set model.lora_rank = 0",
    )


def _samplers_tokens(config: Config, method: Method) -> Missing | None:
    sampling = config.sampling
    if sampling.mask_logprobs or not sampling.truncated:
        return None
    return (
        "sampling.top_k" if sampling.top_k else "sampling.top_p",
        "it compares the policy with the sampler, but the truncated sampler draws from fewer tokens than this loss is "
        "over",
        "Set sampling.mask_logprobs = true with sampling.top_k = 512",
    )


def _samplers_distribution(config: Config, method: Method) -> Missing | None:
    if config.sampler_differs:
        if not config.sampling.truncated:
            return None
        setting = "sampling.top_k" if config.sampling.top_k else "sampling.top_p"
        return (
            setting,
            "the sampler has other weights too (train.staleness, faults.sampler_8_bits), and of such a one only "
            "the whole distribution is known",
            "Set sampling.top_p = 1 and sampling.top_k = 0",
        )
    if config.sampling.top_k:
        return None
    if config.sampling.top_p < 1:
        return (
            "sampling.top_k",
            "what the sampler could draw at every token is kept in memory, and top_p alone does not bound that",
            "Set sampling.top_k = 512",
        )
    return (
        "sampling.top_k",
        "the sampler is not truncated, so it draws what the loss expects and there is nothing to take out",
        "Truncate it, for example with sampling.top_k = 64, or let its weights differ, with train.staleness",
    )


NEEDS: Mapping[Need, Callable[[Config, Method], Missing | None]] = {  # "sampler": every rollout has that
    "rollout advantages": _rollout_advantages,
    "group advantages": _group_advantages,
    "negative rollouts": _negative_rollouts,
    "drift": _drift,
    "all log-probs": _all_logprobs,
    "output layer": _output_layer,
    "sampler's tokens": _samplers_tokens,
    "sampler's distribution": _samplers_distribution,
}


def unmet_needs(config: Config) -> Iterator[Refusal]:
    """A refusal for each need of a method that the recipe does not meet."""
    for method in config.loss.methods.used:
        for need in sorted(method.needs):
            if need in NEEDS and (missing := NEEDS[need](config, method)) is not None:
                setting, why, instead = missing
                values = {f"{method.table()}.on": True, setting: setting_values(config)[setting]}
                yield Refusal(values, why, f"{instead}, or leave the method out")
