"""What a run of TRL will do, known before it begins: its rollout batches, its optimizer steps, and on how many of those
a penalty acts.

Source: `GRPOConfig.__post_init__`, `GRPOTrainer._get_train_sampler` and `get_train_dataloader` of TRL 1.16, and
`Trainer.set_initial_training_values` of transformers 5.23.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd
from typing import Any

from holdfast.base.errors import ConfigError
from holdfast.methods.penalties import Penalty


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rollout batches and the optimizer steps of a run."""

    prompts: int | None
    """In the training set; None for a stream, or before it is known."""
    batch_prompts: int
    """Of a rollout batch. TRL leaves out a batch that is not full."""
    batch_rollouts: int
    """Of a rollout batch, over all processes."""
    passes: int
    """Forward passes of a process over a rollout batch; each has `per_device_train_batch_size` rollouts."""
    window: int
    """Of them, those of an optimizer step."""
    max_steps: int
    epochs: float

    @classmethod
    def of(cls, args: Any, dataset: Any) -> Schedule:
        """From a `GRPOConfig` and the training set."""
        return cls(
            prompts=len(dataset) if hasattr(dataset, "__len__") else None,
            batch_prompts=args.generation_batch_size // args.num_generations,
            batch_rollouts=args.generation_batch_size,
            passes=args.steps_per_generation * args.num_iterations,
            window=args.gradient_accumulation_steps,
            max_steps=args.max_steps,
            epochs=args.num_train_epochs,
        )

    @property
    def batches(self) -> int | None:
        """Rollout batches of an epoch."""
        return None if self.prompts is None else self.prompts // self.batch_prompts

    @property
    def epoch_steps(self) -> int:
        """Optimizer steps of an epoch; a stream has one. The last step may have fewer passes."""
        return self.max_steps if self.batches is None else ceil(self.batches * self.passes / self.window)

    @property
    def steps(self) -> int:
        """Optimizer steps of the run."""
        if not self.epoch_steps:
            return 0
        return self.max_steps if self.max_steps >= 0 else ceil(self.epochs * self.epoch_steps)

    @property
    def period(self) -> int:
        """A penalty on drift is 0 on one of so many optimizer steps: on each that begins with fresh rollouts."""
        return self.passes // gcd(self.passes, self.window)

    @property
    def acting_steps(self) -> int:
        """The other optimizer steps of the run."""
        epochs, rest = divmod(self.steps, max(self.epoch_steps, 1))
        return epochs * self._acting(self.epoch_steps) + self._acting(rest)

    def _acting(self, steps: int) -> int:
        """Of the first steps of an epoch."""
        return steps - ceil(steps / self.period)

    def sentences(self, penalty: Penalty | None) -> str:
        """What the run will do."""
        steps = self.passes / self.window
        said = (
            f"a rollout batch is {self.batch_rollouts:,} rollouts of {self.batch_prompts:,} "
            f"prompt{'s' * (self.batch_prompts != 1)}, and has {steps:.3g} optimizer step{'s' * (steps != 1)}"
        )
        if self.batches is not None and self.prompts is not None:
            left = self.prompts - self.batches * self.batch_prompts
            said += f". The training set of {self.prompts:,} prompts has {self.batches:,} batches an epoch"
            said += f" (left over: {left:,})" * (left > 0)
        said += f". In all {self.steps:,} optimizer step{'s' * (self.steps != 1)}"
        if penalty is None:
            return said
        if penalty.acts_without_drift:
            return f"{said}, and the penalty acts on each"
        return (
            f"{said}, and the penalty acts on {self.acting_steps:,} of them: on the first of a rollout batch the "
            "policy still equals the one that sampled"
        )


def checked_schedule(args: Any, dataset: Any, penalty: Penalty | None) -> Schedule:
    """The schedule of a `GRPOConfig`. Raises `ConfigError` for one without an optimizer step, or one under which the
    penalty is always 0."""
    schedule = Schedule.of(args, dataset)
    if schedule.batches == 0:
        raise ConfigError(
            f"per_device_train_batch_size={args.per_device_train_batch_size}, steps_per_generation="
            f"{args.steps_per_generation} and num_generations={args.num_generations} make rollout batches of "
            f"{schedule.batch_prompts:,} prompts (processes: {args.world_size}), but the training set has "
            f"{schedule.prompts:,}. TRL leaves out a batch that is not full, so it would not take a single optimizer "
            "step. Lower steps_per_generation or per_device_train_batch_size, or give more prompts"
        )
    if not schedule.steps:
        none = "max_steps=0" if args.max_steps == 0 else f"num_train_epochs={args.num_train_epochs:g}"
        raise ConfigError(
            f"{none}: this run has no optimizer step. Set max_steps to 1 or more, or to -1 with a num_train_epochs "
            "above 0"
        )
    if penalty is not None and not penalty.acts_without_drift and schedule.period == 1:
        raise ConfigError(
            f"{type(penalty).__name__} compares the policy with the one that sampled the rollouts, but with "
            f"steps_per_generation={args.steps_per_generation}, gradient_accumulation_steps={schedule.window} and "
            f"num_iterations={args.num_iterations} TRL takes one optimizer step per rollout batch. Before that step "
            f"the two are equal, so the penalty would always be zero. {_more_steps(args)}"
        )
    return schedule


def _more_steps(args: Any) -> str:
    """How to get several optimizer steps per rollout batch."""
    per_process, passes = args.per_device_train_batch_size, args.steps_per_generation
    window = args.gradient_accumulation_steps
    ways = []
    if pieces := next((n for n in (4, 2) if not passes % n or not per_process % n), None):
        split = (
            f"gradient_accumulation_steps={passes // pieces} with steps_per_generation={passes}"
            if not passes % pieces
            else f"per_device_train_batch_size={per_process // pieces}, steps_per_generation={pieces * passes} and "
            f"gradient_accumulation_steps={passes}"
        )
        ways.append(f"To split this rollout batch into {pieces * args.num_iterations} optimizer steps, set {split}")
    ways.append(f"num_iterations={ceil(2 * window / passes)} keeps this rollout batch, and uses every rollout again")
    ways.append(f"steps_per_generation={4 * window} makes it {4 * window // passes} times as large")
    return ". ".join(ways)
