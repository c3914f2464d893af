"""The files of a verl run: the command, the settings of the agent loop, the recipe, the questions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote

from holdfast.adapters.launch.recipe import Here, Option, Plan, Recipe, Reference, filled, questions_for
from holdfast.adapters.launch.verl_options import AGENT_LOOPS, mini_batch
from holdfast.agent.protocol import SearchProtocol, prompt_text
from holdfast.agent.tools import PRESETS
from holdfast.base.errors import ConfigError
from holdfast.base.parquet import import_pyarrow
from holdfast.hosts.verl import AGENT
from holdfast.recipe import Config, dump
from holdfast.recipe.paths import is_path
from holdfast.tasks.questions import MAX_HELD_OUT, Example, dev_questions

_PLAIN = re.compile(r"(?a)(?!(?i:true|false|null|nan|inf)$)[A-Za-z_/][\w./-]*")  # texts that Hydra reads without quotes


def planned(recipe: Recipe, options: tuple[Option, ...], notes: tuple[str, ...]) -> Plan:
    """The plan for verl."""
    config, train = recipe.config, recipe.config.train
    return Plan(
        host="verl",
        options=options,
        notes=notes,
        files={
            "run.sh": command(recipe, options),
            AGENT_LOOPS: agent_loops(config),
            "recipe.toml": f"# What this folder was made from; run.sh does not read it.\n\n{dump(config)}",
        },
        data=parquet_files(recipe),
        write_data=partial(write_splits, recipe),
        schedule=f"{train.optimizer_steps_per_rollout} = train_batch_size {train.questions} / ppo_mini_batch_size "
        f"{mini_batch(config)} × ppo_epochs 1",
        first=("pip install 'holdfast-rl[verl]' vllm", "./run.sh --check"),
    )


def agent_loops(config: Config) -> str:
    """The file `agent_loop_config_path` names: arguments of `holdfast.adapters.verl_agent.SearchAgentLoop`."""
    limits = config.protocol
    values: dict[str, object] = {
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


def command(recipe: Recipe, options: Sequence[Option]) -> str:
    """`run.sh`."""
    config, nodes = recipe.config, recipe.machines.nodes
    width = max(len(_override(option)) for option in options if len(_override(option)) < 90)
    body: list[str] = []
    part: list[str] = []
    for option in options:
        kind = option.name.lstrip("+").split(".")[:-1][:2]
        if part and kind != part:
            body.append("")
        part = kind
        body.append(f"  {_override(option):{width}}  # {option.why}")
    return filled(
        "verl_run.sh.txt",
        name=config.run.name,
        machines=recipe.machines,
        several=nodes if nodes > 1 else "",
        test=quote(f"trainer.experiment_name={hydra(f'{config.run.name}-test')}") if recipe.tasks.has_test else "",
        code="" if config.run.code is None else quote(config.run.code),
        options="\n".join(body),
    )


def _override(option: Option) -> str:
    """An override as a word of the command, quoted for Hydra and then for bash."""
    value = option.value
    if isinstance(value, Here) and not Path(value).is_absolute():
        if _PLAIN.fullmatch(value):
            return f"{option.name}=\"'$here/{value}'\""
        return f"{option.name}=\"'$here/\"{quote(_escaped(value))}\\'"
    return f"{option.name}={quote(hydra(value))}"


def hydra(value: object) -> str:
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
                f"the key {odd[0]!r} in loss.penalty.settings or model.chat_template_kwargs cannot be written for "
                "Hydra, which reads verl's options. Use ASCII letters, digits and _"
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


def rows(examples: Iterable[Example], protocol: SearchProtocol) -> list[dict[str, object]]:
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


def write_splits(recipe: Recipe, folder: Path) -> None:
    """Write `train.parquet`, `dev.parquet` and, if there are test questions, `test.parquet`. dev has the questions of
    evaluations while training.

    Raises as `questions_for` does, and `MissingExtra` for pyarrow.
    """
    pyarrow, parquet = import_pyarrow()
    config, questions = recipe.config, questions_for(recipe, "verl")
    splits = {"train": questions.train, "dev": dev_questions(questions.dev, config.eval.questions)}
    if questions.test:
        splits["test"] = questions.test
    protocol = prompt_protocol(config)
    for split, examples in splits.items():
        parquet.write_table(pyarrow.Table.from_pylist(rows(examples, protocol)), folder / f"{split}.parquet")


def parquet_files(recipe: Recipe) -> dict[str, str]:
    """Files that `write_splits` writes -> their source, in words."""
    data, questions = recipe.config.data, recipe.config.eval.questions
    if not is_path("data.train", data.train):
        splits = {"train": data.train, "dev": f"{data.train}, {questions} questions at most"}
        return {f"{split}.parquet": origin for split, origin in splits.items()} | (
            {"test.parquet": data.train} if recipe.tasks.has_test else {}
        )
    held_out = f"a tenth of {data.train}, {MAX_HELD_OUT} questions at most"
    origins: dict[str, str | None] = {
        "train": data.train if data.dev else f"{data.train}, without the held-out questions",
        "dev": f"{data.dev or held_out}, {questions} of them at most",
        "test": data.test,
    }
    return {f"{split}.parquet": origin for split, origin in origins.items() if origin}
