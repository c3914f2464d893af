"""The files of a verl run: the command, the settings of the agent loop, the recipe, the questions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from holdfast.adapters.launch.plan import Machines, code_folder, questions_of, train_and_dev
from holdfast.agent.protocol import SearchProtocol, prompt_text
from holdfast.agent.tools import PRESETS
from holdfast.base.errors import ConfigError
from holdfast.base.rows import import_pyarrow
from holdfast.data.questions import MOST_HELD_OUT, Example, dev_questions
from holdfast.methods.method import Option
from holdfast.recipe import Config, dump

AGENT_LOOPS = "agent_loops.yaml"
AGENT = "holdfast_search"
"""Name of the agent loop, in every row of the questions."""

_MODULES = "VERL_USE_EXTERNAL_MODULES=holdfast.adapters.verl${VERL_USE_EXTERNAL_MODULES:+,$VERL_USE_EXTERNAL_MODULES}"
_PLAIN = re.compile(r"(?a)(?!(?i:true|false|null|nan|inf)$)[A-Za-z_/][\w./-]*")  # texts that Hydra reads without quotes


class Here(str):
    """A path in the launch folder, or a full path. The command writes the full path: workers run in other folders."""

    __slots__ = ()


class Reference(str):
    """A key of the verl configuration, which Hydra looks up."""

    __slots__ = ()


def here(*parts: str) -> Here:
    """A path below the launch folder; a part that is a full path replaces those before it."""
    return Here(Path(*parts))


def files(config: Config, options: Sequence[Option], machines: Machines) -> dict[str, str]:
    """Text files by name."""
    return {
        "run.sh": command(config, options, machines),
        AGENT_LOOPS: agent_loops(config),
        "recipe.toml": f"# What this folder was made from; run.sh does not read it.\n\n{dump(config)}",
    }


def agent_loops(config: Config) -> str:
    """The file `agent_loop_config_path` names: arguments of `holdfast.adapters.verl_agent.SearchAgentLoop`."""
    limits = config.protocol
    values: dict[str, Any] = {
        "retriever": config.retrieval.url,
        "preset": limits.preset,
        "prompt": "data",  # the parquet files hold the protocol's prompt
        **({} if config.model.chat_template == "auto" else {"chat_template": config.model.chat_template}),
        "max_turns": limits.max_turns,
        "max_turn_tokens": limits.max_turn_tokens,
        "max_observation_tokens": limits.max_observation_tokens,
        "topk": limits.topk,
        **({} if limits.tools is None else {"tool_names": list(limits.tools), "tool_timeout": limits.tool_timeout}),
        "reward": {name: weight for name, weight in config.reward.weights().items() if weight},
    }
    lines = [f"- name: {AGENT}", "  _target_: holdfast.adapters.verl_agent.SearchAgentLoop"]
    for key, value in values.items():
        text = json.dumps(value, ensure_ascii=False)  # YAML contains JSON, but has no surrogate pairs
        lines.append(f"  {key}: " + re.sub("[^ -~]", lambda found: f"\\U{ord(found[0]):08x}", text))
    return "\n".join(lines) + "\n"


def command(config: Config, options: Sequence[Option], machines: Machines) -> str:
    """`run.sh`."""
    head = ["#!/usr/bin/env bash", f"# {config.run.name} on {machines}. Made by `holdfast launch verl`, yours to edit."]
    head += [
        "#",
        "# `./run.sh --check` checks that verl, holdfast and these options fit together, without training.",
    ]
    if machines.nodes > 1:
        head += [
            "#",
            f"# {machines.nodes} machines: this folder must be at the same path on each, and the retriever in",
            f"# {AGENT_LOOPS} must be an address that all can reach, so not 127.0.0.1. Then",
            "#   on the first        ray start --head",
            "#   on each other       ray start --address=FIRST:6379",
            "#   on the first        ./run.sh",
            "# With verl 0.8, set VERL_USE_EXTERNAL_MODULES=holdfast.adapters.verl on each before `ray start`.",
        ]
    head += [
        "#",
        "# Out of GPU memory? Append to the command:",
        "#   ./run.sh actor_rollout_ref.actor.fsdp_config.param_offload=True "
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True",
    ]
    if config.data.test is not None:
        head += [
            "# The test questions, once and at the end; under another name, because verl overwrites the log of a run:",
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
    begin = ["set -euo pipefail", 'cd "$(dirname "$0")"', r"here=${PWD//\'/\\\'}  # as in quotes of Hydra"]
    begin += [f"export {_MODULES}  # for verl 0.8, which has no plugins", *code_folder(config)]
    return "\n".join([*head, *begin, "", "overrides=(", *body, ")", *tail]) + "\n"


def _override(option: Option) -> str:
    """An override as a word of the command, quoted for Hydra and then for bash."""
    value = option.value
    if isinstance(value, Here) and not Path(value).is_absolute():
        if _PLAIN.fullmatch(value):
            return f"{option.name}=\"'$here/{value}'\""
        return f"{option.name}=\"'$here/\"{quote(_escaped(value))}\\'"
    return f"{option.name}={quote(hydra(value))}"


def hydra(value: Any) -> str:
    """A value in the override grammar of Hydra.

    >>> hydra(True), hydra(None), hydra(1e-06), hydra(["console", "file"])
    ('True', 'null', '1e-06', '[console,file]')
    >>> hydra("Qwen/Qwen2.5-3B"), hydra("Zürich"), hydra("42")
    ('Qwen/Qwen2.5-3B', "'Zürich'", "'42'")
    """
    if value is None:
        return "null"
    if isinstance(value, Reference):
        return f"${{{value}}}"
    if isinstance(value, list):
        return f"[{','.join(map(hydra, value))}]"
    if isinstance(value, dict):
        if odd := [key for key in value if not _PLAIN.fullmatch(key)]:
            raise ConfigError(
                f"the key {odd[0]!r} in loss.penalty.settings cannot be written for Hydra, which reads verl's options. "
                "Use ASCII letters, digits and _"
            )
        return f"{{{','.join(f'{key}:{hydra(item)}' for key, item in value.items())}}}"
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        return f"'{_escaped(value)}'"
    return str(value)


def _escaped(text: str) -> str:
    """For a text in single quotes of Hydra, where backslashes count only before a quote."""
    return re.sub(r"(\\+)(?='|\Z)", r"\1\1", text).replace("'", "\\'")


# ---- questions, as the parquet files of Search-R1, which verl reads


def prompt_protocol(config: Config) -> SearchProtocol:
    """The protocol with the prompt of the recipe; its limits are those of the preset."""
    preset = PRESETS[config.protocol.preset]
    return replace(preset, prompt=config.protocol.prompt or preset.prompt)


def rows(examples: Iterable[Example], protocol: SearchProtocol) -> list[dict[str, Any]]:
    """The columns of Search-R1, and `agent_name`, by which verl chooses the agent loop.

    `prompt` has the prompt of the protocol, so that trainers without a protocol can use the file too.
    """
    return [
        {
            "id": example.id,
            "data_source": example.source,
            "agent_name": AGENT,
            "prompt": [{"role": "user", "content": prompt_text(example.question, protocol)}],
            "question": example.question,
            "golden_answers": list(example.golden_answers),
            "ability": "fact-reasoning",
            "reward_model": {"style": "rule", "ground_truth": {"target": list(example.golden_answers)}},
            "extra_info": {"split": example.split, "index": example.index, "question": example.question},
        }
        for example in examples
    ]


def write_splits(config: Config, folder: Path) -> None:
    """Write `train.parquet`, `dev.parquet` and, if the recipe names one, `test.parquet`. dev has the questions of
    evaluations while training.

    Raises as `train_and_dev` does, and `MissingExtra` for pyarrow.
    """
    pyarrow, parquet = import_pyarrow()
    train, dev = train_and_dev(config, "verl")
    splits = {"train": train, "dev": dev_questions(dev, config.eval.questions)}
    if config.data.test is not None:
        splits["test"] = questions_of(config.data.test, "test")
    protocol = prompt_protocol(config)
    for split, examples in splits.items():
        parquet.write_table(pyarrow.Table.from_pylist(rows(examples, protocol)), folder / f"{split}.parquet")


def parquet_files(config: Config) -> dict[str, str]:
    """Files that `write_splits` writes -> their source, in words."""
    data = config.data
    held_out = f"a tenth of {data.train}, {MOST_HELD_OUT} questions at most"
    splits: dict[str, str | None] = {
        "train": data.train if data.dev else f"{data.train}, without what is held out",
        "dev": f"{data.dev or held_out}, {config.eval.questions} of them at most",
        "test": data.test,
    }
    return {f"{split}.parquet": origin for split, origin in splits.items() if origin}
