"""K optimizer steps per rollout batch, in each host's own arithmetic."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest

from holdfast.adapters.launch import Machines, plan
from holdfast.base.errors import ConfigError
from holdfast.recipe import Config

MakeRecipe = Callable[..., Config]

QUESTIONS, GROUPS, STEPS, GPUS = (8, 48, 510, 512), (2, 5), (1, 3, 10), (1, 3, 8)
CASES = list(itertools.product(QUESTIONS, GROUPS, STEPS, GPUS))


def made(host: str, recipe: MakeRecipe, questions: int, group: int, steps: int, gpus: int) -> dict[str, object] | str:
    """The host's options, or the sentence of the refusal."""
    config = recipe(
        f"--train.questions={questions}",
        f"--train.group_size={group}",
        f"--train.optimizer_steps_per_rollout={steps}",
        "--loss.penalty.name=none",
    )
    try:
        return plan(host, config, Machines(gpus=gpus)).values
    except ConfigError as error:
        return str(error)


def trl_steps(options: dict, gpus: int) -> float:
    """As `GRPOTrainer` counts: it draws a generation batch every `steps_per_generation × num_iterations` micro-steps,
    and the optimizer steps every `gradient_accumulation_steps` of them."""
    generation_batch = options["per_device_train_batch_size"] * gpus * options["steps_per_generation"]
    assert generation_batch % options["num_generations"] == 0
    assert options["steps_per_generation"] % options["gradient_accumulation_steps"] == 0
    return options["steps_per_generation"] * options["num_iterations"] / options["gradient_accumulation_steps"]


def verl_steps(options: dict, gpus: int) -> float:
    """As `train_mini_batch` counts, on one data-parallel rank, and as `_balance_batch` pads before."""
    n = options["actor_rollout_ref.rollout.n"]
    mini = options["actor_rollout_ref.actor.ppo_mini_batch_size"] * n
    rows = options["data.train_batch_size"] * n
    assert mini % gpus == 0
    assert rows % mini == 0, "verl would fill the last step up with empty rows"
    return (rows // gpus) // (mini // gpus) * options["actor_rollout_ref.actor.ppo_epochs"]


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_the_host_takes_k_steps_or_the_recipe_is_refused(host: str, recipe: MakeRecipe) -> None:
    count = {"trl": trl_steps, "verl": verl_steps}[host]
    accepted = 0
    for questions, group, steps, gpus in CASES:
        if steps > questions * group:
            continue
        options = made(host, recipe, questions, group, steps, gpus)
        if isinstance(options, str):
            assert f"train.optimizer_steps_per_rollout = {steps} with train.questions = {questions}" in options
            continue
        accepted += 1
        assert count(options, gpus) == steps, (questions, group, steps, gpus)
    assert accepted > len(CASES) / 4
    assert isinstance(made(host, recipe, 30, 5, 10, 5), dict), "3 questions a step are 15 rollouts, 3 on each GPU"


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_what_a_refusal_suggests_works_and_nothing_nearer_does(host: str, recipe: MakeRecipe) -> None:
    refused = 0
    for questions, group, steps, gpus in [
        (512, 5, 10, 8),
        (32, 5, 10, 1),
        (8, 5, 3, 3),
        (510, 5, 10, 8),
        (7, 5, 2, 1),
    ]:
        sentence = made(host, recipe, questions, group, steps, gpus)
        if not isinstance(sentence, str):
            continue
        refused += 1
        (more,) = map(int, re.findall(r"can: train\.questions = (\d+)", sentence))
        assert isinstance(made(host, recipe, more, group, steps, gpus), dict)
        for nearer in range(max(1, questions - abs(more - questions) + 1), questions + abs(more - questions)):
            if steps <= nearer * group:
                assert isinstance(made(host, recipe, nearer, group, steps, gpus), str)
        for fewer in map(int, re.findall(r"or train\.optimizer_steps_per_rollout = (\d+)", sentence)):
            assert fewer > 1, "which would make the penalty inert"
            assert isinstance(made(host, recipe, questions, group, fewer, gpus), dict)
    assert refused >= 2


def test_a_forward_pass_of_trl_holds_no_more_tokens_than_the_recipe_says(recipe: MakeRecipe) -> None:
    for budget, total, fits in [(16384, 4096, 4), (6000, 4096, 1), (64, 4096, 1), (65536, 512, 128)]:
        config = recipe(f"--train.micro_batch_tokens={budget}", f"--protocol.max_total_tokens={total}")
        size = plan("trl", config).values["per_device_train_batch_size"]
        assert 1 <= size <= fits
        assert 40 * 5 // 10 % size == 0
