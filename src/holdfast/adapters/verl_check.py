"""Checks a verl configuration for holdfast. It is composed and instantiated as verl does it, on a CPU.

All of this is known before a GPU is used, and most of it is invisible to a loss that runs: how many optimizer steps a
rollout batch is used for, and how `response_mask` is changed before the loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.adapters.verl import HoldfastPolicyLossConfig
from holdfast.adapters.verl_losses import LAST_ACTION, penalty_for
from holdfast.adapters.verl_losses import LOSSES as LOSSES
from holdfast.adapters.verl_term import refuse_split_actions
from holdfast.base.errors import ConfigError
from holdfast.hosts.verl import ANSWER_SPAN

TARGET = f"{HoldfastPolicyLossConfig.__module__}.{HoldfastPolicyLossConfig.__qualname__}"
_LOSS = "actor_rollout_ref.actor.policy_loss"
AGENT_LOOP = "holdfast_search"

EXAMPLE = (
    f"{_LOSS}._target_={TARGET}",
    f"{_LOSS}.loss_mode=holdfast_llds",
    f"+{_LOSS}.rollout_correction=${{algorithm.rollout_correction}}",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
)
"""Overrides that are enough for `holdfast_llds`; the third lets the loss see what is done to its mask."""


_ANSWERS = {
    ANSWER_SPAN: "note: the answer is the answer_span that holdfast's agent loop reports",
    LAST_ACTION: "note: the last action of a rollout counts as its answer, even if the rollout was truncated before it "
    "answered, and a rollout searches once less than it acts",
}
_SCHEDULE = "; the weight depends on the searches in the last 256 rollouts of a process, not in the rollout batch"


class Check(NamedTuple):
    """The result of one check."""

    passed: bool
    text: str


def compose(overrides: Sequence[str]) -> Any:
    """verl's `ppo_trainer` configuration with Hydra overrides. Raises `ConfigError` with Hydra's own words."""
    from hydra import compose as compose_config
    from hydra import initialize_config_module
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose_config("ppo_trainer", list(overrides))
        OmegaConf.resolve(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"verl's configuration does not compose with these overrides: {error}") from error
    return config


def steps_per_rollout(config: Any) -> int:
    """Optimizer steps verl takes on one rollout batch: mini-batches (both sizes count prompts) times epochs."""
    actor = config.actor_rollout_ref.actor
    return math.ceil(config.data.train_batch_size / actor.ppo_mini_batch_size) * int(actor.ppo_epochs)


def checks(config: Any) -> Iterator[Check]:
    """What a composed configuration means for holdfast's losses and agent loop."""
    from verl.utils.config import omega_conf_to_dataclass

    settings = config.actor_rollout_ref.actor.policy_loss
    name, steps = settings.loss_mode, steps_per_rollout(config)
    if name not in LOSSES:
        yield Check(False, f"{_LOSS}.loss_mode = {name!r} is not a loss of holdfast; those are {', '.join(LOSSES)}")
        return
    try:
        omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        penalty = penalty_for(name, settings)
        refuse_split_actions(penalty, config.algorithm.get("rollout_correction"), settings.get("penalty_answer"))
    except Exception as error:  # verl's dataclasses assert, Hydra wraps what ours raise
        yield Check(False, str(_innermost(error)))
        return
    what = "no penalty" if penalty is None else repr(penalty)
    base = settings.get("base_loss_mode") or "vanilla"
    yield Check(True, f"the actor's configuration is valid: {name} on {base}, {what}")
    count = f"{steps} optimizer step{'s' * (steps != 1)} per rollout batch"
    sizes = f"data.train_batch_size / ppo_mini_batch_size × ppo_epochs = {count}"
    correction = config.algorithm.get("rollout_correction") or {}
    # On the first step the policy equals the old one, unless that is the sampler.
    always = penalty is None or penalty.acts_without_drift or correction.get("bypass_mode")
    acting = steps if always else steps - 1
    if acting:
        yield Check(True, sizes if penalty is None else f"{sizes}; the penalty acts on {acting} of them")
    else:
        yield Check(
            False,
            f"{sizes}: on the first step the policy equals the old policy, so {name} is always zero. Set "
            "actor_rollout_ref.actor.ppo_mini_batch_size to half of data.train_batch_size or less (published runs "
            "took 10 steps), or ppo_epochs to 2",
        )
    if penalty is not None and penalty.uses_answer_mask:
        answer = settings.get("penalty_answer")
        yield Check(True, _ANSWERS[answer] + (_SCHEDULE if penalty.uses_search_count else ""))
        if answer == ANSWER_SPAN and config.actor_rollout_ref.rollout.agent.default_agent_loop != AGENT_LOOP:
            yield Check(
                True,
                f"note: rollout.agent.default_agent_loop is not {AGENT_LOOP!r}; your agent loop must write answer_span "
                "and searches into extra_fields, or the first step stops",
            )
    if correction.get("bypass_mode") and penalty is not None:
        yield Check(
            True,
            "note: in bypass mode the old log-probs are the sampler's, which differ a little from the trainer's even "
            "before any update; set penalty_threshold to ignore such noise",
        )
    rollout = config.actor_rollout_ref.rollout
    if (correction.get("rollout_is") or correction.get("rollout_rs")) and not rollout.calculate_log_probs:
        yield Check(
            False,
            "algorithm.rollout_correction without the sampler's log-probs: verl then skips the correction without a "
            "warning. Set actor_rollout_ref.rollout.calculate_log_probs=true",
        )
    if rollout.top_p < 1 or rollout.top_k > 0:
        yield Check(
            True,
            f"note: rollout.top_p={rollout.top_p:g} and rollout.top_k={rollout.top_k} truncate the sampler, while "
            "verl's log-probs are over the whole vocabulary, and verl does not record the sampling mask. This "
            "mismatch alone can make a run collapse: set actor_rollout_ref.rollout.top_p=1 and "
            "actor_rollout_ref.rollout.top_k=-1",
        )
    if rollout.agent.default_agent_loop == AGENT_LOOP and not rollout.agent.agent_loop_config_path:
        yield Check(
            False,
            "rollout.agent.default_agent_loop = 'holdfast_search' without rollout.agent.agent_loop_config_path; set "
            "it to a YAML file with the address of the retriever",
        )


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
