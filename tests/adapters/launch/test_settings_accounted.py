"""Every setting of the schema is translated, reported or refused, in each host."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.adapters.launch import Machines, plan, verl_files
from holdfast.adapters.launch.plan import launch_of
from holdfast.adapters.launch.recipe import Noted, Refused, fate
from holdfast.base.errors import ConfigError
from holdfast.recipe import Config, setting_names, setting_values
from holdfast.tasks.questions import Example

from .conftest import CUSTOM

MakeRecipe = Callable[..., Config]

METHODS = {name for name in setting_names() if name.startswith("loss.methods.")}
"""Which each method's translation accounts for."""

MASKS = tuple(f"--loss.methods.sampler_weights.{x}" for x in ("keep=mask", "low=0.5"))
REJECTS = tuple(f"--loss.methods.sampler_weights.{x}" for x in ("level=sequence", "keep=reject", "low=0.5"))
PPO = ("--loss.advantage=gae", "--loss.penalty.name=none", "--loss.kl_coef=0", "--train.group_size=1")

# Another value of each setting, and what it needs beside it to mean something.
OTHER: dict[str, tuple[str, ...]] = {
    "data.dev": ("dev.jsonl",),
    "data.test": ("test.jsonl",),
    "retrieval.corpus": ("corpus.jsonl", "--retrieval.url=none"),
    "retrieval.index": ("index", "--retrieval.url=none", "--retrieval.corpus=corpus.jsonl"),
    "retrieval.fields": ('text = "body"',),
    "model.lora_alpha": ("64", "--model.lora_rank=8"),
    "model.autocast": ("none",),
    "model.chat_template": ("none",),
    "model.chat_template_kwargs": ("enable_thinking = false",),
    "protocol.preset": ("search-r1",),
    "protocol.tools": ("search,read", "--protocol.preset=tools"),
    "protocol.tool_timeout": ("7", "--protocol.preset=tools", "--protocol.tools=search,read"),
    "protocol.prompt": ("Q: {question}",),
    "protocol.max_turns": ("6", "--loss.reduction=seq-mean-token-sum-norm"),
    "warm_start.data": ("episodes.jsonl",),
    "warm_start.batches": ("by-length",),
    "loss.penalty.name": ("none",),
    "loss.penalty.gate": ("token",),
    "loss.penalty.preserve": ("positive",),
    "loss.penalty.normalizer": ("policy",),
    "loss.penalty.answer_weight": ("0.5",),
    "loss.penalty.answer_base": ("0.5", "--loss.penalty.answer_weight=adaptive-paper"),
    "loss.penalty.answer_target": ("3", "--loss.penalty.answer_weight=adaptive-paper"),
    "loss.penalty.tau": ("0.9", "--loss.penalty.name=sapo"),
    "loss.penalty.path": ("own_code_of_launch:Ramp", *CUSTOM),
    "loss.penalty.settings": ("margin = 0.5", *CUSTOM),
    "reward.custom": ('"own_code_of_launch:brevity" = 0.2',),
    "reward.judge.weight": ("0.5", "--reward.judge.url=http://127.0.0.1:9", "--reward.judge.model=m"),
    "reward.judge.url": ("http://127.0.0.1:9",),
    "reward.judge.model": ("m",),
    "loss.advantage": ("dr_grpo",),
    "loss.baseline": ("length", "--loss.advantage=dr_grpo"),
    "loss.ratio": ("sequence",),
    "loss.dual_clip": ("3",),
    "loss.surrogate": ("cispo", "--loss.clip_low=1"),
    "loss.methods.off_policy_mask.threshold": ("0.5",),
    "loss.methods.sampler_weights.level": ("sequence",),
    "loss.methods.sampler_weights.aggregate": ("mean", *REJECTS),
    "loss.methods.sampler_weights.keep": ("reject", *MASKS, "--loss.penalty.gate=token"),
    "loss.methods.sampler_weights.low": ("0.25", *MASKS),
    "loss.methods.sampler_weights.high": ("3",),
    "loss.reduction": ("seq-mean-token-mean",),
    "loss.kl_estimator": ("k2",),
    "train.group_size": ("10",),
    "train.minibatches": ("in-order",),
    "train.anchor_every": ("2",),
    "loss.old_policy": ("sampler", "--train.staleness=1"),
    "train.micro_batch_tokens": ("4096",),
    "sampling.mask_logprobs": ("true", "--sampling.top_k=512"),
    "track.wandb": ("project",),
    "guard.codes": ("LLD",),
    "guard.action": ("stop",),
    "world.filler_length": ("5,11",),
    "world.ramble_length": ("19,31",),
    "run.device": ("cpu",),
    "run.code": ("code",),
    "critic.path": ("checkpoint", *PPO),
    "critic.lr": ("1e-4", *PPO),
    "critic.warmup": ("8", *PPO),
    "critic.clip": ("0.25", *PPO),
    "critic.gamma": ("0.9", *PPO),
    "critic.lam": ("0.9", *PPO),
    "critic.whiten": ("false", *PPO),
    "reward.kl": ("0.01", *PPO),
}  # fmt: skip


