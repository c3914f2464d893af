"""What cannot be trained is refused by the dry run and by the run in the same words, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

OWN_DATA = ("--data.train=q.jsonl", "--retrieval.corpus=c.jsonl")
OWN_MODEL = ("--model.path=some/model", "--world.scripts.plain_steps=0")
CUSTOM = ("--loss.penalty.name=custom", "--loss.penalty.path")

WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    # one setting
    "a number below its limit": (("--train.steps=0",), "must be 1 or more"),
    "more people than names": (("--world.people=2305",), "must be 2304 or less"),
    "a text for a number": (("--train.lr=fast",), "must be a number"),
    "no such penalty": (("--loss.penalty.name=lld",), "must be 'none', 'llds', 'sapo', 'nll' or 'custom'"),
    "no such code of a finding": (("--guard.codes=XYZ",), "no finding's code begins with 'XYZ'"),
    "no address": (("--data.train=q.jsonl", "--retrieval.url=localhost"), "is not the address of a retriever"),
    # one section
    "a setting of another penalty": (("--loss.penalty.tau=0.9",), "which does not read it"),
    "a tiny model with LoRA": (("--model.lora_rank=8",), "the tiny model is too small for LoRA"),
    "heads that do not divide": (("--world.model.heads=5",), "Set world.model.hidden to a multiple of 10"),
    "a mask that nothing bounds": (("--sampling.mask_logprobs",), "Set sampling.top_k"),
    "no reward": (("--reward.em=0",), "set reward.em = 1.0"),
    # several sections
    "a penalty that is always zero": (("--train.optimizer_steps_per_rollout=1",), "this penalty is always zero"),
    "an index of the world": (("--retrieval.index=i",), "the bundled world is indexed in memory"),
    "own questions, bundled corpus": (("--data.train=q.jsonl",), "Set both to your files, or neither"),
    # what only training cannot do
    "a tiny model and own questions": (
        (*OWN_DATA, "--warm_start.steps=0", "--world.scripts.plain_steps=0"),
        "model of",
    ),
    "scripts without the world": ((*OWN_DATA, *OWN_MODEL), "warm_start.data is not set, and only the bundled world"),
    "plain scripts without the world": (
        (*OWN_DATA, "--model.path=some/model", "--warm_start.steps=0", "--world.scripts.plain_steps=5"),
        "world.scripts.plain_steps = 5 with data.train = 'q.jsonl': not used",
    ),
    # code
    "a module that is not there": ((*CUSTOM, "no_such_module:Hinge"), "the module no_such_module cannot be imported"),
    "a class that is not there": ((*CUSTOM, "holdfast.methods.penalties:LLD"), "did you mean LLDS?"),
    "a class that is none": (
        (*CUSTOM, "holdfast.methods.penalties:Section"),
        "is not a penalty: derive the class from",
    ),
    "a class that is abstract": ((*CUSTOM, "holdfast.methods.penalties:Penalty"), "lacks the method per_token"),
    "an argument of a class": (
        (*CUSTOM, "holdfast.methods.penalties:LLDS", "--loss.penalty.settings=gat = 'token'"),
        "LLDS(gat='token'): there is no such argument; did you mean gate?",
    ),
    "a class that is always zero": (
        (*CUSTOM, "holdfast.methods.penalties:LLDS", "--train.optimizer_steps_per_rollout=1"),
        "loss.penalty.name = 'custom' with train.optimizer_steps_per_rollout = 1",
    ),
    "a reward that is not there": (("--reward.custom", '"no_such_module:brevity" = 1.0'), "cannot be imported"),
    "a reward that is no number": (("--reward.custom", '"operator:itemgetter" = 1.0'), "must return a finite number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_dry_run_and_the_run_refuse_the_same(case: str, trainer: Any, holdfast: Run) -> None:
    words, sentence = WRONG[case]
    dry, run = (holdfast("train", *more, *words, code=2) for more in (["--dry-run"], []))
    assert sentence in dry.stderr.replace("\n", " ")
    assert dry.stderr == run.stderr and dry.stdout == run.stdout == ""
    assert trainer.calls == [] and list(Path().iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        (*CUSTOM, "holdfast.methods.penalties:SAPO", "--train.optimizer_steps_per_rollout=2"),
        (*CUSTOM, "holdfast.methods.penalties:NLL", "--train.optimizer_steps_per_rollout=1"),
    ],
)
def test_their_neighbours_are_begun(words: tuple[str, ...], trainer: Any, holdfast: Run) -> None:
    holdfast("train", "--dry-run", *words)
    holdfast("train", *words)
    assert len(trainer.calls) == 1
