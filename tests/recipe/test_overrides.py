"""Overrides of every kind; settings that contradict each other, values that nothing can use, and settings of another
penalty."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import ConfigError
from holdfast.methods.penalties import PENALTIES, NoPenalty
from holdfast.recipe import Config, dump, load, setting_values, validate

from .test_config import refusal

# ---- overrides: every kind of value


def get(config: Config, dotted: str) -> Any:
    value: Any = config
    for part in dotted.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize(
    ("arguments", "dotted", "value"),
    [
        (["--train.steps", "50"], "train.steps", 50),
        (["--train.steps", "1e3"], "train.steps", 1000),
        (["--train.group-size", "4"], "train.group_size", 4),
        (["--loss.entropy_coef=-1e-3"], "loss.entropy_coef", -0.001),
        (["--loss.entropy_coef", "-.5"], "loss.entropy_coef", -0.5),
        (["--train.lr", "1"], "train.lr", 1.0),
        (["--track.tensorboard", "--train.steps", "3"], "track.tensorboard", True),
        (["--track.tensorboard=no"], "track.tensorboard", False),
        (["--world.filler_length", "2,3"], "world.filler_length", (2, 3)),
        (["--world.scripts.stop_early", "0.5"], "world.scripts.stop_early", 0.5),
        (["--world.scripts.stop_early", "[0.5, 1]"], "world.scripts.stop_early", (0.5, 1.0)),
        (["--loss.dual_clip", "none"], "loss.dual_clip", None),
        (["--run.name", "none"], "run.name", "none"),
        (["--run.name", "12"], "run.name", "12"),
        (["--run.dir=--odd"], "run.dir", "--odd"),
        (["--loss.penalty.answer_weight", "0.5"], "loss.penalty.answer_weight", 0.5),
        (["--loss.penalty.answer_weight", "adaptive-code"], "loss.penalty.answer_weight", "adaptive-code"),
        (["--protocol.prompt", "Q: {question} [x] = 1"], "protocol.prompt", "Q: {question} [x] = 1"),
    ],
)
def test_an_override_is_read_as_its_setting(arguments: list[str], dotted: str, value: Any) -> None:
    found = get(load(overrides=arguments), dotted)
    assert found == value
    assert type(found) is type(value)


# ---- settings that contradict each other: each sentence names what to change

OWN = ("--data.train=q.jsonl", "--retrieval.corpus=c.jsonl", "--model.path=model")
GAE = ("--loss.advantage=gae", "--loss.penalty.name=none", "--loss.kl_coef=0", "--reward.kl=0.05", "--critic.lr=0.003")
METHODS = "--loss.methods."
WEIGHTS = f"{METHODS}sampler_weights."
CENTRED = f"{METHODS}score_centering.on"
TO_SAMPLER = "--loss.old_policy=sampler"
CONTRADICTIONS = {
    # what is wrong: overrides, the last of which the refusal names
    "heavy answers": ["--loss.penalty.answer_weight=5"],
    "inert penalty": ["--train.optimizer_steps_per_rollout=1"],
    "an anchor for no penalty": ["--train.anchor_every=2", "--loss.penalty.name=none"],
    "too few rollouts": ["--train.questions=1", "--train.group_size=4"],
    "a baseline of nothing": ["--loss.baseline=length", "--loss.advantage=reinforce"],
    "group of one": ["--train.group_size=1"],
    "no reward": ["--reward.em=0"],
    "server and corpus": ["--data.train=q.jsonl", "--retrieval.url=http://h:1", "--retrieval.corpus=c.jsonl"],
    "prompt without question": ["--protocol.prompt=Answer!"],
    "lengths reversed": ["--world.ramble_length=30,18"],
    "too few filler words": ["--world.filler_words=10"],
    "heads do not divide": ["--world.model.heads=5"],
    "run name is a path": ["--run.name=a/b"],
    "run name is the folder above": ["--run.name=.."],
    "run name is code": ['--run.name=a"""'],
    "no such code": ["--guard.codes=XYZ"],
    "no address": ["--data.train=q.jsonl", "--retrieval.url=localhost"],
    "LoRA of the tiny model": ["--model.lora_rank=8"],
    "an unbounded sampling mask": ["--sampling.mask_logprobs"],
    "turns without search": ["--protocol.preset=r1", "--protocol.max_turns=2"],
    "too many rollouts": ["--train.questions=999999"],
    "settings of the world": [*OWN, "--world.people=99"],
    # methods
    "weights with a low bound that is high": [f"{WEIGHTS}level=token", f"{WEIGHTS}low=2"],
    "a mean of one": [f"{WEIGHTS}level=token", f"{WEIGHTS}aggregate=mean"],
    "a dual clip of no clip": ["--loss.surrogate=cispo", "--loss.dual_clip=3"],
    "dppo of actions": ["--loss.surrogate=dppo", "--loss.ratio=action"],
    "dppo without a bound": ["--loss.surrogate=dppo", "--loss.clip_high=1"],
    "nthr of nothing": [f"{METHODS}nthr.on", f"{METHODS}negative_weight.weight=0"],
    "nthr without groups": [f"{METHODS}nthr.on", "--loss.advantage=reinforce"],
    "a mask without drift": [
        f"{METHODS}off_policy_mask.on",
        "--loss.penalty.name=none",
        "--train.optimizer_steps_per_rollout=1",
    ],
    "nthr of a sampling mask": [f"{METHODS}nthr.on", "--sampling.top_k=8", "--sampling.mask_logprobs"],
    "nothing to centre": [CENTRED, "--sampling.top_k=0"],
    "centring without a bound": [CENTRED, "--sampling.top_p=0.9", "--sampling.top_k=0"],
    "centring of cut and other weights": [CENTRED, "--sampling.top_k=12", "--train.staleness=1"],
    "centring of a sampling mask": [CENTRED, "--sampling.top_k=12", "--sampling.mask_logprobs"],
    "ratios to a sampler that is the same": [TO_SAMPLER],
    "ratios to what another mask is over": [TO_SAMPLER, "--sampling.top_k=12", "--sampling.mask_logprobs"],
    "a sampler that is corrected twice": [TO_SAMPLER, "--train.staleness=1", f"{WEIGHTS}on"],
    # a critic
    "llds with a critic": [*GAE, "--loss.penalty.name=llds"],
    "a KL twice": [*GAE, "--loss.kl_coef=0.01"],
    "a baseline with a critic": [*GAE, "--loss.baseline=length"],
    "nthr with a critic": [*GAE, f"{METHODS}nthr.on"],
    "other groups with a critic": [*GAE, f"{METHODS}dynamic_sampling.rounds=2"],
    "a KL of rewards without a critic": ["--reward.kl=0.05"],
    "a critic of nothing": ["--critic.lr=0.003", "--loss.advantage=reinforce"],
    # tools
    "tools of the tiny model": ["--protocol.preset=tools"],
    "tools without a template": [*OWN, "--protocol.preset=tools", "--model.chat_template=none"],
    "a variable that every rendering has": [*OWN, "--model.chat_template_kwargs=tools = 1"],
    "variables of plain text": [*OWN, "--model.chat_template=none", "--model.chat_template_kwargs=a = 1"],
    "tools of tags": ["--protocol.tools=['search']"],
    "no tools": [*OWN, "--protocol.preset=tools", "--protocol.tools=[]"],
    "two tools of one name": [*OWN, "--protocol.preset=tools", "--protocol.tools=['search', 'my_tools:search']"],
    "reading alone": [*OWN, "--protocol.preset=tools", "--protocol.tools=['read']"],
    "no such tool": [*OWN, "--protocol.preset=tools", "--protocol.tools=['browse']"],
    "demonstrations of searches": [
        *OWN,
        "--protocol.preset=tools",
        "--protocol.tools=['my_tools:add']",
        "--warm_start.steps=9",
    ],
    "nthr with frozen layers": ["--model.path=m", *OWN, f"{METHODS}nthr.on", "--model.lora_rank=8"],
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions(case: str) -> None:
    *_, last = overrides = CONTRADICTIONS[case]
    said, name = refusal(*overrides), last.removeprefix("--").partition("=")[0]
    assert name in said or f"{name.rpartition('.')[0]}.on" in said  # a setting of a method switches it on