def another(name: str, config: Config) -> list[str]:
    """Overrides that change a setting: what it needs beside it, then the change."""
    value: Any = setting_values(config).get(name)
    if name in OTHER:
        text, *needed = OTHER[name]
        return [*needed, f"--{name}={text}"]
    if isinstance(value, bool):
        return [f"--{name}={str(not value).lower()}"]
    if isinstance(value, int):
        return [f"--{name}={value * 2 or 16}"]
    if isinstance(value, float):
        return [f"--{name}={value * 0.5 or 0.25}"]
    assert isinstance(value, str), name
    return [f"--{name}={value}2"]


QUESTION = Example(source="nq", split="train", index=0, question="Who?", golden_answers=("Mira",))


def substance(host: str, config: Config) -> tuple[object, ...]:
    """All of a plan that counts: of the recipe beside it, what the script reads there; of the questions, one row."""
    made = plan(host, config, Machines(gpus=2))
    texts = {name: text for name, text in made.files.items() if name != "recipe.toml"}
    if host == "trl":
        sections = ("data]", "retrieval]", "retrieval.fields]", "protocol]", "world]")
        texts["read"] = "".join(
            part for part in re.split(r"(?m)^(?=\[)", made.files["recipe.toml"]) if part[1:].startswith(sections)
        )
    row = verl_files.rows([QUESTION], verl_files.prompt_protocol(config)) if host == "verl" else None
    return made.values, texts, dict(made.data), row


@pytest.mark.parametrize("host", ["trl", "verl"])
@pytest.mark.parametrize("name", setting_names())
def test_changing_a_setting_changes_the_run_or_is_told(host: str, name: str, recipe: MakeRecipe) -> None:
    change = another(name, recipe())
    if host == "trl" and name.startswith("world."):
        change = ["--data.train=world", "--retrieval.url=none", *change]
    becomes = fate(launch_of(host).fates, name)
    noted, refused = (isinstance(becomes, kind) for kind in (Noted, Refused))
    try:
        changed = plan(host, recipe(*change), Machines(gpus=2))
    except ConfigError as error:
        named = name.rpartition(".")[0] if name in METHODS else name  # a method is refused as a whole
        assert named in str(error), f"{name} is refused, but the sentence names another"
        assert not noted
        return
    assert not refused
    before = recipe(*(word for word in change[:-1] if name != "retrieval.corpus"))
    notes = [note for note in changed.notes if note.startswith(f"{name} = ")]
    if noted:
        assert notes
        assert substance(host, recipe(*change)) == substance(host, before)
    else:
        assert not notes
        assert substance(host, recipe(*change)) != substance(host, before)
