"""Checks a verl configuration for holdfast. It is composed and instantiated as verl does it, on a CPU.

All of this is known before a GPU is used, and most of it is invisible to a loss that runs: how many optimizer steps a
rollout batch is used for, and how `response_mask` is changed before the loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import torch
import verl
from hydra import compose as compose_config
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.utils import get_class
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask as correct
from verl.utils.config import omega_conf_to_dataclass

from holdfast.adapters.verl.plugin import HoldfastPolicyLossConfig, plan
from holdfast.adapters.verl_losses import ANSWER_SPAN, LAST_ACTION, PENALTY_FIELDS
from holdfast.adapters.verl_losses import LOSSES as LOSSES
from holdfast.adapters.verl_term import stale_and_uncorrected
from holdfast.base.errors import ConfigError, nearest_name
from holdfast.hosts.advice import WITHOUT
from holdfast.hosts.verl import ACTOR, AGENT, CONFIGS, CORRECTION, LOSS_CONFIG
from holdfast.methods.penalties import Penalty

_LOSS = f"{ACTOR}.policy_loss"

_SHOW = f"+{_LOSS}.rollout_correction=${{algorithm.rollout_correction}}"
"""The override with which a loss sees the correction."""
EXAMPLE = (
    f"{_LOSS}._target_={LOSS_CONFIG}",
    f"{_LOSS}.loss_mode=holdfast_llds",
    _SHOW,
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
)
"""Overrides that are enough for `holdfast_llds`; the third lets the loss see what is done to its mask."""


_ANSWERS = {
    ANSWER_SPAN: "note: the answer is the answer_span that holdfast's agent loop reports",
    LAST_ACTION: "note: the last action of a rollout counts as its answer, even if the rollout was truncated before "
    "it answered, and every earlier action counts as a search",
}
_SCHEDULE = "; the weight depends on the searches in the last 256 rollouts of a process, not in the rollout batch"


class Check(NamedTuple):
    """The result of one check."""

    passed: bool
    text: str


def compose(overrides: Sequence[str], name: str = "ppo_trainer") -> Any:
    """A configuration of verl, by its name, with Hydra overrides. Raises `ConfigError` with Hydra's own words."""
    name = name.removesuffix(".yaml")
    prefix = next(prefix for prefix in CONFIGS if name.startswith(prefix))
    package = Path(verl.__file__).parent
    if not (package / CONFIGS[prefix] / f"{name}.yaml").is_file():
        known = sorted(
            path.stem for folder in CONFIGS.values() for path in (package / folder).glob("[!_]*trainer.yaml")
        )
        raise ConfigError(f"--config-name {name}: verl has no configuration of that name; it has {', '.join(known)}")
    # The file of the one-step-off trainer names this folder as seen from a clone's root.
    search = ["hydra.searchpath=[pkg://verl.trainer.config]"] if prefix else []
    try:
        with initialize_config_dir(str(package / CONFIGS[prefix]), version_base=None):
            defaults = compose_config(name, search)
            given = OverridesParser.create().parse_overrides(list(overrides))
            for override in given:  # Hydra advises to add an unknown key, and takes any that is added
                if not override.is_delete() and (meant := _meant(override.key_or_group, defaults)):
                    raise ConfigError(f"{override.input_line}: verl has no such setting; did you mean {meant}?")
            config = compose_config(name, [*overrides, *search])
        OmegaConf.resolve(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"verl's configuration does not compose with these overrides: {error}") from error
    for override in given:
        key, _, text = str(override.input_line).partition("=")
        if key.startswith(f"{CORRECTION}.") and "_" in text and isinstance(value := override.value(), int | float):
            raise ConfigError(
                f"{key}={text}: Hydra reads this as the number {value}. Quote the bounds: \"{key}='{text}'\""
            )
    return config


_NEAR = 0.85
"""How alike a slip and the real key are: with one wrong letter of seven they are 0.86. Below that come the keys that
scripts add for themselves."""


