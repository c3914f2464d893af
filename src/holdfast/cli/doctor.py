"""`holdfast doctor`: whether holdfast works inside an installed trainer. One function per host."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from functools import wraps
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from holdfast.base.errors import ConfigError
from holdfast.base.stored import read_toml
from holdfast.base.tested import TESTED, between, installed_version, newer_than_tested
from holdfast.cli.terminal import HELP_OPTIONS, out
from holdfast.hosts.advice import WITHOUT
from holdfast.hosts.trl import CORRECTS, TWICE

if TYPE_CHECKING:
    from holdfast.methods.penalties import Penalty

P = ParamSpec("P")
Line = tuple[bool, str]
"""Whether it is fine; what was checked, and what to do."""

app = typer.Typer(rich_markup_mode="rich", invoke_without_command=True, context_settings=HELP_OPTIONS)

_VERL_NEEDS = {name: name for name in ("cachetools", "uvicorn", "fastapi", "httpx")}
_VERL_NEEDS["transfer_queue"] = "TransferQueue"
"""Module -> package, needed by verl's trainer or agent loops. verl lists most of them only in an extra."""

_INSTALL_TRL = "Run: pip install 'holdfast-rl[trl]'"
_INSTALL_PRIME_RL = "Install it as its README says, and holdfast in the same environment"
_INSTALL_UNSLOTH = "Run: pip install -U unsloth unsloth_zoo"
_TRL_SCHEDULE = (
    "optimizer steps per rollout = num_iterations × steps_per_generation / gradient_accumulation_steps. TRL's "
    "default is 1, but a penalty needs 2 or more: on the first step the policy equals the old one. To split a "
    "rollout batch into 4 steps, set steps_per_generation to the old value of gradient_accumulation_steps, and "
    "gradient_accumulation_steps to a quarter of it. num_iterations=2 uses every rollout twice instead"
)
_DECLARE = (
    "install it again (pip install -e . in a clone), or set VERL_USE_EXTERNAL_MODULES=holdfast.adapters.verl for every "
    "process"
)
_HOSTS = {
    "trl": ("TRL's GRPOTrainer", "trl"),
    "unsloth": ("Unsloth's GRPOTrainer", "unsloth"),
    "verl": ("verl on Ray", "verl"),
    "prime-rl": ("prime-rl", "prime-rl"),
    "slime": ("slime", "slime"),
    "miles": ("miles", "slime"),
}
"""Package -> what it is, and the command that checks it."""
_PRIME_RL_PATH = "holdfast.adapters.prime_rl.loss"
_SLIME_PATH = "holdfast.adapters.slime.loss"
_NOISE = (
    "penalty.threshold = 0: prime-rl's old log-probs are the sampler's, which differ a little from the trainer's "
    "before any update, and this noise counts as a decrease. Set threshold above mismatch_kl's level, for example "
    "0.01"
)
_SLIME_SCHEDULE = (
    "optimizer steps per rollout batch = --num-steps-per-rollout, or --rollout-batch-size × --n-samples-per-prompt / "
    "--global-batch-size. A penalty needs 2 or more: on the first step the policy equals the old one"
)


@app.callback()
def doctor(ctx: typer.Context) -> None:
    """Check that holdfast works with the installed TRL or verl.

    Checks versions, plug-ins and settings, and prints what to change. Changes
    nothing. Without a trainer's name, prints which trainers are installed.

    [cyan]holdfast doctor trl[/cyan]

    [cyan]holdfast doctor verl algorithm.adv_estimator=grpo[/cyan]

    Exit codes: 0 all is well, 1 something must be changed.
    """
    if ctx.invoked_subcommand is not None:
        return
    for host, (what, command) in _HOSTS.items():
        installed = installed_version(host)
        state = f"{installed} is installed: run `holdfast doctor {command}`" if installed else "not installed"
        out().print(f"{what}: {state}")
    out().print("The local trainer (`holdfast train`) needs no check.")


def checked(lines: Iterator[Line]) -> Iterator[Line]:
    """The lines of a check. A `ConfigError` is a problem that hides all further ones."""
    try:
        yield from lines
    except ConfigError as error:
        yield False, str(error)


def _command(name: str) -> Callable[[Callable[P, Iterator[Line]]], Callable[P, Iterator[Line]]]:
    """Make a command of a check: it prints the lines, and exits with code 1 if one is a problem."""

    def register(check: Callable[P, Iterator[Line]]) -> Callable[P, Iterator[Line]]:
        @wraps(check)
        def command(*args: P.args, **kwargs: P.kwargs) -> None:
            lines = []
            for fine, text in checked(check(*args, **kwargs)):
                lines.append(fine)
                out().print(("ok       " if fine else "PROBLEM  ") + text)
            if not all(lines):
                raise typer.Exit(1)

        app.command(name, context_settings={"ignore_unknown_options": True})(command)
        return check

    return register