@pytest.mark.parametrize(
    "overrides",
    [
        ["--train.optimizer_steps_per_rollout=1", "--loss.penalty.name=none"],
        ["--train.optimizer_steps_per_rollout=2"],
        ["--train.optimizer_steps_per_rollout=1", "--train.anchor_every=3"],
        ["--train.optimizer_steps_per_rollout=1", TO_SAMPLER, "--train.staleness=1"],
        ["--train.optimizer_steps_per_rollout=1", "--loss.penalty.name=sapo", "--loss.penalty.tau=1.2"],
        ["--train.questions=2", "--train.group_size=5"],  # 10 rollouts for K = 10
        ["--train.group_size=1", "--loss.advantage=reinforce"],
        ["--reward.em=0", "--reward.f1=1"],
        ["--world.filler_length=3,3", "--world.filler_words=11"],
    ],
)
def test_their_neighbours_are_fine(overrides: list[str]) -> None:
    load(overrides=overrides)


PUBLISHED = {
    "none": {},
    "llds": {"coef": 0.2, "preserve": "nonnegative"},
    "sapo": {"coef": 0.1, "preserve": "positive"},
    "nll": {"coef": 0.1},
}


# ---- settings of another method

VALUES = {
    "coef": "0.5",
    "gate": "token",
    "preserve": "correct",
    "normalizer": "policy",
    "threshold": "0.01",
    "answer_weight": "0.5",
    "answer_base": "0.5",
    "answer_target": "3.0",
    "tau": "0.9",
    "path": "my_code:Hinge",
    "settings": "margin = 0.5",
}


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("key", VALUES)
def test_a_setting_is_the_methods_or_refused(name: str, key: str) -> None:
    overrides = ["--loss.penalty.name", name, f"--loss.penalty.{key}", VALUES[key]]
    needed = ["--loss.penalty.path=my_code:Ramp"] if name == "custom" else []
    if key in PENALTIES[name].model_fields:
        needed += ["--loss.penalty.answer_weight=adaptive-paper"] if key in ("answer_base", "answer_target") else []
        changed, usual = (load(overrides=[*needed, *words]).loss.penalty for words in (overrides, overrides[:2]))
        assert changed != usual and type(changed) is PENALTIES[name]
    else:
        assert f"--loss.penalty.{key} = " in (said := refusal(*needed, *overrides))
        assert f"with loss.penalty.name = {name!r}, which does not use it. Leave it out, or set loss.penalty.na" in said


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_resolved_recipe_holds_what_its_method_reads_and_reads_back(name: str, tmp_path: Path) -> None:
    config = load(overrides=["--loss.penalty.name", name])
    assert {key: value for key, value in config.loss.penalty if key in ("coef", "preserve")} == PUBLISHED[name]
    assert set(tomllib.loads(dump(config))["loss"]["penalty"]) == set(PENALTIES[name].model_fields)
    path = tmp_path / "resolved.toml"
    path.write_text(dump(config))
    assert load(path) == config
    for other in PUBLISHED:  # another method on top of it, as a control is
        assert load(path, ["--loss.penalty.name", other]) == load(overrides=["--loss.penalty.name", other])


