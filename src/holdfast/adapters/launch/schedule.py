"""K, the optimizer steps that use a rollout batch, in the options of each host.

Hosts count differently. K here is `train.optimizer_steps_per_rollout`, and every rollout is used in one of the K steps.

    TRL    K = steps_per_generation × num_iterations / gradient_accumulation_steps
    verl   K = train_batch_size / ppo_mini_batch_size × ppo_epochs, a mini-batch counted in questions: verl multiplies
           it by rollout.n. (Search-R1's own fork does not, so that its `ppo_mini_batch_size=256` with 512 × 5 rollouts
           is 10 steps there and 2 here.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.recipe import Config, Train


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The machines the host runs on. They are not in the recipe, which is the same on one GPU and on eight."""

    gpus: int = 1
    """GPUs of each machine, or processes if it has none."""
    nodes: int = 1
    """Machines."""

    @property
    def total(self) -> int:
        """GPUs of all machines."""
        return self.gpus * self.nodes

    def __str__(self) -> str:
        gpus = f"{self.gpus} GPU{'s' if self.gpus > 1 else ''}"
        return gpus if self.nodes == 1 else f"{self.nodes} machines with {gpus} each"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlSchedule:
    """How TRL divides a rollout batch."""

    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    steps_per_generation: int


def trl_schedule(config: Config, machines: Machines) -> TrlSchedule:
    """K optimizer steps of equal size, in forward passes that hold `train.micro_batch_tokens` full-length rows.

    >>> trl_schedule(Config.model_validate({"train": {"questions": 512}}), Machines(gpus=8))
    TrlSchedule(per_device_train_batch_size=4, gradient_accumulation_steps=8, steps_per_generation=80)
    """
    train = config.train
    rows = train.questions * train.group_size // (train.optimizer_steps_per_rollout * machines.total)
    fit = max(1, train.micro_batch_tokens // config.protocol.max_total_tokens)
    per_device = max(size for size in range(1, min(fit, rows) + 1) if rows % size == 0)
    accumulate = rows // per_device
    return TrlSchedule(
        per_device_train_batch_size=per_device,
        gradient_accumulation_steps=accumulate,
        steps_per_generation=accumulate * train.optimizer_steps_per_rollout,
    )


def trl_schedule_problem(train: Train, machines: Machines) -> str | None:
    """Why TRL cannot take K equal steps, and the nearest settings it can take; None if it can."""
    return _problem(
        train,
        machines,
        lambda questions, steps: questions * train.group_size % (steps * machines.total) == 0,
        f"TRL needs the same number of rollouts in every step and on every GPU, but {train.questions} × "
        f"{train.group_size} rollouts cannot be divided like that",
    )


def verl_mini_batch(train: Train) -> int:
    """`ppo_mini_batch_size`, in questions."""
    return train.questions // train.optimizer_steps_per_rollout


def verl_schedule_problem(train: Train, machines: Machines) -> str | None:
    """Why verl cannot take K equal steps, and the nearest settings it can take; None if it can."""

    def fits(questions: int, steps: int) -> bool:
        mini, rest = divmod(questions, steps)
        return rest == 0 and mini > 0 and mini * train.group_size % machines.total == 0

    return _problem(
        train,
        machines,
        fits,
        "verl needs the same number of questions in every step, and their rollouts must divide evenly over the GPUs; "
        f"{train.questions} questions cannot be divided like that",
    )


def _problem(train: Train, machines: Machines, fits: Callable[[int, int], bool], why: str) -> str | None:
    questions, steps = train.questions, train.optimizer_steps_per_rollout
    if fits(questions, steps):
        return None
    # A multiple of both always fits. K = 1 is not proposed: the penalties would be inert.
    ways = [f"train.questions = {_nearest(questions, lambda q: fits(q, steps), 1, questions + steps * machines.total)}"]
    if step := _nearest(steps, lambda k: fits(questions, k), 2, questions * train.group_size):
        ways.append(f"train.optimizer_steps_per_rollout = {step}")
    return (
        f"train.optimizer_steps_per_rollout = {steps} with train.questions = {questions} on {machines}: {why}. The "
        f"nearest that can: {' or '.join(ways)}"
    )


def _nearest(target: int, fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """The number from `least` to `most` that fits and is nearest to `target`; the smaller of two."""
    return min((n for n in range(least, most + 1) if fits(n)), key=lambda n: (abs(n - target), n), default=None)
