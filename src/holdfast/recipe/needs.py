"""What a method needs, and the settings that take it away: one sentence for each combination that cannot work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.base.section import Refusal, setting_values
from holdfast.methods.registry import Method, Need

if TYPE_CHECKING:
    from holdfast.recipe import Config

Missing = tuple[str, str, str]
"""(the setting that takes it away, why that matters, what to do instead)."""


def _missing(need: Need, method: Method, config: Config) -> Missing | None:
    """What a method needs and the recipe takes away; None where the need is met, as that of a sampler always is."""
    gigpo, negative = config.loss.methods.gigpo, config.loss.methods.negative_weight
    advantage, sampling = config.loss.advantage, config.sampling
    truncation = "sampling.top_k" if sampling.top_k else "sampling.top_p"
    grpo = "Set loss.advantage = 'grpo'"
    match need:
        case "group advantages" if advantage == "reinforce":
            return "loss.advantage", f"{method.acts_on}, but this advantage is the reward itself", grpo
        case "rollout advantages" | "group advantages" if advantage == "gae":
            return "loss.advantage", f"{method.acts_on}, but a critic gives each token its own advantage", grpo
        case "rollout advantages" | "group advantages" if gigpo.on and method is not gigpo:
            why = f"{method.acts_on}, but {gigpo.name} gives each action its own advantage"
            return f"{gigpo.table()}.on", why, f"Set {gigpo.table()}.on = false"
        case "negative rollouts" if negative.on and not negative.weight:
            return f"{negative.table()}.weight", "it acts on rollouts with A < 0, whose weight is 0", "Raise the weight"
        case "drift" if config.train.optimizer_steps_per_rollout == 1 and config.loss.old_policy != "sampler":
            return (
                "train.optimizer_steps_per_rollout",
                "on the only optimizer step the policy equals the old policy, so no rollout has become less likely",
                "Set train.optimizer_steps_per_rollout to 2 or more",
            )
        case "all log-probs" if sampling.mask_logprobs:
            return (
                "sampling.mask_logprobs",
                "its scores are over the whole vocabulary, but this loss is not",
                "Set sampling.mask_logprobs = false",
            )
        case "output layer" if config.model.lora_rank:
            why = "it needs the gradient of the output layer, which LoRA freezes"
            return "model.lora_rank", why, "Set model.lora_rank = 0"
        case "sampler's tokens" if sampling.truncated and not sampling.mask_logprobs:
            return (
                truncation,
                "it compares the policy with the sampler, but the truncated sampler draws from fewer tokens than "
                "this loss covers",
                "Set sampling.mask_logprobs = true with sampling.top_k = 512",
            )
        case "sampler's distribution" if config.sampler_differs and sampling.truncated:
            return (
                truncation,
                "the sampler also has different weights (train.staleness, faults.sampler_8_bits), and then only its "
                "full distribution is known",
                "Set sampling.top_p = 1 and sampling.top_k = 0",
            )
        case "sampler's distribution" if not config.sampler_differs and not sampling.truncated:
            return (
                "sampling.top_k",
                "the sampler is not truncated, so it matches the loss and there is nothing to correct",
                "Truncate it, for example with sampling.top_k = 64, or let its weights differ, with train.staleness",
            )
        case "sampler's distribution" if not config.sampler_differs and not sampling.top_k:
            return (
                "sampling.top_k",
                "the tokens that the sampler could draw are kept in memory for every position, and top_p alone "
                "does not limit their number",
                "Set sampling.top_k = 512",
            )
    return None


def unmet_needs(config: Config) -> Iterator[Refusal]:
    """A refusal for each need of a method that the recipe does not meet."""
    for method in config.loss.methods.used:
        for need in sorted(method.needs):
            if (missing := _missing(need, method, config)) is not None:
                setting, why, instead = missing
                values = {f"{method.table()}.on": True, setting: setting_values(config)[setting]}
                yield Refusal(values, why, f"{instead}, or leave the method out")
