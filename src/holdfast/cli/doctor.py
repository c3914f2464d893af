"""`holdfast doctor`: is a host trainer installed so that holdfast works in it? One function a host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from typing import Annotated

import typer

from holdfast.cli.terminal import out

app = typer.Typer(
    help="Check that holdfast works inside the trainer you use.",
    rich_markup_mode="rich",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Line = tuple[bool, str]

_BESIDE_VERL = {name: name for name in ("cachetools", "uvicorn", "fastapi", "httpx")}
_BESIDE_VERL["transfer_queue"] = "TransferQueue"
"""Module -> package; verl itself lists most of them only in an extra."""

_HOSTS = {"trl": "TRL's GRPOTrainer", "verl": "verl on Ray"}


@app.callback()
def doctor(ctx: typer.Context) -> None:
    """Check that holdfast works inside the trainer you use.

    [cyan]holdfast doctor trl[/cyan] and [cyan]holdfast doctor verl[/cyan]
    look at versions and settings, and say what to change. The exit code is 1
    when something must change.
    """
    if ctx.invoked_subcommand is not None:
        return
    for host, what in _HOSTS.items():
        installed = _version(host)
        state = f"{installed} is here: run `holdfast doctor {host}`" if installed else "not in this environment"
        out().print(f"{what}: {state}")
    out().print("The local trainer (`holdfast train`) needs no doctor.")


@app.command("trl")
def trl() -> None:
    """Version, and the one setting that makes a penalty live."""
    _report(trl_lines())


@app.command("verl", context_settings={"ignore_unknown_options": True})
def verl(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="The Hydra overrides of your run, to check them too.", show_default=False),
    ] = None,
) -> None:
    """Version, plugin, losses, and your Hydra overrides if you give them."""
    _report(verl_lines(overrides or []))


def trl_lines() -> Iterator[Line]:
    """(is it good, what was found) for TRL."""
    if (installed := _version("trl")) is None:
        yield False, "trl is not installed in this environment. Run: pip install 'holdfast-rl[trl]'"
        return
    if not _between(installed, (1, 16), (2, 0)):
        yield (
            False,
            f"trl {installed} is installed; 1.16 or newer, below 2, is needed. Run: pip install 'holdfast-rl[trl]'",
        )
        return
    yield True, f"trl {installed}, transformers {_version('transformers')}"
    yield (
        True,
        "optimizer steps per rollout = num_iterations × steps_per_generation / gradient_accumulation_steps, which TRL "
        "leaves at 1. On the first step the policy equals the old one, so a penalty needs at least 2: set "
        "GRPOConfig(steps_per_generation=2 * gradient_accumulation_steps) or more",
    )


def verl_lines(overrides: list[str]) -> Iterator[Line]:
    """(is it good, what was found) for verl; stops at the first problem that hides the others."""
    if (installed := _version("verl")) is None:
        yield False, "verl is not installed in this environment. Run: pip install 'holdfast-rl[verl]'"
        return
    if not _between(installed, (0, 9), (0, 10)):
        yield (
            False,
            (f"verl {installed} is installed, but holdfast.adapters.verl needs 0.9. Run: pip install 'verl==0.9.*'"),
        )
        return
    yield True, f"verl {installed}, transformers {_version('transformers')}"
    yield from _plugin_lines()
    absent = [package for module, package in _BESIDE_VERL.items() if find_spec(module) is None]
    if absent:
        missing = f"{', '.join(absent)} missing, which verl's trainer or its agent loops need"
        yield False, f"{missing}. Run: pip install {' '.join(absent)}"
    try:
        from holdfast.adapters import verl_check
    except Exception as error:  # whatever stops this import stops it in every worker, where verl says nothing
        yield False, f"holdfast.adapters.verl cannot be imported: {error}"
        return
    yield True, f"policy losses in verl's registry: {', '.join(verl_check.LOSSES)}"
    config = verl_check.compose(overrides or verl_check.EXAMPLE)
    for finding in verl_check.findings(config):
        yield finding.good, finding.text
    if not overrides:
        yield True, "checked with the overrides\n    " + "\n    ".join(verl_check.EXAMPLE)
        yield True, "give the overrides of your own run behind `holdfast doctor verl` to have them checked"


def _plugin_lines() -> Iterator[Line]:
    wanted = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip()
    modules = os.environ.get("VERL_USE_EXTERNAL_MODULES", "")
    declared = any(point.name == "holdfast" for point in entry_points(group="verl.plugins"))
    allowed = wanted.lower() == "auto" or "holdfast" in (name.strip() for name in wanted.lower().split(","))
    if "holdfast.adapters.verl" in modules.split(","):
        yield True, "verl imports holdfast.adapters.verl because VERL_USE_EXTERNAL_MODULES names it"
    elif not declared:
        yield (
            False,
            (
                "the installed holdfast declares no verl plugin; install it again (pip install -e . in a clone), or "
                "set VERL_USE_EXTERNAL_MODULES=holdfast.adapters.verl for every process"
            ),
        )
    elif not allowed:
        yield False, f"VERL_USE_EXTERNAL_PLUGINS={wanted} keeps verl from loading holdfast; add it there, or unset that"
    else:
        yield True, "verl loads holdfast by itself (entry point verl.plugins)"


def _report(lines: Iterator[Line]) -> None:
    well = True
    for good, text in lines:
        well = well and good
        out().print(("ok       " if good else "PROBLEM  ") + text)
    if not well:
        raise typer.Exit(1)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _between(installed: str, first: tuple[int, int], last: tuple[int, int]) -> bool:
    try:
        major, minor = (int(part) for part in installed.split(".")[:2])
    except ValueError:
        return False
    return first <= (major, minor) < last
