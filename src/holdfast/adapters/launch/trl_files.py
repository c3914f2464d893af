"""The files of a TRL run: a script to read and edit, the config of accelerate, the recipe, and the command."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from textwrap import indent

from holdfast.adapters.launch.recipe import Option, Plan, Recipe, filled, questions_for
from holdfast.adapters.launch.trl_options import correct_above, division
from holdfast.methods.penalties import LLDS, NLL, SAPO, Penalty
from holdfast.recipe import Config, dump
from holdfast.recipe.paths import is_path, with_values


def planned(recipe: Recipe, options: tuple[Option, ...], notes: tuple[str, ...]) -> Plan:
    """The plan for TRL."""
    config, cut = recipe.config, division(recipe)
    return Plan(
        host="trl",
        options=options,
        notes=notes,
        files={
            "train.py": script(recipe, options),
            "run.sh": command(recipe),
            "accelerate.yaml": accelerate(recipe),
            "recipe.toml": "# train.py reads data, retrieval and protocol here. Its own arguments override the rest."
            f"\n\n{dump(relocated(config))}",
        },
        data={_place(part, path): path for part, path in _sources(config)},
        write_data=partial(write_data, recipe),
        schedule=f"{config.train.optimizer_steps_per_rollout} = steps_per_generation {cut.steps_per_generation} × "
        f"num_iterations 1 / gradient_accumulation_steps {cut.gradient_accumulation_steps}",
        first=(f"pip install 'holdfast-rl[{','.join(_extras(recipe))}]'", "holdfast doctor trl"),
    )


def _extras(recipe: Recipe) -> Iterator[str]:
    config = recipe.config
    yield from ("train", "trl", *recipe.tasks.extras)
    if config.model.lora_rank:
        yield "peft"
    if config.track.wandb or config.track.tensorboard:
        yield "track"


# ---- data


def write_data(recipe: Recipe, folder: Path) -> None:
    """Copy the question files as they are. Raises as `questions_for` does."""
    questions_for(recipe, "TRL")
    for split, path in _sources(recipe.config):
        target = folder / _place(split, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def relocated(config: Config) -> Config:
    """The recipe for the folder: its questions are the copies there."""
    return with_values(config, {f"data.{split}": _place(split, path) for split, path in _sources(config)})


def _sources(config: Config) -> Iterator[tuple[str, str]]:
    """The splits that are files, and their paths. Other task sets are made where the job runs."""
    for split, path in config.data.files():
        if path is not None and is_path(f"data.{split}", path):
            yield split, path


def _place(split: str, path: str) -> str:
    """The file name is the name of the data set."""
    return f"data/{split}/{Path(path).name}"


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
    if (above := correct_above(config.reward)) is not None and above != 0.5:
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