def _meant(key: str, defaults: Any) -> str | None:
    """The key that a misspelled one was probably meant to be; None if verl knows the key, or none like it.

    Its YAML files leave out some settings of its classes, which scripts add with `+`.

    >>> _meant("actor.ppo_epoch", OmegaConf.create({"actor": {"ppo_epochs": 1, "clip_ratio": 0.2}}))
    'actor.ppo_epochs'
    """
    parts, at = key.split("."), defaults
    for i, part in enumerate(parts):
        if not OmegaConf.is_dict(at):
            return None
        written = [str(name) for name in at]  # with those without a value, which are not `in` it
        names = list(written)
        if "_target_" in written:
            with suppress(ImportError, TypeError):  # a class that is not installed here, or that is no dataclass
                names += [field.name for field in fields(get_class(at._target_))]
        if part not in names:
            near = get_close_matches(part, names, 1, _NEAR)
            return ".".join([*parts[:i], *near, *parts[i + 1 :]]) if near else None
        at = at._get_node(part) if part in written else None
    return None


def _unknown_values(config: Any) -> Iterator[str]:
    """A sentence for each name that verl will look up when the run has started, and not find. A name that is like none
    of verl's may be one that a module of the user registers."""
    modes = [name for name in config.trainer.get("v1") or {} if str(name).endswith("sync")]
    mode = OmegaConf.select(config, "trainer.v1.trainer_mode")
    if config.trainer.get("use_v1", True) and mode not in modes and get_close_matches(str(mode), modes):
        yield f"trainer.v1.trainer_mode = {mode!r}: verl has no such trainer; {_choose(mode, modes)}"
    estimator = config.algorithm.adv_estimator
    if estimator not in (known := sorted(core_algos.ADV_ESTIMATOR_REGISTRY)) and get_close_matches(estimator, known):
        yield f"algorithm.adv_estimator = {estimator!r}: verl has no such estimator; {_choose(estimator, known)}"
    actor = config.actor_rollout_ref.actor
    if actor.use_kl_loss and str(actor.kl_loss_type).removesuffix("+") not in _KL:
        yield f"{ACTOR}.kl_loss_type = {actor.kl_loss_type!r}: {_choose(actor.kl_loss_type, _KL)}"


_KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")


def _choose(name: object, known: Sequence[str]) -> str:
    return nearest_name(str(name), known, f"there are {', '.join(known)}")


def steps_per_rollout(config: Any) -> int:
    """Optimizer steps that verl takes against one old policy, unless that is the sampler.

    In the fully asynchronous trainer that is from one synchronisation to the next, elsewhere a rollout batch:
    mini-batches (both sizes count prompts) times epochs.
    """
    actor, asynchronous = config.actor_rollout_ref.actor, config.get("async_training")
    if asynchronous:
        batches = asynchronous.require_batches * asynchronous.trigger_parameter_sync_step
    else:
        batches = math.ceil(config.data.train_batch_size / actor.ppo_mini_batch_size)
    return int(batches) * int(actor.ppo_epochs)


def refused_by_verl(config: Any) -> Iterator[str]:
    """What verl's own classes and functions say against its sections, a sentence each."""
    for section in (config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.algorithm):
        try:
            omega_conf_to_dataclass(section)
        except Exception as error:  # verl's dataclasses assert, Hydra wraps what ours raise
            cause: BaseException = error
            while cause.__cause__ is not None and not isinstance(cause, ConfigError):
                cause = cause.__cause__
            told = str(cause).partition("\n")[0]  # OmegaConf adds the full key in lines of its own
            yield _unknown_setting(told) or told
    correction = config.algorithm.get("rollout_correction") or {}
    settings = {key: value for key, value in correction.items() if key.startswith(("rollout_is", "rollout_rs"))}
    try:
        correct(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), **settings)
    except Exception as error:
        yield f"algorithm.rollout_correction: {error}"


