"""What `holdfast doctor` reads in a configuration of prime-rl, and in the options of slime or miles."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import ConfigError
from holdfast.base.stored import read_toml

if TYPE_CHECKING:
    from holdfast.methods.penalties import Penalty

Line = tuple[bool, str]
"""Whether it is fine; what was checked, and what to do."""

_PRIME_RL_PATH = "holdfast.adapters.prime_rl.loss"
_SLIME_PATH = "holdfast.adapters.slime.loss"
_NOISE = (
    "penalty.threshold = 0: prime-rl's old log-probs are the sampler's, which differ a little from the trainer's "
    "before any update, and such noise counts as a decrease. Set threshold above mismatch_kl's level, for example 0.01"
)
_SLIME_SCHEDULE = (
    "optimizer steps per rollout batch = --num-steps-per-rollout, or --rollout-batch-size × --n-samples-per-prompt / "
    "--global-batch-size. A penalty needs 2 or more: on the first step the policy equals the old one"
)


def prime_rl_checks(path: Path | None) -> Iterator[Line]:
    """What a configuration of prime-rl means for holdfast's loss."""
    if path is None:
        yield True, "to check the configuration of your run, give it: holdfast doctor prime-rl rl.toml"
        return
    try:
        config = read_toml(path, ConfigError, "give prime-rl's TOML file")
    except ConfigError as error:
        yield False, str(error)
        return
    loss = config.get("trainer", config).get("loss", {})
    if loss.get("import_path") != _PRIME_RL_PATH or loss.get("type") != "custom":
        yield (
            False,
            f'[trainer.loss] in {path} is not holdfast\'s. Set type = "custom", import_path = "{_PRIME_RL_PATH}"',
        )
        return
    kwargs = loss.get("kwargs", {})
    if unread := sorted(set(kwargs) - {"penalty", "base"}):
        yield False, f"trainer.loss.kwargs.{unread[0]}: only penalty and base are read; put it into one of them"
        return
    from holdfast.adapters.host_losses import penalty_of
    from holdfast.adapters.prime_rl import base_config

    try:
        penalty = penalty_of(kwargs.get("penalty"), "prime-rl")
    except ConfigError as error:
        yield False, f"trainer.loss.kwargs: {error}"
        return
    try:
        base_config(kwargs.get("base"))
    except ConfigError as error:
        yield False, str(error)
        return
    yield True, f"the loss is valid: {_shown(penalty)}"
    orchestrator = config.get("orchestrator", {})
    if penalty and not penalty.acts_without_drift and orchestrator.get("max_off_policy_steps") == 0:
        yield (
            False,
            "orchestrator.max_off_policy_steps = 0: the policy that samples a rollout is then the one that is "
            "trained on it, so the penalty is 0 except for numerical noise. Set 1 or more (prime-rl's default: 8)",
        )
    filtered = orchestrator.get("train", {}).get("filter_zero_advantages", True)
    if filtered and getattr(penalty, "preserve", None) == "nonnegative":
        yield (
            True,
            "note: prime-rl drops rollouts whose advantage is 0, so preserve = 'nonnegative' has the same effect as "
            "'positive'. To keep them, set orchestrator.train.filter_zero_advantages = false",
        )
    if getattr(penalty, "threshold", None) == 0:
        yield True, f"note: {_NOISE}"


def slime_checks(options: list[str]) -> Iterator[Line]:
    """What the options of a run of slime or miles mean for holdfast's loss."""
    if not options:
        yield True, _SLIME_SCHEDULE
        yield True, "to check the options of your run, give them after `holdfast doctor slime`"
        return
    args = _slime_options(options)
    if (args.loss_type, args.custom_loss_function_path) != ("custom_loss", _SLIME_PATH):
        yield (
            False,
            f"this is not holdfast's loss. Set --loss-type custom_loss --custom-loss-function-path {_SLIME_PATH}",
        )
        return
    from holdfast.adapters.host_losses import penalty_of
    from holdfast.adapters.slime import problems, steps_per_rollout

    try:
        penalty = penalty_of(_section(args.custom_config_path), "slime")
    except ConfigError as error:
        yield False, f"holdfast_penalty: {error}"
        return
    yield True, f"the loss is valid: {_shown(penalty)}"
    refusals = list(problems(args, penalty))
    yield from ((False, problem) for problem in refusals)
    known = args.num_steps_per_rollout or (args.rollout_batch_size and args.global_batch_size)
    if not refusals:
        yield True, f"optimizer steps per rollout batch: {steps_per_rollout(args)}" if known else _SLIME_SCHEDULE


def _slime_options(options: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("loss-type", "custom-loss-function-path", "custom-config-path"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--qkv-format", default="thd")
    for name, default in (
        ("rollout-batch-size", 0),
        ("n-samples-per-prompt", 1),
        ("global-batch-size", None),
        ("num-steps-per-rollout", None),
        ("context-parallel-size", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("use-rollout-logprobs", "keep-old-actor"):
        parser.add_argument(f"--{name}", action="store_true")
    try:
        return parser.parse_known_args(options)[0]
    except argparse.ArgumentError as error:
        raise ConfigError(f"an option of slime cannot be read: {error}") from None


def _section(path: str | None) -> Any:
    """`holdfast_penalty` of the YAML file that --custom-config-path names. Raises `ConfigError`."""
    if path is None:
        return None
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    return content.get("holdfast_penalty") if isinstance(content, dict) else None


def _shown(penalty: Penalty | None) -> str:
    return "no penalty, observing" if penalty is None else repr(penalty)
