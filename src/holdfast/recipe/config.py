"""The whole recipe, and the errors between its sections. Errors of one section are in that section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.agent.calling import tools_named
from holdfast.agent.rewards import part
from holdfast.base import section
from holdfast.base.errors import ConfigError
from holdfast.base.section import Refusal, Section, sentence, setting_values
from holdfast.methods.penalties import WITHOUT_OLD_POLICY, Penalty
from holdfast.methods.registry import Method, Need
from holdfast.model.settings import Model, Sampling
from holdfast.recipe.sections import (
    WORLD,
    Checkpoint,
    Critic,
    Data,
    Eval,
    Faults,
    Guard,
    Loss,
    Protocol,
    Retrieval,
    Reward,
    Run,
    Track,
    Train,
    WarmStart,
)
from holdfast.recipe.world import World


class Config(Section):
    """A whole run."""

    run: Run = Run()
    data: Data = Data()
    retrieval: Retrieval = Retrieval()
    model: Model = Model()
    protocol: Protocol = Protocol()
    sampling: Sampling = Sampling()
    warm_start: WarmStart = WarmStart()
    reward: Reward = Reward()
    loss: Loss = Loss()
    critic: Critic = Critic()
    train: Train = Train()
    eval: Eval = Eval()
    checkpoint: Checkpoint = Checkpoint()
    track: Track = Track()
    guard: Guard = Guard()
    world: World = World()
    faults: Faults = Faults()

    def start_parts(self) -> dict[str, Any]:
        """The settings that a starting policy depends on, by section; without those at their defaults, so that a start
        stays known when a setting is added."""
        sections = ("world", "model", "protocol", "retrieval", "warm_start")
        parts: dict[str, Any] = {name: getattr(self, name).model_dump(exclude_defaults=True) for name in sections}
        parts["protocol"].pop("tool_timeout", None)
        return parts

    @property
    def sampler_differs(self) -> bool:
        """Whether training rollouts come from other weights than those before the update."""
        return self.train.staleness > 0 or self.faults.sampler_8_bits

    def unused(self) -> set[str]:
        """The sections that a run does not read: that of the bundled world, when it trains on other questions, and
        that of the critic, when it has none."""
        world = set() if self.data.train == WORLD else {"world"}
        return world if self.loss.advantage == "gae" else {*world, "critic"}

    def refusals(self) -> Iterator[Refusal]:
        return cross_section_errors(self)


def setting_names() -> list[str]:
    """All dotted names a recipe may set."""
    return section.setting_names(Config)


# ---- errors between sections


MAX_ROLLOUTS = 1_000_000
"""Most rollouts in a batch, which is held in memory."""


def cross_section_errors(config: Config) -> Iterator[Refusal]:
    """A refusal for each combination that cannot work: what is set, why it fails, what to do."""
    train = config.train
    batch = {"train.questions": train.questions, "train.group_size": train.group_size}
    rollouts = train.questions * train.group_size
    if isinstance(config.loss.penalty, Penalty):
        yield from inert_penalty(config, config.loss.penalty)
    if train.optimizer_steps_per_rollout > rollouts:
        yield Refusal(
            {"train.optimizer_steps_per_rollout": train.optimizer_steps_per_rollout, **batch},
            f"a rollout batch then has only {train.questions} × {train.group_size} = {rollouts} rollouts, and every "
            "optimizer step needs at least one",
            "Lower the first, or raise train.questions or train.group_size",
        )
    if rollouts > MAX_ROLLOUTS:
        yield Refusal(batch, f"a batch has at most {MAX_ROLLOUTS:,} rollouts", "Lower one of them")
    if config.loss.advantage not in ("reinforce", "gae") and train.group_size == 1:
        yield Refusal(
            {"train.group_size": 1, "loss.advantage": config.loss.advantage},
            "with one rollout per group, there is nothing to compare it with",
            "Raise train.group_size (published runs: 5), or set loss.advantage = 'reinforce', or 'gae', which has a "
            "critic",
        )
    if train.anchor_every and config.loss.penalty.name in WITHOUT_OLD_POLICY:
        yield Refusal(
            {"train.anchor_every": train.anchor_every, "loss.penalty.name": config.loss.penalty.name},
            "a penalty compares the policy with the anchor, but this one does not compare policies",
            "Set loss.penalty.name = 'llds' or 'sapo', or leave train.anchor_every out",
        )
    yield from _compares_with_sampler(config)
    yield from _no_tool_template(config)
    if not config.protocol.searches and config.warm_start.steps:
        yield Refusal(
            {"warm_start.steps": config.warm_start.steps, "protocol.tools": config.protocol.tools},
            "the demonstrations contain searches, but this agent cannot search",
            "Add 'search' to protocol.tools, or set warm_start.steps = 0",
        )
    yield from unmet_needs(config)
    yield from _critic_errors(config.critic, config.loss, config.reward)
    if unused := dict(_unused(config)):
        yield Refusal(
            {**unused, "data.train": config.data.train},
            "only the bundled world has such a setting",
            f"Leave {'it' if len(unused) == 1 else 'them'} out",
        )


def _critic_errors(critic: Critic, loss: Loss, reward: Reward) -> Iterator[Refusal]:
    """A refusal for each setting that needs a critic and has none, or that a critic's advantages leave no meaning."""
    if loss.advantage != "gae":
        default = setting_values(Critic(), "critic.") | {"reward.kl": 0.0}
        values = setting_values(critic, "critic.") | {"reward.kl": reward.kl}
        for name, value in values.items():
            if value != default[name]:
                yield Refusal(
                    {name: value, "loss.advantage": loss.advantage},
                    "only a critic uses this setting",
                    "Set loss.advantage = 'gae', or leave it out",
                )
        return
    if reward.kl and loss.kl_coef:
        yield Refusal(
            {"reward.kl": reward.kl, "loss.kl_coef": loss.kl_coef},
            "the same KL would count twice",
            "Set loss.kl_coef = 0, as PPO does, or leave reward.kl out",
        )
    if loss.penalty.name in ("llds", "sapo", "nll") and getattr(loss.penalty, "preserve", "") != "all":
        other = "" if loss.penalty.name == "nll" else ", or loss.penalty.preserve = 'all'"
        yield Refusal(
            {"loss.penalty.name": loss.penalty.name, "loss.advantage": "gae"},
            "the penalty preserves rollouts by their group-relative advantage, but a critic gives each token its own "
            "advantage",
            f"Set loss.penalty.name = 'none'{other}",
        )
    if loss.baseline != "mean":
        yield Refusal(
            {"loss.baseline": loss.baseline, "loss.advantage": "gae"},
            "it weights the rollouts of a group, but a critic gives each token its own advantage",
            "Leave it out, or set loss.advantage = 'grpo'",
        )


