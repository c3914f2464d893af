"""The files of a TRL run: a script to read and edit, the config of accelerate, the recipe, and the command."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from textwrap import indent

from holdfast.adapters.launch.plan import Machines, code_folder, model_path, train_and_dev
from holdfast.data.factbook import is_factbook
from holdfast.data.prepare import write_factbook
from holdfast.methods.method import Option
from holdfast.methods.penalties import LLDS, NLL, SAPO, Penalty
from holdfast.recipe import Config, Reward, dump
from holdfast.recipe.paths import with_values

PORT = 29500


class Code(str):
    """Python code, which the script has without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def files(config: Config, options: Sequence[Option], machines: Machines) -> dict[str, str]:
    """Text files by name."""
    return {
        "train.py": script(config, options),
        "run.sh": command(config, machines),
        "accelerate.yaml": accelerate(config, machines),
        "recipe.toml": f"# train.py reads data, retrieval and protocol here. Its own arguments override the rest.\n\n"
        f"{dump(relocated(config))}",
    }


# ---- data


def data_files(config: Config) -> dict[str, str]:
    """Copies of the questions, and of the Factbook's passages, by their path in the folder."""
    return {_place(part, path): path for part, path in _sources(config)}


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


# ---- train.py

_SCRIPT = """\
{title!r}

import sys

import torch{peft}
from trl import GRPOConfig, GRPOTrainer

from holdfast.adapters.trl import {adapter}
from holdfast.adapters.trl_monitor import Monitoring
from holdfast.adapters.trl_search import SearchRollouts, question_dataset, reward_functions
from holdfast.data.questions import dev_questions
from holdfast.loading import load_protocol, load_questions, load_retrievers
from holdfast.recipe import load
{custom}
# On an H100 and its like, PyTorch 2.11 and newer have cuDNN compute attention. Its gradients can be NaN, and every new
# length of the rows makes it plan again: https://github.com/pytorch/pytorch/issues/196678
torch.backends.cuda.enable_cudnn_sdp(False)

recipe = load("recipe.toml")
questions, retrievers = load_questions(recipe), load_retrievers(recipe)
functions, weights = reward_functions({rewards!r})

args = GRPOConfig(
{options}
    reward_weights=weights,
)

Trainer = with_penalties(
    GRPOTrainer,
{penalty}
)

trainer = Trainer(
    model={model!r},
    reward_funcs=functions,
    args=args,
    callbacks=[Monitoring({guard})],  # holdfast diagnose, while it trains
    train_dataset=question_dataset(questions.train),
    eval_dataset=question_dataset(dev_questions(questions.dev, {eval_questions})),
    rollout_func=SearchRollouts(
        retrievers.train,
        load_protocol(recipe),
        chat_template={chat_template!r},
        seed=args.seed,
        max_failed={max_failed},
        eval_retriever=retrievers.eval,
{faults}    ),
{lora})

trainer.train(resume_from_checkpoint="--resume" in sys.argv)
trainer.save_model()
{last_eval}if questions.test:  # read once, at the end
    trainer.evaluate(question_dataset(questions.test), metric_key_prefix="test")
    log = trainer.state.log_history  # TRL names every evaluation eval_, and this one is not of dev
    log[-1] = {{name.replace("eval_", "test_", 1): value for name, value in log[-1].items()}}
    print("test:", log[-1])
trainer.save_state()  # the whole log, in trainer_state.json
"""


def script(config: Config, options: Sequence[Option]) -> str:
    """`train.py`."""
    penalty, module = _penalty(config.loss.penalty.term)
    ours = isinstance(config.loss.penalty.term, LLDS | NLL | SAPO)  # the names that the adapter has
    name = penalty.partition("(")[0]
    arguments = [*([penalty] if penalty else []), *_observing(config)]
    lora, lost = config.model.lora_rank, config.faults.search_failure_rate
    uneven = config.eval.every and config.train.steps % config.eval.every
    return _SCRIPT.format(
        title=f"{config.run.name}, with TRL. Made by `holdfast launch trl`, yours to edit. Start: ./run.sh. Continue: "
        "./run.sh --resume.",
        peft="\nfrom peft import LoraConfig" if lora else "",
        adapter=", ".join([*([name] if ours else []), "with_penalties"]),
        custom=f"\nfrom {module} import {name}\n" if penalty and not ours else "",
        rewards={name: weight for name, weight in config.reward.weights().items() if weight},
        guard=f"on={config.guard.codes!r}, action={config.guard.action!r}",
        options=indent("\n".join(f"{o.name}={o.value!r},  # {o.why}" for o in options), " " * 4),
        penalty=indent("\n".join(f"{line}," for line in arguments), " " * 4),
        model=model_path(config),
        eval_questions=config.eval.questions,
        chat_template=config.model.chat_template,
        max_failed=config.run.max_failed_fraction,
        faults=f"        search_failure_rate={lost},  # on purpose\n" if lost else "",
        last_eval="trainer.evaluate()  # max_steps is not a multiple of eval_steps\n" if uneven else "",
        lora=f"    peft_config=LoraConfig(\n"
        f'        r={lora}, lora_alpha={config.model.lora_alpha}, lora_dropout=0.0, target_modules="all-linear"\n'
        f"    ),\n"
        if lora
        else "",
    )


