"""What a run of TRL will do is known before it begins, and is what TRL then does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import trl
from datasets import Dataset, IterableDataset

from holdfast.adapters.trl import LLDS, NLL, with_penalties
from holdfast.adapters.trl.schedule import Schedule, checked_schedule
from holdfast.base.errors import ConfigError

from .conftest import CHECKPOINTING

ROOT = Path(__file__).parents[3]
SETTINGS = ("per_device_train_batch_size", "steps_per_generation", "gradient_accumulation_steps", "num_iterations")


def prompts(count: int) -> Dataset:
    return Dataset.from_list([{"prompt": f"What is the lake of Mora {i}?"} for i in range(count)])


def config(per_device: int, per_generation: int, window: int, iterations: int = 1, **more: Any) -> trl.GRPOConfig:
    schedule = dict(zip(SETTINGS, (per_device, per_generation, window, iterations), strict=True))
    plain = {"use_cpu": True, "bf16": False, CHECKPOINTING: False, "num_generations": 4, "report_to": []}
    return trl.GRPOConfig(**(plain | schedule | more))


@pytest.mark.parametrize(
    ("count", "schedule", "epochs", "max_steps"),
    [
        (6, (2, 4, 2), 3, -1),
        (7, (2, 4, 1), 1, -1),  # a prompt is left over
        (10, (4, 2, 1, 3), 2.5, -1),
        (9, (4, 3, 2), 2, -1),  # windows that do not end where a rollout batch does
        (5, (4, 1, 3, 2), 2, -1),  # the last window of an epoch has fewer passes
        (6, (2, 4, 2), 3, 5),
        (6, (2, 4, 2), 1, 50),
    ],
)
def test_the_steps_are_those_of_trl(
    make_trainer: Any, count: int, schedule: tuple[int, ...], epochs: float, max_steps: int
) -> None:
    trainer = make_trainer(
        with_penalties(trl.GRPOTrainer),
        train_dataset=prompts(count),
        num_train_epochs=epochs,
        max_steps=max_steps,
        **dict(zip(SETTINGS, schedule, strict=False)),
    )
    loader = trainer.get_train_dataloader()
    found = Schedule.of(trainer.args, trainer.train_dataset)
    assert found.batches is not None and found.batches * found.passes == len(loader)
    assert found.steps == trainer.set_initial_training_values(trainer.args, loader)[-1]


@pytest.mark.parametrize(
    ("count", "schedule", "steps"),
    [
        (6, (2, 4, 2), 4),
        (9, (4, 3, 2), 6),  # acts on two of three, whichever batch they are of
        (5, (4, 1, 3, 4), 7),  # an epoch of five batches has seven steps, and the last has two passes
    ],
)
def test_it_acts_on_the_steps_that_do_not_begin_with_fresh_rollouts(
    make_trainer: Any, count: int, schedule: tuple[int, ...], steps: int
) -> None:
    """Only on those does any ratio differ from 1."""
    trainer = make_trainer(
        with_penalties(trl.GRPOTrainer, LLDS()),
        train_dataset=prompts(count),
        max_steps=steps,
        lr_scheduler_type="constant",
        **dict(zip(SETTINGS, schedule, strict=False)),
    )
    trainer.train()
    rows = [row for row in trainer.state.log_history if "holdfast/ratio/log_product" in row]
    moved = [abs(row["holdfast/ratio/max"] - 1) > 1e-4 for row in rows]
    assert len(rows) == steps
    found = Schedule.of(trainer.args, trainer.train_dataset)
    assert (sum(moved), moved[0]) == (found.acting_steps, False) and found.acting_steps > 0


def test_the_acting_steps_of_epochs_begin_anew() -> None:
    """K = 4 / 3, and 5 batches are an epoch of 7 steps: of each 4 one is inert, and so is the first of each epoch."""
    two = Schedule.of(config(4, 1, 3, 4, num_train_epochs=2), prompts(5))
    assert (two.epoch_steps, two.period, two.steps, two.acting_steps) == (7, 4, 14, 10)


def test_what_it_will_do_is_printed(make_trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(with_penalties(trl.GRPOTrainer, LLDS()), train_dataset=prompts(7), num_train_epochs=2, max_steps=-1)
    assert (
        "holdfast: a rollout batch is 8 rollouts of 2 prompts, and has 2 optimizer steps. The training set of 7 "
        "prompts has 3 batches an epoch (left over: 1). In all 12 optimizer steps, and the penalty acts on 6 of them: "
    ) in capsys.readouterr().err


@pytest.mark.parametrize(("penalty", "acts"), [(LLDS(), "acts on 2 of them"), (NLL(), "acts on each"), (None, "")])
def test_a_stream_of_prompts(penalty: Any, acts: str) -> None:
    stream = IterableDataset.from_generator(lambda: iter([{"prompt": "?"}]))
    said = checked_schedule(config(2, 4, 1, max_steps=3), stream, penalty).sentences(penalty)
    assert "In all 3 optimizer steps" in said and "training set" not in said
    assert said.endswith("optimizer steps") if not acts else acts in said


@pytest.mark.parametrize(("settings", "named"), [({"max_steps": 0}, "max_steps=0"), ({"num_train_epochs": 0}, "num_t")])
def test_no_step_and_no_epoch_are_refused(settings: dict[str, int], named: str) -> None:
    """With max_steps=0 transformers takes one."""
    with pytest.raises(ConfigError, match=f"{named}.*: this run has no optimizer step"):
        checked_schedule(config(2, 4, 2, **settings), prompts(6), None)


def test_a_run_without_an_optimizer_step_is_refused_before_a_model_is_loaded() -> None:
    """TRL itself takes none of the 500, and ends well."""
    args = config(32, 40, 4, num_generations=8, max_steps=500)
    for made in (with_penalties(trl.GRPOTrainer, LLDS()), with_penalties(trl.GRPOTrainer)):
        with pytest.raises(ConfigError, match="would not take a single optimizer step") as told:
            made(model="no/such-model", reward_funcs=[], args=args, train_dataset=prompts(100))
        for named in ("per_device_train_batch_size=32", "steps_per_generation=40", "num_generations=8", "160 prompts"):
            assert named in str(told.value)
    checked_schedule(args, prompts(160), LLDS())


@pytest.mark.parametrize("schedule", [(2, 8, 8), (8, 1, 1), (8, 2, 2), (6, 2, 2), (4, 2, 8, 2), (16, 3, 6)])
def test_each_way_out_of_one_step_is_one(schedule: tuple[int, ...]) -> None:
    """The first two keep the rollout batch, and the third has more rollouts."""
    args = config(*schedule)
    with pytest.raises(ConfigError, match="one optimizer step per rollout batch") as told:
        checked_schedule(args, None, LLDS())
    ways = str(told.value).partition("would always be zero. ")[2].split(". ")
    assert len(ways) == 3
    before = dict(zip(SETTINGS, (*schedule, 1)[:4], strict=True))
    for way in ways:
        named = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", way)}
        after = config(*(before | named).values())
        found = checked_schedule(after, None, LLDS())
        if steps := re.search(r"into (\d+) optimizer steps", way):
            assert found.passes == int(steps[1]) * found.window
        larger = after.generation_batch_size / args.generation_batch_size
        times = re.search(r"it (\d+) times as large", way)
        assert larger == (int(times[1]) if times else 1)


@pytest.mark.parametrize(("page", "name"), [("README.md", "schedule"), ("docs/guide/trl.md", "args")])
def test_the_setting_of_the_pages_keeps_the_rollout_batch_and_lets_the_penalty_act(
    make_trainer: Any, page: str, name: str
) -> None:
    """With 100 prompts, 32 rollouts per device and groups of 8, with which 40 steps per generation trained nothing."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    (block,) = (block for block in blocks if "with_penalties(" in block)
    made: dict[str, Any] = {}
    exec(compile(block, page, "exec"), made)
    own = {"per_device_train_batch_size": 32, "num_generations": 8}
    of_users = trl.GRPOConfig(gradient_accumulation_steps=made["before"], use_cpu=True, bf16=False, **own)
    trainer = make_trainer(made["Trainer"], train_dataset=prompts(100), **own, **made[name], max_steps=4)
    assert trainer.args.generation_batch_size == of_users.generation_batch_size
    assert trainer.args.per_device_train_batch_size == of_users.per_device_train_batch_size
    trainer.train()
    active = [
        row["holdfast/penalty/active_fraction"] for row in trainer.state.log_history if "reward" in row or "loss" in row
    ]
    assert trainer.state.global_step == 4 == len(active)
    assert active[0] == 0 and min(active[1:]) > 0
