"""`holdfast doctor`: whether holdfast works inside an installed trainer. One function per host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.doctor_losses import Line, prime_rl_checks, slime_checks
from holdfast.cli.terminal import HELP_OPTIONS, out

app = typer.Typer(rich_markup_mode="rich", invoke_without_command=True, context_settings=HELP_OPTIONS)

_VERL_NEEDS = {name: name for name in ("cachetools", "uvicorn", "fastapi", "httpx")}
_VERL_NEEDS["transfer_queue"] = "TransferQueue"
"""Module -> package, needed by verl's trainer or agent loops. verl lists most of them only in an extra."""

_INSTALL_TRL = "Run: pip install 'holdfast-rl[trl]'"
_INSTALL_UNSLOTH = "Run: pip install -U unsloth unsloth_zoo"
_TRL_SCHEDULE = (
    "optimizer steps per rollout = num_iterations × steps_per_generation / gradient_accumulation_steps. TRL's "
    "default is 1, but a penalty needs 2 or more: on the first step the policy equals the old one. Set "
    "GRPOConfig(steps_per_generation=2 * gradient_accumulation_steps) or more"
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
        installed = _version(host)
        state = f"{installed} is installed: run `holdfast doctor {command}`" if installed else "not installed"
        out().print(f"{what}: {state}")
    out().print("The local trainer (`holdfast train`) needs no check.")


@app.command("trl")
def trl() -> None:
    """Check TRL: its version, and the setting without which a penalty has no effect.

    [cyan]holdfast doctor trl[/cyan]
    """
    _report(trl_lines())


@app.command("verl", context_settings={"ignore_unknown_options": True})
def verl(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="OVERRIDES…", help="The Hydra overrides of your run, to check them too."),
    ] = None,
    config_name: Annotated[
        str, typer.Option(help="As verl takes it, such as one_step_off_ppo_trainer or fully_async_ppo_trainer.")
    ] = "ppo_trainer",
    config_path: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Check verl: its version, plug-in and losses, and the Hydra overrides of your run.

    [cyan]holdfast doctor verl algorithm.adv_estimator=grpo[/cyan]

    [cyan]holdfast doctor verl --config-name fully_async_ppo_trainer async_training.require_batches=4[/cyan]
    """
    _report(verl_lines(overrides or [], config_name))  # the path follows from the name


@app.command("unsloth")
def unsloth() -> None:
    """Check Unsloth: its versions, and the setting without which a penalty has no effect.

    [cyan]holdfast doctor unsloth[/cyan]
    """
    _report(unsloth_lines())


@app.command("prime-rl")
def prime_rl(
    config: Annotated[
        Path | None, typer.Argument(metavar="TOML", help="The configuration of your run, to check it too.")
    ] = None,
) -> None:
    """Check prime-rl: its version, its loss, and the configuration of your run.

    [cyan]holdfast doctor prime-rl rl.toml[/cyan]
    """
    _report(prime_rl_lines(config))


@app.command("slime", context_settings={"ignore_unknown_options": True})
def slime(
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="OPTIONS…", help="The options of your run, to check them too."),
    ] = None,
) -> None:
    """Check slime or miles: its version, and the options of your run.

    [cyan]holdfast doctor slime --num-steps-per-rollout 10 --custom-config-path holdfast.yaml[/cyan]
    """
    _report(slime_lines(options or []))


def trl_lines() -> Iterator[Line]:
    """(whether it is fine, what was checked and what to do) for TRL."""
    from holdfast.hosts.trl import TRL

    if (installed := _version("trl")) is None:
        yield False, f"trl is not installed in this environment. {_INSTALL_TRL}"
        return
    if not TRL.works_with(installed):
        yield False, f"trl {installed} is installed, but {TRL.versions_text}, is needed. {_INSTALL_TRL}"
        return
    yield True, f"trl {installed}, transformers {_version('transformers')}"
    yield True, _TRL_SCHEDULE
    yield (
        True,
        "if top_p, top_k or min_p truncates the sampler: set top_k=512 or less, and pass with_penalties(..., "
        "mask_logprobs=True), or the loss will move probability to tokens that are never sampled",
    )


def unsloth_lines() -> Iterator[Line]:
    """The lines of `trl_lines` for Unsloth."""
    from holdfast.hosts.host import between
    from holdfast.hosts.trl import TRL

    packages = {name: _version(name) for name in ("unsloth", "unsloth_zoo", "trl")}
    absent = [name for name, installed in packages.items() if installed is None]
    if absent:
        yield False, f"{' and '.join(absent)} not installed in this environment. Run: pip install unsloth unsloth_zoo"
        return
    zoo, installed = str(packages["unsloth_zoo"]), str(packages["trl"])
    if not between(zoo, (2026, 10)):
        yield False, f"unsloth_zoo {zoo} is installed, but 2026.10 or newer is needed. {_INSTALL_UNSLOTH}"
        return
    if not TRL.works_with(installed):
        yield False, f"trl {installed} is installed, but {TRL.versions_text}, is needed. {_INSTALL_TRL}"
        return
    yield True, ", ".join(f"{name} {version}" for name, version in packages.items())
    yield True, "`import unsloth` must come before every import of trl; with_penalties refuses the other order"
    yield True, _TRL_SCHEDULE
    yield (
        True,
        "sample without truncation (top_p=1, top_k=0, min_p=None), because Unsloth does not support a sampling mask",
    )


def prime_rl_lines(config: Path | None) -> Iterator[Line]:
    """The lines of `trl_lines` for prime-rl."""
    from holdfast.hosts.prime_rl import PRIME_RL

    if (installed := _version("prime-rl")) is None:
        yield (
            False,
            "prime-rl is not installed in this environment. Install it as its README says, and holdfast in the same "
            "environment",
        )
        return
    if not PRIME_RL.works_with(installed):
        yield False, f"prime-rl {installed} is installed, but holdfast needs {PRIME_RL.versions_text}"
        return
    yield True, f"prime-rl {installed}"
    try:
        from holdfast.adapters import prime_rl

        yield True, prime_rl.interface()
    except Exception as error:  # the version does not tell what the loss is like, nor what its modules need
        yield (
            False,
            f"its loss cannot be used: {error}. Run this in the environment in which prime-rl trains. If it is that "
            "one, this prime-rl is newer than holdfast: update holdfast",
        )
        return
    yield from prime_rl_checks(config)


def slime_lines(options: list[str]) -> Iterator[Line]:
    """The lines of `trl_lines` for slime and miles."""
    packages = {name: _version(name) for name in ("slime", "miles")}
    if not any(packages.values()):
        yield False, "neither slime nor miles is installed in this environment. Run this in the container of your run"
        return
    yield True, ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    yield from slime_checks(options)


def verl_lines(overrides: list[str], config_name: str) -> Iterator[Line]:
    """The lines of `trl_lines` for verl. Stops at the first problem that hides the others."""
    from holdfast.hosts.host import between
    from holdfast.hosts.verl import VERL

    if (installed := _version("verl")) is None:
        yield False, "verl is not installed in this environment. Run: pip install 'holdfast-rl[verl]'"
        return
    if not VERL.works_with(installed):
        yield (
            False,
            f"verl {installed} is installed, but holdfast needs {VERL.versions_text}. Run: pip install 'verl==0.9.*'",
        )
        return
    yield True, f"verl {installed}, transformers {_version('transformers')}"
    vllm = _version("vllm")
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
        from holdfast.adapters import verl_check
    except Exception as error:  # it fails in every worker too, where verl prints nothing
        yield False, f"holdfast.adapters.verl cannot be imported: {error}"
        return
    yield True, f"policy losses in verl's registry: {', '.join(verl_check.LOSSES)}"
    config = verl_check.compose(overrides or verl_check.EXAMPLE, config_name)
    yield from verl_check.checks(config)
    if not overrides:
        yield True, "checked with the overrides\n    " + "\n    ".join(verl_check.EXAMPLE)
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


def _report(lines: Iterator[Line]) -> None:
    problems = 0
    for fine, text in lines:
        problems += not fine
        out().print(("ok       " if fine else "PROBLEM  ") + text)
    if problems:
        raise typer.Exit(1)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