def _penalty(penalty: Penalty | None) -> tuple[str, str]:
    """The call of its class, and the module of the class; two empty texts without a penalty."""
    if penalty is None:
        return "", ""
    kind = type(penalty)
    arguments = {key: getattr(penalty, key) for key in kind.model_fields if key != "name"}
    written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"{kind.__name__}({written})", kind.__module__


def _observing(config: Config) -> Iterator[str]:
    if (above := correct_above(config.reward)) is not None and above != 0.5:
        yield f"correct_above={above!r}"
    yield f"displacement_every={config.train.displacement_every}"
    yield f"displacement_rows={config.train.displacement_rows}"
    if config.sampling.mask_logprobs:
        yield "mask_logprobs=True"
    if config.loss.methods.nthr.on:
        yield "nthr=True"


def correct_above(reward: Reward) -> float | None:
    """The reward above which a rollout is correct: halfway between the best incorrect and the worst correct one.

    None if the two overlap, or may overlap: values of a custom part are not known. A correct answer has an F1 of 1.

    >>> correct_above(Reward(em=1.0)), correct_above(Reward(em=0.1, format=0.5))
    (0.5, None)
    """
    if any(reward.custom.values()):
        return None
    others = [reward.format, reward.retrieval]
    best_incorrect = sum(max(weight, 0.0) for weight in [reward.f1, *others])
    worst_correct = reward.em + reward.f1 + sum(min(weight, 0.0) for weight in [*others, reward.thrift])
    return (best_incorrect + worst_correct) / 2 if worst_correct > best_incorrect else None


# ---- accelerate.yaml and run.sh


def accelerate(config: Config, machines: Machines) -> str:
    """The config of `accelerate launch`."""
    cpu = config.run.device == "cpu"
    kind = "'NO'" if machines.total == 1 else "MULTI_CPU" if cpu else "MULTI_GPU"
    lines = [
        "# Every GPU holds the whole model and its optimizer: about 16 bytes a parameter when all weights are trained.",
        "# For a model that does not fit, pip install deepspeed, and write instead:",
        "#   distributed_type: DEEPSPEED",
        "#   deepspeed_config: {zero_stage: 2, gradient_accumulation_steps: auto, gradient_clipping: auto}",
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {kind}",
        f"num_machines: {machines.nodes}",
        f"num_processes: {machines.total}",
        f"use_cpu: {str(cpu).lower()}",
        "mixed_precision: 'no'  # train.py sets it",
        "main_training_function: main",
    ]
    if machines.total == 1:
        lines = lines[4:]
    return "\n".join(lines) + "\n"


def command(config: Config, machines: Machines) -> str:
    """`run.sh`."""
    lines = ["#!/usr/bin/env bash", f"# {config.run.name} on {machines}. Made by `holdfast launch trl`, yours to edit."]
    if machines.nodes > 1:
        lines += [
            "#",
            f"# Run it on each of the {machines.nodes} machines, from a folder that all have, with the machine's rank,",
            "# 0 for the first, and an address of the first that all can reach:",
            "#   MACHINE_RANK=1 MAIN_ADDRESS=10.0.0.1 ./run.sh",
        ]
    lines += ["set -euo pipefail", 'cd "$(dirname "$0")"', ""]
    if config.run.threads:
        lines.append(f"export OMP_NUM_THREADS={config.run.threads}  # run.threads")
    if config.track.wandb:
        lines.append(f"export WANDB_PROJECT={quote(config.track.wandb)}  # track.wandb")
    lines += code_folder(config)
    ranks = ""
    if machines.nodes > 1:
        ranks = (
            ' \\\n  --machine_rank "${MACHINE_RANK:?}" --main_process_ip "${MAIN_ADDRESS:?}"'
            f" --main_process_port {PORT}"
        )
    lines.append(f'exec accelerate launch --config_file accelerate.yaml{ranks} train.py "$@"')
    return "\n".join(lines) + "\n"