def _unknown_setting(told: str) -> str | None:
    """A sentence for what Python says of a setting of `policy_loss` that its class does not have; else None."""
    found = re.search(r"PolicyLossConfig\.__init__\(\) got an unexpected keyword argument '(\w+)'", told)
    if found is None:
        return None
    name, names = found[1], HoldfastPolicyLossConfig.__dataclass_fields__
    if name in names:
        return f"{_LOSS}.{name}: this is a setting of holdfast's class. Set {_LOSS}._target_={LOSS_CONFIG}"
    if name == "penalty_gate":
        return f"{_LOSS}.{name}: loss_mode has the gate: holdfast_llds (action), holdfast_llds_response, holdfast_lld"
    hint = nearest_name(name, names, f"there are {', '.join(PENALTY_FIELDS)}")
    return f"{_LOSS}.{name}: there is no such setting; {hint}"


def _counts(config: Any) -> Iterator[str]:
    """A sentence for each number of the schedule that is none."""
    keys = ["data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_epochs"]
    if config.get("async_training"):
        keys += ["async_training.require_batches", "async_training.trigger_parameter_sync_step"]
    for key in keys:
        value = OmegaConf.select(config, key)
        if not isinstance(value, int) or value < 1:
            yield f"{key} = {value!r} must be a whole number above 0"


_BYPASS = "bypass_mode"
"""The name of a setting, and of verl's loss that corrects in this mode."""


def _correction_problems(config: Any, base: str | None) -> Iterator[str]:
    """What verl would find at the first step, or never, in the correction of a composed configuration."""
    correction = config.algorithm.get("rollout_correction") or {}
    chosen = {key: correction[key] for key in ("rollout_is", "rollout_rs") if correction.get(key)}
    bypass, seen = correction.get(_BYPASS), config.actor_rollout_ref.actor.policy_loss.get("rollout_correction")
    if (chosen or bypass) and not config.actor_rollout_ref.rollout.calculate_log_probs:
        then = "stops at the first step" if bypass else "skips the correction without a warning"
        yield (
            f"algorithm.rollout_correction without the sampler's log-probs: verl then {then}. Set "
            "actor_rollout_ref.rollout.calculate_log_probs=true"
        )
    if correction.get("loss_type", "ppo_clip") != "ppo_clip":
        chosen["loss_type"] = correction["loss_type"]
    named = " and ".join(f"{key} = {value!r}" for key, value in chosen.items())
    if bypass and chosen and base != _BYPASS:
        yield (
            f"{CORRECTION}.bypass_mode with {named}: in bypass mode only verl's loss bypass_mode reads these, so they "
            f"have no effect. Set {_LOSS}.base_loss_mode=bypass_mode and {_SHOW}, or leave them out"
        )
    elif bypass and base == _BYPASS and any((seen or {}).get(key) != value for key, value in chosen.items()):
        yield (
            f"{_LOSS}.base_loss_mode = 'bypass_mode' does not see {CORRECTION} with {named}, so they have no effect. "
            f"Set {_SHOW}"
        )
    elif base == _BYPASS and not bypass:
        yield (
            f"{_LOSS}.base_loss_mode = 'bypass_mode' without {CORRECTION}.bypass_mode: this loss takes the old "
            f"log-probs for the sampler's, but they are recomputed. Set {CORRECTION}.bypass_mode=true, or another base"
        )