def _no_tool_template(config: Config) -> Iterator[Refusal]:
    """A model that cannot have a chat template with tools."""
    if config.protocol.preset != "tools":
        return
    if config.model.is_tiny:
        yield Refusal(
            {"protocol.preset": "tools", "model.path": "tiny"},
            "the tiny model knows only the words of its own tags",
            "Set model.path to a model whose chat template has tools, or protocol.preset = 'clean'",
        )
    elif config.model.chat_template == "none":
        yield Refusal(
            {"protocol.preset": "tools", "model.chat_template": "none"},
            "the chat template says how tools are called",
            "Set model.chat_template = 'auto', or protocol.preset = 'clean'",
        )


def _unused(config: Config) -> Iterator[tuple[str, Any]]:
    """Changed settings, with their values, of sections that the recipe does not use."""
    for name in sorted(config.unused() - {"critic"}):
        default = setting_values(type(config).model_fields[name].default, f"{name}.")
        for dotted, value in setting_values(getattr(config, name), f"{name}.").items():
            if value != default[dotted]:
                yield dotted, value


def _compares_with_sampler(config: Config) -> Iterator[Refusal]:
    where: dict[str, Any] = {"loss.old_policy": "sampler"}
    methods = config.loss.methods
    if config.loss.old_policy == "recomputed":
        return
    if not config.sampler_differs:
        yield Refusal(
            where | {"train.staleness": 0},
            "rollouts come from the weights before the update, so both old policies are the same",
            "Set train.staleness to 1 or more, or leave loss.old_policy out",
        )
    if config.sampling.mask_logprobs:
        yield Refusal(
            where | {"sampling.mask_logprobs": True},
            "the sampler's log-probs are over the whole vocabulary, but this loss is not",
            "Set sampling.mask_logprobs = false",
        )
    for method in (methods.sampler_weights, methods.score_centering):
        if method.on:
            yield Refusal(
                where | {f"{method.table()}.on": True},
                "the ratio is then relative to the sampler, and already contains the whole correction",
                "Leave one of them out",
            )


def inert_penalty(config: Config, penalty: Penalty) -> Iterator[Refusal]:
    """A refusal if the penalty is always zero in this schedule."""
    train = config.train
    other = train.anchor_every or config.loss.old_policy == "sampler"
    if train.optimizer_steps_per_rollout == 1 and not other and not penalty.acts_without_drift:
        yield Refusal(
            {"loss.penalty.name": config.loss.penalty.name, "train.optimizer_steps_per_rollout": 1},
            "on the first optimizer step of a rollout batch, the policy equals the old policy, so this penalty is "
            "always zero",
            "Set train.optimizer_steps_per_rollout to 2 or more (published runs: 10), or train.anchor_every = 1, which "
            "compares with the policy of the batch before, or loss.penalty.name = 'none'",
        )


# ---- what a method needs, and the settings that take it away

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


# ---- what only importing the code of a recipe shows


def code_errors(config: Config) -> Iterator[str]:
    """A sentence for each import path of the recipe that cannot be imported or used."""
    try:
        penalty = config.loss.penalty.term
        if penalty is not None and penalty is not config.loss.penalty:
            yield from map(sentence, inert_penalty(config, penalty))
    except ConfigError as error:
        yield str(error)
    for setting, load, paths in (
        ("reward.custom", part, config.reward.custom),
        ("protocol.tools", tools_named, config.protocol.tools or ()),
    ):
        for path in paths:
            try:
                load(path)
            except ConfigError as error:
                yield f"{setting}: {error}"