def _supported(package: str, install: str, upgrade: str | None = None) -> str:
    """The version of a host. Raises `ConfigError` where it is not installed, or older than holdfast needs."""
    if (installed := installed_version(package)) is None:
        raise ConfigError(f"{package} is not installed in this environment. {install}")
    if not TESTED[package].works_with(installed):
        needed = f"{package} {installed} is installed, but holdfast needs {TESTED[package].oldest} or newer"
        raise ConfigError(f"{needed}. {upgrade or install}")
    return installed


def _versions(*packages: str) -> Iterator[Line]:
    """What is installed of these, and what of it is newer than all versions that were tested."""
    installed = {name: found for name in packages if (found := installed_version(name))}
    yield True, ", ".join(f"{name} {found}" for name, found in installed.items())
    for name in filter(TESTED.__contains__, installed):
        if newer := newer_than_tested(name, installed[name]):
            yield True, f"note: {newer}"


@_command("trl")
def trl() -> Iterator[Line]:
    """Check TRL: its version, and the setting without which a penalty has no effect.

    [cyan]holdfast doctor trl[/cyan]
    """
    installed = _supported("trl", _INSTALL_TRL)
    yield from _versions("trl", "transformers")
    yield True, _TRL_SCHEDULE
    yield (
        True,
        "the old policy: GRPOTrainer uses the weights from the start of the rollout batch, with vLLM too. "
        f"AsyncGRPOTrainer uses the sampler, so {WITHOUT} there (docs/reference/advice.md)",
    )
    yield (
        True,
        "if top_p, top_k or min_p truncates the sampler: set top_k=512 or less, and pass with_penalties(..., "
        "mask_logprobs=True), or the loss will move probability to tokens that are never sampled",
    )
    if between(installed, CORRECTS):
        yield True, f"note: {TWICE}"


@_command("verl")
def verl(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="OVERRIDES…", help="The Hydra overrides of your run, to check them too."),
    ] = None,
    config_name: Annotated[
        str, typer.Option(help="As in verl, such as one_step_off_ppo_trainer or fully_async_ppo_trainer.")
    ] = "ppo_trainer",
    config_path: Annotated[str, typer.Option(hidden=True)] = "",  # it follows from the name
) -> Iterator[Line]:
    """Check verl: its version, plug-in and losses, and the Hydra overrides of your run.

    [cyan]holdfast doctor verl algorithm.adv_estimator=grpo[/cyan]

    [cyan]holdfast doctor verl --config-name fully_async_ppo_trainer async_training.require_batches=4[/cyan]
    """
    upgrade = f"Run: pip install 'verl=={TESTED['verl'].newest}.*'"
    installed = _supported("verl", "Run: pip install 'holdfast-rl[verl]'", upgrade)
    yield from _versions("verl", "transformers")
    vllm = installed_version("vllm")
    if vllm is None:
        yield True, "vllm is not installed here, but the machines that generate rollouts need it"
    elif between(vllm, (0, 18)):
        yield True, f"vllm {vllm}"
    else:
        yield (
            False,
            f"vllm {vllm} is installed, but verl {installed} needs 0.18 or newer. Run: pip install 'vllm>=0.18'",
        )
    yield from _plugin_lines(has_plugins=between(installed, (0, 9)))
    absent = [package for module, package in _VERL_NEEDS.items() if find_spec(module) is None]
    if absent:
        missing = f"{', '.join(absent)} missing, which verl's trainer or its agent loops need"
        yield False, f"{missing}. Run: pip install {' '.join(absent)}"
    try:
        from holdfast.adapters.verl import check
    except Exception as error:  # it fails in every worker too, where verl prints nothing
        raise ConfigError(f"holdfast.adapters.verl cannot be imported: {error}") from error
    yield True, f"policy losses in verl's registry: {', '.join(check.LOSSES)}"
    yield from check.checks(check.compose(overrides or check.EXAMPLE, config_name))
    if not overrides:
        yield True, "checked with the overrides\n    " + "\n    ".join(check.EXAMPLE)
        yield True, "to check the overrides of your run, give them after `holdfast doctor verl`"


def _plugin_lines(*, has_plugins: bool) -> Iterator[Line]:
    plugins = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip()
    modules = os.environ.get("VERL_USE_EXTERNAL_MODULES", "")
    declared = any(point.name == "holdfast" for point in entry_points(group="verl.plugins"))
    allowed = plugins.lower() == "auto" or "holdfast" in (name.strip() for name in plugins.lower().split(","))
    if "holdfast.adapters.verl" in modules.split(","):
        yield True, "verl imports holdfast.adapters.verl because VERL_USE_EXTERNAL_MODULES names it"
    elif not has_plugins:
        setting = "VERL_USE_EXTERNAL_MODULES=holdfast.adapters.verl"
        yield False, f"verl 0.8 has no plugins; set {setting} for every process, or install verl 0.9"
    elif not declared:
        yield False, f"the installed holdfast declares no verl plugin; {_DECLARE}"
    elif not allowed:
        value = f"VERL_USE_EXTERNAL_PLUGINS={plugins}"
        yield False, f"{value} keeps verl from loading holdfast; add holdfast to it, or unset it"
    else:
        yield True, "verl loads holdfast by its entry point verl.plugins"