def test_a_control_forgets_the_files_settings_and_not_the_command_lines(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('[loss.penalty]\nname = "llds"\ngate = "token"\nthreshold = 0.1\ncoef = 0.7\n')
    assert load(path, ["--loss.penalty.name=none"]).loss.penalty == NoPenalty()
    assert load(path, ["--loss.penalty.name=sapo"]).loss.penalty == PENALTIES["sapo"]()
    assert setting_values(load(path, ["--loss.penalty.name=llds"]))["loss.penalty.coef"] == 0.7
    with pytest.raises(ConfigError, match="gate = 'response'"):
        load(path, ["--loss.penalty.name=none", "--loss.penalty.gate=response"])


def test_an_empty_table_switches_a_method_on(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("[loss.methods.nthr]\n")
    assert load(path) == load(overrides=[f"{METHODS}nthr.on"]) and load(path).loss.methods.nthr.on
    further = tmp_path / "further.toml"
    further.write_text('extends = "own.toml"\nunset = ["loss.methods.nthr.on"]\n')
    assert not load(further).loss.methods.nthr.on


# ---- values that nothing can use

DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--run.seed", str(2**63)], "must be a 64-bit whole number"),
        (["--world.filler_length", f"4,{2**70}"], "must be a 64-bit whole number"),
        (["--reward.format", "1e308"], "must be a number between -1e+15 and 1e+15"),
        (["--reward.custom", "{ 'a:b' = 1e30 }"], "must be a number between"),
        (["--train.group_size", "100000"], "a batch has at most 1,000,000 rollouts. Lower one of them"),
        (["--world.ramble_length", DIGITS], "must be a list, in brackets"),
        (["--run.name", "\udcff\udcfe"], "must be a UTF-8 string without NUL"),
        (["--run.name", "a\nb"], "is not a valid name"),
        (["--run.name", "x" * 201], "run.name has 201 bytes, which is too long for a folder name; use at most 200"),
    ],
)
def test_values_that_nothing_can_use(arguments: list[str], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(overrides=arguments)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63)])
def test_the_largest_values(seed: int) -> None:
    config = validate({"run": {"seed": seed, "name": "é" * 100}})
    assert config.run.seed == seed and f"seed = {seed}" in dump(config)


def test_a_table_inside_a_table_is_read_and_a_bad_value_in_it_named() -> None:
    for text in ("{ a = { b = 1 } }", "a = { b = 1 }"):
        own = ["--loss.penalty.name=custom", "--loss.penalty.path=x:Y", f"--loss.penalty.settings={text}"]
        assert load(overrides=own).loss.penalty.model_dump()["settings"] == {"a": {"b": 1}}
    with pytest.raises(ConfigError, match=r'^--reward\.custom\."my_code:brevity" = \'x\': must be a number$'):
        load(overrides=["--reward.custom", "{ 'my_code:brevity' = 'x' }"])
