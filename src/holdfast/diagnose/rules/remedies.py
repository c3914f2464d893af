"""What to change, in the words of each host: one text per remedy, and one table of what the hosts call its settings.

In a text, `[learning rate]` is followed by the host's name for it, if it has one here:

>>> advise("Lower the [learning rate].")["trl"], advise("Lower the [learning rate].")["unknown"]
('Lower the learning rate (`learning_rate`).', 'Lower the learning rate.')
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.diagnose.log import Host, Log

Remedy = Mapping[Host, str]
"""What to change, by host. Names of settings are in backticks; the text for `unknown` has none."""

NOTHING: Remedy = {"unknown": ""}
"""For what has passed."""

HOSTS: tuple[Host, ...] = ("holdfast", "trl", "verl", "unknown")
"""The hosts with a text of their own. Others get that for `unknown`."""

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

PENALTY: Mapping[Host, tuple[str, ...]] = {
    "holdfast": ('loss.penalty.name = "llds"', "loss.penalty.coef = 1.0"),
    "trl": ("with_penalties(GRPOTrainer, LLDS(coef=1.0))",),
    "verl": (
        f"{_ACTOR}.policy_loss.loss_mode=holdfast_llds",
        f"{_ACTOR}.policy_loss._target_=holdfast.adapters.verl.HoldfastPolicyLossConfig",
        f"+{_ACTOR}.policy_loss.penalty_coef=1.0",
    ),
}
"""A penalty on lost likelihood, in every host at the one coefficient at which the study's runs did not fall. Findings,
the demo and the pages spell it like this."""

NAMES: Mapping[str, Mapping[Host, tuple[str, ...]]] = {
    "learning rate": {
        "holdfast": ("train.lr",),
        "trl": ("learning_rate",),
        "verl": (f"{_ACTOR}.optim.lr",),
    },
    "schedule": {
        "holdfast": ("train.warmup", "train.steps"),
        "trl": ("lr_scheduler_type", "max_steps"),
        "verl": (f"{_ACTOR}.optim.total_training_steps",),
    },
    "warm-up": {
        "holdfast": ("train.warmup",),
        "trl": ("warmup_steps",),
        "verl": (f"{_ACTOR}.optim.lr_warmup_steps",),
    },
    "optimizer steps per rollout batch": {
        "holdfast": ("train.optimizer_steps_per_rollout",),
        "trl": ("num_iterations", "steps_per_generation"),
        "verl": (f"{_ACTOR}.ppo_epochs", f"{_ACTOR}.ppo_mini_batch_size"),
    },
    "norm of the gradient": {
        "holdfast": ("train.grad_clip",),
        "trl": ("max_grad_norm",),
        "verl": (f"{_ACTOR}.optim.clip_grad",),
    },
    "group size": {
        "holdfast": ("train.group_size",),
        "trl": ("num_generations",),
        "verl": (f"{_ROLLOUT}.n",),
    },
    "importance ratio": {
        "holdfast": ("loss.dual_clip = 3.0",),
        "trl": ("delta=3.0",),
        "verl": (f"{_ACTOR}.clip_ratio_c=3",),
    },
    "upper clip": {
        "holdfast": ("loss.clip_high",),
        "trl": ("epsilon_high",),
        "verl": (f"{_ACTOR}.clip_ratio_high",),
    },
    "entropy bonus": {
        "holdfast": ("loss.entropy_coef",),
        "trl": ("entropy_coef",),
        "verl": (f"{_ACTOR}.entropy_coeff",),
    },
    "coefficient of the KL": {
        "holdfast": ("loss.kl_coef",),
        "trl": ("beta",),
        "verl": (f"{_ACTOR}.kl_loss_coef",),
    },
    "penalty on lost likelihood": PENALTY,
    "threshold": {
        "holdfast": ("loss.penalty.threshold",),
        "trl": ("threshold",),
        "verl": (f"{_ACTOR}.policy_loss.penalty_threshold",),
    },
    "tau": {
        "holdfast": ("loss.penalty.tau",),
        "trl": ("tau",),
        "verl": (f"{_ACTOR}.policy_loss.penalty_tau",),
    },
    "preserve more rollouts": {
        "holdfast": ("loss.penalty.preserve",),
        "trl": ("preserve",),
        "verl": (f"{_ACTOR}.policy_loss.penalty_preserve",),
    },
    "bounds on the importance weights": {
        "holdfast": ("loss.methods.sampler_weights.low", "loss.methods.sampler_weights.high"),
    },
    "without top-p and top-k": {
        "holdfast": ("sampling.top_p = 1.0", "sampling.top_k = 0"),
        "trl": ("top_p=1.0", "top_k=0", "min_p=None"),
        "verl": (f"{_ROLLOUT}.top_p=1", f"{_ROLLOUT}.top_k=-1"),
    },
    "tokens that the sampler can draw": {
        "holdfast": ("sampling.top_k = 512", "sampling.mask_logprobs = true"),
        "trl": ("top_k=512", "with_penalties(GRPOTrainer, mask_logprobs=True)"),
    },
    "score centering": {"holdfast": ("loss.methods.score_centering.on",)},
    "importance weights of the sampler": {
        "holdfast": ("loss.methods.sampler_weights.on",),
        "trl": ("vllm_importance_sampling_correction=True",),
        "verl": ("algorithm.rollout_correction",),
    },
    "full precision": {"holdfast": ('model.autocast = "none"',), "trl": ("bf16=False",)},
    "rollouts": {
        "holdfast": ("trajectories.jsonl",),
        "trl": ("log_completions=True",),
        "verl": ("trainer.rollout_data_dir",),
    },
    "limits of tokens and turns": {
        "holdfast": ("protocol.max_total_tokens", "protocol.max_turn_tokens", "protocol.max_turns"),
        "trl": ("max_completion_length",),
        "verl": ("data.max_response_length", f"{_ROLLOUT}.multi_turn.max_assistant_turns"),
    },
    "weights of the reward": {
        "holdfast": ("reward.em", "reward.f1", "reward.format", "reward.retrieval"),
        "trl": ("reward_weights",),
    },
    "reference": {"trl": ("sync_ref_model=True", "ref_model_sync_steps")},
    "denser reward": {"holdfast": ("reward.f1 = 1.0",)},
    "better policy": {"holdfast": ("warm_start.steps",)},
    "retriever": {
        "holdfast": ("retrieval.url",),
        "verl": (f"{_ROLLOUT}.agent.agent_loop_config_path",),
    },
    "index": {"holdfast": ("retrieval.corpus", "retrieval.index")},
}
"""What a text calls it -> the settings of each host, with a value where one is advised."""


def advise(text: str, *, also: Mapping[Host, str] | None = None, instead: Mapping[Host, str] | None = None) -> Remedy:
    """A remedy for every host: `text`, with the sentences of `also` behind it, or those of `instead` in its place.

    Raises:
        KeyError: a phrase in brackets is not in `NAMES`.
    """
    also, instead = also or {}, instead or {}
    return {host: _named(" ".join(filter(None, [instead.get(host, text), also.get(host)])), host) for host in HOSTS}


def _named(text: str, host: Host) -> str:
    """The text with the host's names behind the phrases in brackets."""

    def named(match: re.Match[str]) -> str:
        phrase = match[1]
        names = NAMES[phrase].get(host, ())
        return f"{phrase} ({', '.join(f'`{name}`' for name in names)})" if names else phrase

    return re.sub(r"\[([^]]+)\]", named, text)


def setting(log: Log, phrase: str) -> float | None:
    """The value of a setting in the log, by what `NAMES` calls it; None if the log has no number for it."""
    for name in NAMES[phrase].get(log.host, ()):
        try:
            return float(str(log.settings[name]))
        except (KeyError, ValueError):
            continue
    return None


OUR_BUG = "Settings of a recipe cannot cause this. Check the code that makes your `TokenBatch`, or report a bug."

PRESERVE_LIKELIHOOD = advise(
    "Preserve correct rollouts with a [penalty on lost likelihood], which needs two or more [optimizer steps per "
    "rollout batch]. If it is on, raise its coefficient, or lower the [learning rate]. If the sampler is truncated, "
    "first sample [without top-p and top-k]."
)

SMALLER_STEPS = advise(
    "Divide the [learning rate] by five or more, lengthen the [warm-up], or take fewer [optimizer steps per rollout "
    "batch]. Larger batches also make the steps smaller."
)
