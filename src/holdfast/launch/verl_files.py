"""The files of a verl run: the command, the agent loop's settings, the recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from holdfast.config import Config, dump
from holdfast.launch.parquet import AGENT
from holdfast.launch.plan import Machines, Option

AGENT_LOOPS = "agent_loops.yaml"

_PLAIN = re.compile(r"[A-Za-z_/][\w./-]*")  # a text that Hydra takes for one without quotes
_WORDS = {"true", "false", "null", "nan", "inf"}  # unless it is one of these


class Here(str):
    """A path in the launch folder, or a full one. The command writes it in full: workers have folders of their own."""

    __slots__ = ()


class Reference(str):
    """Another key of verl's configuration, for Hydra to look up."""

    __slots__ = ()


def here(*parts: str) -> Here:
    """A path below the launch folder; a part that is a full path begins anew."""
    return Here(Path(*parts))


def files(config: Config, options: Sequence[Option], machines: Machines) -> dict[str, str]:
    """Text files by name."""
    return {
        "run.sh": command(config, options, machines),
        AGENT_LOOPS: agent_loops(config),
        "recipe.toml": f"# What this folder was made from; run.sh does not read it.\n\n{dump(config)}",
    }


def model_path(config: Config) -> str:
    """A folder by its full path, anything else as it is: an id of the hub."""
    path = Path(config.model.path)
    return str(path.resolve()) if path.is_dir() else config.model.path


def agent_loops(config: Config) -> str:
    """The file `agent_loop_config_path` names: arguments of `holdfast.adapters.verl_agent.SearchAgentLoop`."""
    limits = config.protocol
    values: dict[str, Any] = {
        "retriever": config.retrieval.url,
        "preset": limits.preset,
        "prompt": "data",  # the parquet files hold the protocol's prompt
        "max_turns": limits.max_turns,
        "max_turn_tokens": limits.max_turn_tokens,
        "max_observation_tokens": limits.max_observation_tokens,
        "topk": limits.topk,
        "reward": {name: weight for name, weight in config.reward.weights().items() if weight},
    }
    lines = [f"- name: {AGENT}", "  _target_: holdfast.adapters.verl_agent.SearchAgentLoop"]
    # YAML contains JSON.
    return "\n".join([*lines, *(f"  {key}: {json.dumps(value)}" for key, value in values.items())]) + "\n"


def command(config: Config, options: Sequence[Option], machines: Machines) -> str:
    """`run.sh`."""
    head = ["#!/usr/bin/env bash", f"# {config.run.name} on {machines}. Made by `holdfast launch verl`, yours to edit."]
    head += [
        "#",
        "# `./run.sh --check` tells whether verl, holdfast in it and these options fit together, and trains nothing.",
    ]
    if machines.nodes > 1:
        head += [
            "#",
            f"# {machines.nodes} machines: this folder must lie at the same path on each, and the retriever in",
            f"# {AGENT_LOOPS} be an address that all can reach, so not 127.0.0.1. Then",
            "#   on the first        ray start --head",
            "#   on each other       ray start --address=FIRST:6379",
            "#   on the first        ./run.sh",
        ]
    head += [
        "#",
        "# Out of GPU memory? Append to the command:",
        "#   ./run.sh actor_rollout_ref.actor.fsdp_config.param_offload=True "
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True",
    ]
    if config.data.test is not None:
        head += [
            "# The test questions, once and at the end; under another name, because verl begins a run's log anew:",
            '#   ./run.sh trainer.val_only=True data.val_files="$PWD/test.parquet" '
            + quote(f"trainer.experiment_name={hydra(f'{config.run.name}-test')}"),
        ]
    width = max(len(_override(option)) for option in options if len(_override(option)) < 90)
    body: list[str] = []
    part: list[str] = []
    for option in options:
        kind = option.name.lstrip("+").split(".")[:-1][:2]
        if part and kind != part:
            body.append("")
        part = kind
        body.append(f"  {_override(option):{width}}  # {option.why}")
    tail = [
        'if [ "${1:-}" = --check ]; then exec holdfast doctor verl "${overrides[@]}" "${@:2}"; fi',
        'exec python3 -m verl.trainer.main_ppo "${overrides[@]}" "$@"',
    ]
    return "\n".join([*head, "set -euo pipefail", 'cd "$(dirname "$0")"', "", "overrides=(", *body, ")", *tail]) + "\n"


def _override(option: Option) -> str:
    """One word of the command, quoted for bash and, inside that, for Hydra."""
    value = option.value
    if isinstance(value, Here) and not Path(value).is_absolute():
        if _PLAIN.fullmatch(value):
            return f"{option.name}=\"'$PWD/{value}'\""
        return f"{option.name}=\"'$PWD/\"{quote(_escaped(value))}\\'"
    return f"{option.name}={quote(hydra(value))}"


def hydra(value: Any) -> str:
    """A value as Hydra's override grammar reads it.

    >>> hydra(True), hydra(None), hydra(1e-06), hydra(["console", "file"])
    ('True', 'null', '1e-06', '[console,file]')
    >>> hydra("Qwen/Qwen2.5-3B"), hydra("a b"), hydra("42")
    ('Qwen/Qwen2.5-3B', "'a b'", "'42'")
    """
    if value is None:
        return "null"
    if isinstance(value, Reference):
        return f"${{{value}}}"
    if isinstance(value, list):
        return f"[{','.join(map(hydra, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{hydra(item)}' for key, item in value.items())}}}"
    if isinstance(value, str) and not (_PLAIN.fullmatch(value) and value.lower() not in _WORDS):
        return f"'{_escaped(value)}'"
    return str(value)


def _escaped(text: str) -> str:
    """For between Hydra's single quotes."""
    return text.replace("\\", "\\\\").replace("'", "\\'")