def checks(config: Any) -> Iterator[Check]:
    """What a composed configuration means for holdfast's losses and agent loop."""
    settings = config.actor_rollout_ref.actor.policy_loss
    name, wrong = settings.loss_mode, [*_counts(config), *_unknown_values(config)]
    if wrong:
        yield from (Check(False, problem) for problem in wrong)
        return
    steps = steps_per_rollout(config)
    if name not in LOSSES:
        yield Check(False, f"{_LOSS}.loss_mode = {name!r} is not a loss of holdfast; those are {', '.join(LOSSES)}")
        return
    correction = config.algorithm.get("rollout_correction") or {}
    refusals = [*refused_by_verl(config), *_correction_problems(config, settings.get("base_loss_mode"))]
    yield from (Check(False, refusal) for refusal in refusals)
    try:
        penalty, base = plan(name, {**settings, "rollout_correction": correction})
    except ConfigError as error:
        if str(error) not in refusals:  # our own class has said it already
            yield Check(False, str(error))
        return
    if refusals:
        return
    what = "no penalty" if penalty is None else repr(penalty)
    yield Check(True, f"verl's own classes take the configuration: {name} on {base}, {what}")
    yield _schedule(config, name, penalty, steps)
    if penalty is not None and penalty.uses_answer_mask:
        answer = settings.get("penalty_answer")
        yield Check(True, _ANSWERS[answer] + (_SCHEDULE if penalty.uses_search_count else ""))
        if answer == ANSWER_SPAN and config.actor_rollout_ref.rollout.agent.default_agent_loop != AGENT:
            yield Check(
                True,
                f"note: rollout.agent.default_agent_loop is not {AGENT!r}; your agent loop must write answer_span "
                "and searches into extra_fields, or the first step stops",
            )
    if correction.get("bypass_mode") and penalty is not None:
        yield Check(
            True,
            "note: in bypass mode the old policy is the sampler: each token's log-prob under the weights that drew it. "
            f"{WITHOUT.capitalize()} (docs/reference/advice.md): {_LOSS}.loss_mode=holdfast_observe. With one, set "
            "penalty_threshold: the sampler's numbers differ a little from the trainer's before any update",
        )
    if (stale := stale_and_uncorrected(config, steps)) is not None:
        yield Check(True, stale)
    rollout = config.actor_rollout_ref.rollout
    if rollout.top_p < 1 or rollout.top_k > 0:
        yield Check(
            True,
            f"note: rollout.top_p={rollout.top_p:g} and rollout.top_k={rollout.top_k} truncate the sampler, while "
            "verl's log-probs are over the whole vocabulary, and verl does not record the sampling mask. This "
            "mismatch alone can make a run collapse: set actor_rollout_ref.rollout.top_p=1 and "
            "actor_rollout_ref.rollout.top_k=-1",
        )
    if rollout.agent.default_agent_loop == AGENT and not rollout.agent.agent_loop_config_path:
        yield Check(
            False,
            "rollout.agent.default_agent_loop = 'holdfast_search' without rollout.agent.agent_loop_config_path; set "
            "it to a YAML file with the address of the retriever",
        )


def _schedule(config: Any, name: str, penalty: Penalty | None, steps: int) -> Check:
    """On how many optimizer steps the penalty acts."""
    count = f"{steps} optimizer step{'s' * (steps != 1)}"
    if config.get("async_training"):
        sizes = f"require_batches × trigger_parameter_sync_step × ppo_epochs = {count} between two synchronisations"
        remedy = (
            "async_training.trigger_parameter_sync_step to 2 or more, or algorithm.rollout_correction.bypass_mode=true"
        )
    else:
        sizes = f"data.train_batch_size / ppo_mini_batch_size × ppo_epochs = {count} per rollout batch"
        remedy = (
            "actor_rollout_ref.actor.ppo_mini_batch_size to half of data.train_batch_size or less (published runs "
            "took 10 steps), or ppo_epochs to 2"
        )
    # On the first step the policy equals the old one, unless that is the sampler.
    bypass = (config.algorithm.get("rollout_correction") or {}).get("bypass_mode")
    acting = steps if penalty is None or penalty.acts_without_drift or bypass else steps - 1
    if acting:
        return Check(True, sizes if penalty is None else f"{sizes}; the penalty acts on {acting} of them")
    return Check(
        False, f"{sizes}: on the first step the policy equals the old policy, so {name} is always zero. Set {remedy}"
    )
