"""The files of a TRL run: a script to read and edit, the config of accelerate, the recipe, and the command."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from textwrap import indent
from typing import Any

from holdfast.adapters.launch.plan import filled, train_and_dev
from holdfast.adapters.launch.view import Recipe
from holdfast.hosts.host import Option
from holdfast.methods.penalties import LLDS, NLL, SAPO, Penalty
from holdfast.recipe import Config, dump
from holdfast.recipe.paths import with_values
from holdfast.tasks.factbook import is_factbook
from holdfast.tasks.prepare import write_factbook


def written(recipe: Recipe, options: Sequence[Option]) -> dict[str, Any]:
    """The part of a plan that is files: their texts and data, the schedule, and what to do first."""
    config, cut = recipe.config, recipe.trl_cut
    return {
        "files": {
            "train.py": script(recipe, options),
            "run.sh": command(recipe),
            "accelerate.yaml": accelerate(recipe),
            "recipe.toml": "# train.py reads data, retrieval and protocol here. Its own arguments override the rest."
            f"\n\n{dump(relocated(config))}",
        },
        "data": {_place(part, path): path for part, path in _sources(config)},
        "write_data": partial(write_data, config),
        "schedule": f"{config.train.optimizer_steps_per_rollout} = steps_per_generation "
        f"{cut['steps_per_generation']} × num_iterations 1 / gradient_accumulation_steps "
        f"{cut['gradient_accumulation_steps']}",
        "first": (f"pip install 'holdfast-rl[{','.join(_extras(config))}]'", "holdfast doctor trl"),
    }


def _extras(config: Config) -> Iterator[str]:
    yield from ("train", "trl")
    if config.model.lora_rank:
        yield "peft"
    if config.track.wandb or config.track.tensorboard:
        yield "track"


# ---- data


def write_data(config: Config, folder: Path) -> None:
    """Copy the question files as they are, and write what is the Factbook's as files. Raises as `train_and_dev`
    does."""
    if config.data.train != "world":
        train_and_dev(config, "TRL")
    for part, path in _sources(config):
        target = folder / _place(part, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if is_factbook(path):
            write_factbook(path, target)
        else:
            shutil.copyfile(path, target)


def relocated(config: Config) -> Config:
    """The recipe for the folder: its data are the copies there."""
    sections = {"corpus": "retrieval"}
    copies = {f"{sections.get(part, 'data')}.{part}": _place(part, path) for part, path in _sources(config)}
    return with_values(config, copies)


def _sources(config: Config) -> Iterator[tuple[str, str]]:
    """The parts of the data that the folder gets, and their paths in the recipe."""
    if config.data.train == "world":
        return
    for split in ("train", "dev", "test"):
        path = getattr(config.data, split)
        if path is not None:
            yield split, path
    if is_factbook(config.retrieval.corpus):
        yield "corpus", config.retrieval.corpus


def _place(part: str, path: str) -> str:
    """The file name is the name of the data set."""
    return f"data/{part}/{'factbook.jsonl' if is_factbook(path) else Path(path).name}"


# ---- texts


def script(recipe: Recipe, options: Sequence[Option]) -> str:
    """`train.py`."""
    config = recipe.config
    penalty, module = _penalty(config.loss.penalty.term)
    ours = isinstance(config.loss.penalty.term, LLDS | NLL | SAPO)  # the names that the adapter has
    name = penalty.partition("(")[0]
    arguments = [*([penalty] if penalty else []), *_observing(recipe)]
    title = f"{config.run.name}, with TRL. Made by `holdfast launch trl`, yours to edit. Start: ./run.sh. Continue: "
    return filled(
        "trl_train.py.txt",
        title=repr(f"{title}./run.sh --resume."),
        lora=config.model.lora_rank or "",
        lora_alpha=config.model.lora_alpha,
        adapter=", ".join([*([name] if ours else []), "with_penalties"]),
        custom=f"from {module} import {name}" if penalty and not ours else "",
        rewards={name: weight for name, weight in config.reward.weights().items() if weight},
        guard=f"on={config.guard.codes!r}, action={config.guard.action!r}",
        options=indent("\n".join(f"{o.name}={o.value!r},  # {o.why}" for o in options), " " * 4),
        checkpointing=config.model.gradient_checkpointing,
        penalty=indent("\n".join(f"{line}," for line in arguments), " " * 4),
        model=repr(recipe.model_path),
        eval_questions=config.eval.questions,
        chat_template=repr(config.model.chat_template),
        max_failed=config.run.max_failed_fraction,
        lost=config.faults.search_failure_rate or "",
        uneven=config.eval.every and config.train.steps % config.eval.every,
    )


def _penalty(penalty: Penalty | None) -> tuple[str, str]:
    """The call of its class, and the module of the class; two empty texts without a penalty."""
    if penalty is None:
        return "", ""
    kind = type(penalty)
    arguments = {key: getattr(penalty, key) for key in kind.model_fields if key != "name"}
    written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"{kind.__name__}({written})", kind.__module__


def _observing(recipe: Recipe) -> Iterator[str]:
    config = recipe.config
    if (above := recipe.correct_above) is not None and above != 0.5:
        yield f"correct_above={above!r}"
    yield f"displacement_every={config.train.displacement_every}"
    yield f"displacement_rows={config.train.displacement_rows}"
    if config.sampling.mask_logprobs:
        yield "mask_logprobs=True"
    if config.loss.methods.nthr.on:
        yield "nthr=True"


def accelerate(recipe: Recipe) -> str:
    """The config of `accelerate launch`."""
    cpu, machines = recipe.config.run.device == "cpu", recipe.machines
    several = machines.total > 1
    return filled(
        "trl_accelerate.yaml.txt",
        several=several,
        kind=("MULTI_CPU" if cpu else "MULTI_GPU") if several else "'NO'",
        nodes=machines.nodes,
        total=machines.total,
        cpu=str(cpu).lower(),
    )


def command(recipe: Recipe) -> str:
    """`run.sh`."""
    config, nodes = recipe.config, recipe.machines.nodes
    return filled(
        "trl_run.sh.txt",
        name=config.run.name,
        machines=recipe.machines,
        single=nodes == 1,
        several=nodes if nodes > 1 else "",
        threads=config.run.threads or "",
        wandb=quote(config.track.wandb) if config.track.wandb else "",
        code="" if config.run.code is None else quote(config.run.code),
    )
