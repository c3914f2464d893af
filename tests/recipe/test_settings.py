"""What a recipe cannot hold is refused in a sentence, before anything is written."""

from __future__ import annotations

import pytest

from holdfast.base.errors import ConfigError
from holdfast.recipe import dump, load, validate

DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--run.seed", str(2**63)], "must be a whole number of 64 bits"),
        (["--run.seed", str(-(2**63) - 1)], "must be a whole number of 64 bits"),
        (["--train.group_size", "99999999999999999999"], "must be a whole number of 64 bits"),
        (["--world.filler_length", f"4,{2**70}"], "must be a whole number of 64 bits"),
        (["--reward.format", "1e308"], "must be a number between -1e+15 and 1e+15"),
        (["--reward.em", "-1.1e15"], "must be a number between"),
        (["--reward.custom", "{ 'a:b' = 1e30 }"], "must be a number between"),
        (["--train.lr", "1e300"], "must be a number between"),
        (["--loss.penalty.coef", "1e300"], "must be a number between"),
        (["--run.threads", "1000000000000"], "must be 1024 or less"),
        (["--world.model.hidden", "1000000000000"], "must be 4096 or less"),
        (["--world.model.layers", "1000000000"], "must be 64 or less"),
        (["--warm_start.seed", "-1"], "must be 0 or more"),
        (["--train.group_size", "100000"], "is more than 1,000,000 rollouts in a batch; lower one of them"),
        (["--world.ramble_length", DIGITS], "must be a list, in brackets"),
        (["--train.steps", DIGITS], "must be a whole number"),
        (["--run.name", "\udcff\udcfe"], "must be a UTF-8 string without NUL"),
        (["--data.train", "a\0b"], "must be a UTF-8 string without NUL"),
        (["--run.name", "a\tb"], "is not a valid name"),
        (["--run.name", "a\nb"], "is not a valid name"),
        (["--run.name", "x" * 201], "run.name has 201 bytes, which is too long for a folder name; use at most 200"),
        (["--run.name", "é" * 101], "run.name has 202 bytes"),
    ],
)
def test_values_that_nothing_can_use(arguments: list[str], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(overrides=arguments)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_largest_numbers() -> None:
    config = load(overrides=["--reward.em", "1e15", "--train.lr", "1e15", "--run.threads", "1024"])
    assert config.reward.em == config.train.lr == 1e15


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63), 0])
def test_whole_numbers_of_64_bits(seed: int) -> None:
    config = validate({"run": {"seed": seed, "name": "é" * 100}})
    assert config.run.seed == seed and f"seed = {seed}" in dump(config)


@pytest.mark.parametrize("text", ["{ a = { b = 1 } }", "a = { b = 1 }"])
def test_a_table_inside_a_table_is_read(text: str) -> None:
    config = load(
        overrides=["--loss.penalty.name=custom", "--loss.penalty.path=x:Y", f"--loss.penalty.settings={text}"]
    )
    assert config.loss.penalty.model_dump()["settings"] == {"a": {"b": 1}}


def test_a_bad_value_inside_a_table_is_named() -> None:
    with pytest.raises(ConfigError, match=r'^--reward\.custom\."my_code:brevity" = \'x\': must be a number$'):
        load(overrides=["--reward.custom", "{ 'my_code:brevity' = 'x' }"])