@_command("unsloth")
def unsloth() -> Iterator[Line]:
    """Check Unsloth: its versions, and the setting without which a penalty has no effect.

    [cyan]holdfast doctor unsloth[/cyan]
    """
    if absent := [name for name in ("unsloth", "unsloth_zoo", "trl") if installed_version(name) is None]:
        raise ConfigError(
            f"{' and '.join(absent)} not installed in this environment. Run: pip install unsloth unsloth_zoo"
        )
    _supported("unsloth_zoo", _INSTALL_UNSLOTH)
    _supported("trl", _INSTALL_TRL)
    yield from _versions("unsloth", "unsloth_zoo", "trl")
    yield True, "`import unsloth` must come before every import of trl; with_penalties refuses the other order"
    yield True, _TRL_SCHEDULE
    yield (
        True,
        "sample without truncation (top_p=1, top_k=0, min_p=None), because Unsloth does not support a sampling mask",
    )


@_command("prime-rl")
def prime_rl(
    config: Annotated[
        Path | None, typer.Argument(metavar="TOML", help="The configuration of your run, to check it too.")
    ] = None,
) -> Iterator[Line]:
    """Check prime-rl: its version, its loss, and the configuration of your run.

    [cyan]holdfast doctor prime-rl rl.toml[/cyan]
    """
    _supported("prime-rl", _INSTALL_PRIME_RL)
    yield from _versions("prime-rl")
    try:
        from holdfast.adapters import prime_rl

        yield True, prime_rl.interface()
    except Exception as error:  # the version does not tell what the loss is like, nor what its modules need
        raise ConfigError(
            f"its loss cannot be used: {error}. Run this in the environment in which prime-rl trains. If you did, "
            "this prime-rl is newer than holdfast: update holdfast"
        ) from error
    if config is None:
        yield True, "to check the configuration of your run, give it: holdfast doctor prime-rl rl.toml"
    else:
        yield from _prime_rl_config(config)


def _prime_rl_config(path: Path) -> Iterator[Line]:
    """What a configuration of prime-rl means for holdfast's loss."""
    from holdfast.adapters.host_losses import penalty_of
    from holdfast.adapters.prime_rl import base_config

    config = read_toml(path, ConfigError, "give prime-rl's TOML file")
    loss = config.get("trainer", config).get("loss", {})
    if loss.get("import_path") != _PRIME_RL_PATH or loss.get("type") != "custom":
        raise ConfigError(
            f'[trainer.loss] in {path} is not holdfast\'s. Set type = "custom", import_path = "{_PRIME_RL_PATH}"'
        )
    kwargs = loss.get("kwargs", {})
    if unread := sorted(set(kwargs) - {"penalty", "base"}):
        raise ConfigError(
            f"trainer.loss.kwargs.{unread[0]}: holdfast reads only penalty and base; put it into one of them"
        )
    try:
        penalty = penalty_of(kwargs.get("penalty"), "prime-rl")
    except ConfigError as error:
        raise ConfigError(f"trainer.loss.kwargs: {error}") from error
    base_config(kwargs.get("base"))
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


@_command("slime")
def slime(
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="OPTIONS…", help="The options of your run, to check them too."),
    ] = None,
) -> Iterator[Line]:
    """Check slime or miles: its version, and the options of your run.

    [cyan]holdfast doctor slime --num-steps-per-rollout 10 --custom-config-path holdfast.yaml[/cyan]
    """
    if not any(map(installed_version, ("slime", "miles"))):
        raise ConfigError(
            "neither slime nor miles is installed in this environment. Run this in the container of your run"
        )
    yield from _versions("slime", "miles")
    if options:
        yield from _slime_run(_slime_options(options))
    else:
        yield True, _SLIME_SCHEDULE
        yield True, "to check the options of your run, give them after `holdfast doctor slime`"


def _slime_run(args: argparse.Namespace) -> Iterator[Line]:
    """What the options of a run of slime or miles mean for holdfast's loss."""
    from holdfast.adapters.host_losses import penalty_of
    from holdfast.adapters.slime import problems, steps_per_rollout

    if (args.loss_type, args.custom_loss_function_path) != ("custom_loss", _SLIME_PATH):
        raise ConfigError(
            f"this is not holdfast's loss. Set --loss-type custom_loss --custom-loss-function-path {_SLIME_PATH}"
        )
    try:
        penalty = penalty_of(_section(args.custom_config_path), "slime")
    except ConfigError as error:
        raise ConfigError(f"holdfast_penalty: {error}") from error
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
